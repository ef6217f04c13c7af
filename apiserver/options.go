package apiserver

import (
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	encryptioncontroller "k8s.io/apiserver/pkg/server/options/encryptionconfig/controller"
	"k8s.io/component-base/featuregate"
	"k8s.io/kubernetes/cmd/kube-apiserver/app/options"
	"k8s.io/kubernetes/plugin/pkg/admission/defaulttolerationseconds"
)

// The time a stopping server gives to its clients. Their sum, with the two
// seconds that upstream waits for connections to close, stays below stopLimit.
const (
	shutdownDelay      = time.Second
	watchDrain         = 3 * time.Second
	stopLimit          = 10 * time.Second
	etcdEndpointScheme = "unix://"
)

// gates are set before the operator's own: peers have the same version, and
// would look for each other through gRPC storage.
const gates = "UnknownVersionInteroperabilityProxy=false"

// buildOptions fills kube-apiserver's options. What is not set here has
// upstream's default.
func buildOptions(s *settings) (*options.ServerRunOptions, error) {
	files, err := writeRuntimeFiles(s)
	if err != nil {
		return nil, err
	}
	if err := setEvictionWait(s.PodEvictionWait); err != nil {
		return nil, err
	}
	o := options.NewServerRunOptions()

	o.GenericServerRunOptions.AdvertiseAddress = s.advertise
	o.GenericServerRunOptions.ExternalHost = s.AdvertiseAddress
	o.GenericServerRunOptions.ShutdownDelayDuration = shutdownDelay
	o.GenericServerRunOptions.ShutdownSendRetryAfter = true
	o.GenericServerRunOptions.ShutdownWatchTerminationGracePeriod = watchDrain
	o.SecureServing.BindAddress = s.bind
	o.SecureServing.BindPort = s.Port
	o.SecureServing.ServerCert.CertKey.CertFile = s.PKI.APIServer().Cert
	o.SecureServing.ServerCert.CertKey.KeyFile = s.PKI.APIServer().Key

	o.Etcd.StorageConfig.Transport.ServerList = []string{etcdEndpointScheme + s.EtcdSocket}
	o.Etcd.StorageConfig.CompactionInterval = 0 // done by the backend
	o.Etcd.SkipHealthEndpoints = true           // readyz asks the store itself
	o.Etcd.EncryptionProviderConfigFilepath = s.EncryptionConfig
	o.Etcd.EncryptionProviderConfigAutomaticReload = s.EncryptionConfig != ""
	encryptioncontroller.EncryptionConfigFileChangePollDuration = s.ReloadInterval

	o.Authentication.AuthenticationConfigFile = files.authentication
	o.Authentication.WebHook.ConfigFile = s.AuthenticationWebhook
	o.Authentication.WebHook.Version = "v1"
	o.Authentication.BootstrapToken.Enable = true
	o.Authentication.ClientCert.ClientCA = s.PKI.CACert()
	o.Authentication.RequestHeader.ClientCAFile = s.PKI.FrontProxyCACert()
	o.Authentication.RequestHeader.AllowedNames = []string{"front-proxy-client"}
	o.Authentication.RequestHeader.UsernameHeaders = []string{"X-Remote-User"}
	o.Authentication.RequestHeader.UIDHeaders = []string{"X-Remote-Uid"}
	o.Authentication.RequestHeader.GroupHeaders = []string{"X-Remote-Group"}
	o.Authentication.RequestHeader.ExtraHeaderPrefixes = []string{"X-Remote-Extra-"}
	o.Authentication.ServiceAccounts.Issuers = []string{Issuer}
	o.Authentication.ServiceAccounts.KeyFiles = []string{s.PKI.SAPub()}
	o.ServiceAccountSigningKeyFile = s.PKI.SAKey()
	if s.AuthorizationConfig != "" {
		o.Authorization.AuthorizationConfigurationFile = s.AuthorizationConfig
	} else {
		o.Authorization.Modes = []string{"Node", "RBAC"}
	}
	o.Admission.GenericAdmission.EnablePlugins = slices.Concat(ownPlugins, s.EnableAdmissionPlugins)
	o.Admission.GenericAdmission.DisablePlugins = s.DisableAdmissionPlugins
	o.Admission.GenericAdmission.ConfigFile = s.AdmissionConfig

	// Upstream's own where the operator says nothing.
	for _, l := range []struct {
		limit *int
		own   int
	}{
		{&o.GenericServerRunOptions.MaxRequestsInFlight, s.MaxRequestsInFlight},
		{&o.GenericServerRunOptions.MaxMutatingRequestsInFlight, s.MaxMutatingRequestsInFlight},
	} {
		if l.own != 0 {
			*l.limit = l.own
		}
	}
	if err := o.APIEnablement.RuntimeConfig.Set(assignments(s.RuntimeConfig)); err != nil {
		return nil, fmt.Errorf("runtime configuration: %w", err)
	}

	o.ProxyClientCertFile = s.PKI.FrontProxyClient().Cert
	o.ProxyClientKeyFile = s.PKI.FrontProxyClient().Key
	// Aggregated servers and webhooks are dialled at their pods: a peer's host
	// need not run noded, and then no ClusterIP works on it.
	o.EnableAggregatorRouting = true

	o.KubeletConfig.PreferredAddressTypes = []string{"InternalIP", "ExternalIP", "Hostname"}
	o.KubeletConfig.TLSClientConfig.CAFile = s.PKI.CACert()
	o.KubeletConfig.TLSClientConfig.CertFile = s.PKI.KubeletClient().Cert
	o.KubeletConfig.TLSClientConfig.KeyFile = s.PKI.KubeletClient().Key

	o.AllowPrivileged = true
	o.ServiceClusterIPRanges = s.serviceCIDR.String()
	o.ServiceNodePortRange = s.nodePorts

	if s.AuditLog != "" || s.AuditWebhook != "" {
		o.Audit.PolicyFile = files.auditPolicy
	}
	o.Audit.WebhookOptions.ConfigFile = s.AuditWebhook
	if s.AuditLog != "" {
		o.Audit.LogOptions.Path = s.AuditLog
		o.Audit.LogOptions.MaxSize = 100 // MB
		o.Audit.LogOptions.MaxBackups = 10
		o.Audit.LogOptions.MaxAge = 30 // days
		// A write does not wait for the log's disk.
		o.Audit.LogOptions.BatchOptions.Mode = "batch"
	}
	return o, setGates(o, s.FeatureGates)
}

func setGates(o *options.ServerRunOptions, own map[string]bool) error {
	registry := o.GenericServerRunOptions.ComponentGlobalsRegistry
	gate, ok := registry.FeatureGateFor(o.GenericServerRunOptions.ComponentName).(featuregate.MutableVersionedFeatureGate)
	if !ok {
		return fmt.Errorf("feature gates of %s cannot be set", o.GenericServerRunOptions.ComponentName)
	}
	if err := gate.Set(gates); err != nil {
		return fmt.Errorf("feature gates %q: %w", gates, err)
	}
	if err := gate.SetFromMap(own); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	if err := registry.Set(); err != nil {
		return fmt.Errorf("feature gates: %w", err)
	}
	return nil
}

// setEvictionWait sets what the admission plugin adds to pods. Upstream keeps it in
// variables that only flags reach.
func setEvictionWait(wait *time.Duration) error {
	if wait == nil {
		return nil
	}
	fs := pflag.NewFlagSet("tolerations", pflag.ContinueOnError)
	defaulttolerationseconds.RegisterFlags(fs)
	seconds := strconv.FormatInt(int64(wait.Seconds()), 10)
	for _, name := range []string{"default-not-ready-toleration-seconds", "default-unreachable-toleration-seconds"} {
		if err := fs.Set(name, seconds); err != nil {
			return fmt.Errorf("set how long pods stay on a lost node: %w", err)
		}
	}
	return nil
}
