package apiserver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/apiserver"
)

// TestMistakesOfTheOperatorAreNamed: before anything starts.
func TestMistakesOfTheOperatorAreNamed(t *testing.T) {
	file := func(text string, mode os.FileMode) string {
		p := filepath.Join(t.TempDir(), "file.yaml")
		if err := os.WriteFile(p, []byte(text), mode); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for want, o := range map[string]apiserver.Options{
		"":                                      {FeatureGates: map[string]bool{"AllBeta": false}, RuntimeConfig: map[string]bool{"api/beta": true, "v1": true, "apiextensions.k8s.io/v1": true}, EnableAdmissionPlugins: []string{"AlwaysPullImages"}, EncryptionConfig: file("", 0o600)},
		"unrecognized feature gate: Flying":     {FeatureGates: map[string]bool{"Flying": true}},
		`there is no API "apps/v9"`:             {RuntimeConfig: map[string]bool{"apps/v9": true}},
		`there is no API "api/some"`:            {RuntimeConfig: map[string]bool{"api/some": true}},
		`there is no admission plugin "Nobody"`: {DisableAdmissionPlugins: []string{"Nobody"}},
		"NodeRestriction keeps nodes apart":     {DisableAdmissionPlugins: []string{"NodeRestriction"}},
		"chmod 600 it":                          {EncryptionConfig: file("", 0o640)},
		"audit policy: open /nowhere":           {AuditPolicy: "/nowhere"},
		`"here" is not an absolute path`:        {AuditWebhook: "here"},
		"missing required types: [Node]":        {AuthorizationConfig: file("apiVersion: apiserver.config.k8s.io/v1\nkind: AuthorizationConfiguration\nauthorizers: [{type: RBAC, name: rbac}]\n", 0o600)},
	} {
		err := o.Validate()
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

// TestVersionsAreSwitched: the rig turns one on that is off by default, with the
// feature behind it, and one off.
func TestVersionsAreSwitched(t *testing.T) {
	c := start(t)
	_, lists, err := c.admin(t).Discovery().ServerGroupsAndResources()
	if err != nil {
		t.Fatal(err)
	}
	var have []string
	for _, l := range lists {
		for _, r := range l.APIResources {
			have = append(have, l.GroupVersion+" "+r.Name)
		}
	}
	for _, want := range []string{
		"coordination.k8s.io/v1beta1 leasecandidates", "autoscaling/v2 horizontalpodautoscalers", "storagemigration.k8s.io/v1 storageversionmigrations",
		"certificates.k8s.io/v1 certificatesigningrequests", "admissionregistration.k8s.io/v1 mutatingadmissionpolicies",
	} {
		if !slices.Contains(have, want) {
			t.Errorf("%s is not served", want)
		}
	}
	for _, not := range []string{"autoscaling/v1 horizontalpodautoscalers", "certificates.k8s.io/v1alpha1 clustertrustbundles", "resource.k8s.io/v1beta1 resourceclaims"} {
		if slices.Contains(have, not) {
			t.Errorf("%s is served", not)
		}
	}
}
