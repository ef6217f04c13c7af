package apiserver

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	extensionsapiserver "k8s.io/apiextensions-apiserver/pkg/apiserver"
	"k8s.io/apimachinery/pkg/util/sets"
	apiserverconfig "k8s.io/apiserver/pkg/apis/apiserver"
	authorizationcel "k8s.io/apiserver/pkg/authorization/cel"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	aggregatorscheme "k8s.io/kube-aggregator/pkg/apiserver/scheme"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/kubeapiserver/authorizer"
)

// Options is what an operator may decide about the API of one peer. Peers of
// one cluster should have the same. Files are given by their absolute paths;
// empty or zero means upstream's default, unless a field says otherwise.
type Options struct {
	// FeatureGates switches upstream's features, by name, for all of the
	// process.
	FeatureGates map[string]bool
	// RuntimeConfig switches versions of the API: GROUP/VERSION, or api/all,
	// api/ga, api/beta, api/alpha.
	RuntimeConfig map[string]bool

	// EncryptionConfig is a file with an EncryptionConfiguration: what is
	// encrypted in the store, and how. Nobody but its owner may have access to
	// it. It is read again when it changes.
	EncryptionConfig string

	// AuthenticationConfig is a file with an AuthenticationConfiguration (OIDC
	// and other issuers of JWTs), read again when it changes. Without a rule
	// for anonymous requests in it, they see /livez, /readyz and /healthz only.
	AuthenticationConfig string
	// AuthenticationWebhook is a kubeconfig of a server that answers
	// authentication.k8s.io/v1 TokenReviews for tokens not known otherwise.
	AuthenticationWebhook string
	// AuthorizationConfig is a file with an AuthorizationConfiguration, read
	// again when it changes. It has to name Node and RBAC, without which
	// neither hosts nor controllers may do their work. Empty means these two.
	AuthorizationConfig string

	// EnableAdmissionPlugins and DisableAdmissionPlugins are names of admission
	// plugins beside those that are on by default.
	EnableAdmissionPlugins  []string
	DisableAdmissionPlugins []string
	// AdmissionConfig is a file with an AdmissionConfiguration.
	AdmissionConfig string

	// AuditPolicy is a file with an audit.k8s.io/v1 Policy. Empty means the
	// built-in one: metadata of every change, no bodies, no reads.
	AuditPolicy string
	// AuditWebhook is a kubeconfig of a server that takes audit.k8s.io/v1
	// EventLists. Events are sent in batches; what it does not take is
	// dropped after some tries.
	AuditWebhook string

	// MaxRequestsInFlight and MaxMutatingRequestsInFlight add up to how many
	// requests are served at once; priority and fairness divides them.
	MaxRequestsInFlight         int
	MaxMutatingRequestsInFlight int

	// ReloadInterval is how often EncryptionConfig and AuthenticationConfig are
	// looked at. Zero means DefaultReloadInterval.
	ReloadInterval time.Duration
}

// ownPlugins are on beside upstream's defaults.
var ownPlugins = []string{"NodeRestriction"}

// Validate refuses, by name, what does not exist and files that cannot be used.
// It needs no store and starts nothing.
func (o Options) Validate() error {
	return errors.Join(
		o.validateGates(),
		o.validateRuntimeConfig(),
		o.validatePlugins(),
		o.validateFiles(),
	)
}

func (o Options) validateGates() error {
	if err := utilfeature.DefaultMutableFeatureGate.DeepCopy().SetFromMap(o.FeatureGates); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}

func (o Options) validateRuntimeConfig() error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(o.RuntimeConfig)) {
		if slices.Contains([]string{"api/all", "api/ga", "api/beta", "api/alpha"}, name) {
			continue
		}
		if !served(name) {
			errs = append(errs, fmt.Errorf("runtime configuration: there is no API %q (GROUP/VERSION, or api/all, api/ga, api/beta, api/alpha)", name))
		}
	}
	return errors.Join(errs...)
}

// served says whether this version has the API, on or off.
func served(name string) bool {
	for _, gv := range slices.Concat(legacyscheme.Scheme.PrioritizedVersionsAllGroups(),
		extensionsapiserver.Scheme.PrioritizedVersionsAllGroups(), aggregatorscheme.Scheme.PrioritizedVersionsAllGroups()) {
		if gv.String() == name {
			return true
		}
	}
	return false
}

func (o Options) validatePlugins() error {
	known := options.NewServerRunOptions().Admission.GenericAdmission.Plugins.Registered()
	var errs []error
	for _, name := range slices.Concat(o.EnableAdmissionPlugins, o.DisableAdmissionPlugins) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("there is no admission plugin %q (there are: %s)", name, strings.Join(known, ", ")))
		}
	}
	for _, name := range o.DisableAdmissionPlugins {
		if slices.Contains(ownPlugins, name) {
			errs = append(errs, fmt.Errorf("admission plugin %s keeps nodes apart and cannot be disabled", name))
		}
	}
	return errors.Join(errs...)
}

func (o Options) validateFiles() error {
	var errs []error
	for _, f := range []struct{ what, path string }{
		{"encryption configuration", o.EncryptionConfig},
		{"authentication configuration", o.AuthenticationConfig},
		{"authentication webhook", o.AuthenticationWebhook},
		{"authorization configuration", o.AuthorizationConfig},
		{"admission configuration", o.AdmissionConfig},
		{"audit policy", o.AuditPolicy},
		{"audit webhook", o.AuditWebhook},
	} {
		if f.path == "" {
			continue
		}
		if !filepath.IsAbs(f.path) {
			errs = append(errs, fmt.Errorf("%s: %q is not an absolute path", f.what, f.path))
			continue
		}
		if _, err := os.ReadFile(f.path); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.what, err))
		}
	}
	if o.EncryptionConfig != "" {
		errs = append(errs, private(o.EncryptionConfig))
	}
	if o.AuthorizationConfig != "" {
		errs = append(errs, validateAuthorizers(o.AuthorizationConfig))
	}
	return errors.Join(errs...)
}

// validateAuthorizers refuses a list without the authorizers that hosts and
// controllers need.
func validateAuthorizers(path string) error {
	_, _, err := authorizer.LoadAndValidateFile(path, authorizationcel.NewDefaultCompiler(), sets.New(apiserverconfig.AuthorizerType("Node"), "RBAC"))
	if err != nil {
		return fmt.Errorf("authorization configuration %s: %w", path, err)
	}
	return nil
}

// private refuses a file with keys to which others than its owner have access.
func private(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return nil //nolint:nilerr // told by who reads it
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return fmt.Errorf("encryption configuration: others than the owner have access to %s (mode %04o): chmod 600 it", path, fi.Mode().Perm())
	}
	return nil
}

// assignments is m as upstream's flags have it.
func assignments(m map[string]bool) string {
	var list []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		list = append(list, k+"="+strconv.FormatBool(m[k]))
	}
	return strings.Join(list, ",")
}
