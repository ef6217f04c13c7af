package apiserver

import (
	"strings"
	"testing"
)

// TestAnonymousRuleIsAddedUnlessThereIsOne: upstream would let requests without
// credentials in everywhere.
func TestAnonymousRuleIsAddedUnlessThereIsOne(t *testing.T) {
	const head = "apiVersion: apiserver.config.k8s.io/v1\nkind: AuthenticationConfiguration\n"
	for name, x := range map[string]struct{ own, want, err string }{
		"ours":             {head, "path: /livez", ""},
		"beside an issuer": {head + "jwt: [{issuer: {url: https://x}}]\n", "path: /livez", ""},
		"the issuer stays": {head + "jwt: [{issuer: {url: https://x}}]\n", "url: https://x", ""},
		"the operator's":   {head + "anonymous: {enabled: false}\n", "anonymous:\n  enabled: false\n", ""},
		"another kind":     {"kind: Pod\n", "", "its kind is Pod, not AuthenticationConfiguration"},
		"no YAML":          {"{", "", "yaml"},
		"a key twice":      {head + "jwt: []\njwt: []\n", "", `"jwt" already`},
		"nothing":          {"", "", "not AuthenticationConfiguration"},
	} {
		got, err := mergeAuthentication([]byte(x.own))
		if x.err == "" && (err != nil || !strings.Contains(string(got), x.want)) || x.err != "" && (err == nil || !strings.Contains(err.Error(), x.err)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
