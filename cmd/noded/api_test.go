package main

import (
	"crypto/tls"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/nodeagent/bootstrap"
	"github.com/tripod-cluster/tripod/nodeagent/peers"
	"github.com/tripod-cluster/tripod/pki"
)

// collection is what the API has at one path.
type collection struct {
	kind, version string
	items         []any
}

// joined serves an API that has the Services and slices given and is read-only, and makes state that of a node that
// joined its cluster.
func joined(t *testing.T, state string, services []corev1.Service, slices []discoveryv1.EndpointSlice) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	has := map[string]collection{
		"/api/v1/services": {kind: "Service", version: "v1"},
		"/api/v1/nodes":    {kind: "Node", version: "v1"},
		"/api/v1/pods":     {kind: "Pod", version: "v1"},
		"/apis/discovery.k8s.io/v1/endpointslices":                    {kind: "EndpointSlice", version: "discovery.k8s.io/v1"},
		"/apis/discovery.k8s.io/v1/namespaces/default/endpointslices": {kind: "EndpointSlice", version: "discovery.k8s.io/v1"},
	}
	add := func(path string, o any) {
		c := has[path]
		c.items = append(c.items, o)
		has[path] = c
	}
	for _, s := range services {
		s.TypeMeta = metav1.TypeMeta{Kind: "Service", APIVersion: "v1"}
		add("/api/v1/services", s)
	}
	for _, s := range slices {
		s.TypeMeta = metav1.TypeMeta{Kind: "EndpointSlice", APIVersion: "discovery.k8s.io/v1"}
		add("/apis/discovery.k8s.io/v1/endpointslices", s)
	}
	now := time.Now()
	ca, err := pki.NewAuthority("reload", now)
	must(err)
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{pki.ServerName}}, now)
	must(err)
	pair, err := tls.X509KeyPair(cert, key)
	must(err)
	ended := make(chan struct{})
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, has, ended)
	}))
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{pair}}
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(func() {
		close(ended)
		srv.CloseClientConnections()
		srv.Close()
	})

	paths := bootstrap.Paths{Root: state}
	cert, key, err = ca.Issue(pki.Leaf{CommonName: bootstrap.UserPrefix + "n1", Organizations: []string{bootstrap.NodesGroup}, Client: true}, now)
	must(err)
	must(os.MkdirAll(filepath.Dir(paths.ClientCert()), 0o700))
	must(os.WriteFile(paths.CA(), ca.CertPEM(), 0o600))
	must(os.WriteFile(paths.ClientCert(), append(cert, key...), 0o600))
	set, err := peers.Open(paths.Peers(), srv.Listener.Addr().String())
	must(err)
	must(set.Save())
}

// answer is the whole API: lists, watches that begin with what there is and then are silent, and nothing else.
func answer(w http.ResponseWriter, r *http.Request, has map[string]collection, ended <-chan struct{}) {
	if r.URL.Path == "/readyz" {
		return
	}
	w.Header().Set("Content-Type", "application/json")
	e := json.NewEncoder(w)
	c, ok := has[r.URL.Path]
	if !ok || r.Method != http.MethodGet {
		w.WriteHeader(http.StatusNotFound)
		_ = e.Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure,
			Reason: metav1.StatusReasonNotFound, Code: http.StatusNotFound, Message: "the API of this test has no " + r.URL.Path})
		return
	}
	if q := r.URL.Query(); q.Get("watch") == "" {
		_ = e.Encode(map[string]any{"kind": c.kind + "List", "apiVersion": c.version, "metadata": map[string]any{"resourceVersion": "1"}, "items": c.items})
		return
	} else if q.Get("sendInitialEvents") == "true" {
		for _, o := range c.items {
			_ = e.Encode(map[string]any{"type": "ADDED", "object": o})
		}
		_ = e.Encode(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": c.kind, "apiVersion": c.version,
			"metadata": map[string]any{"resourceVersion": "1", "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}})
	}
	if f, ok := w.(http.Flusher); ok {
		f.Flush()
	}
	select {
	case <-r.Context().Done():
	case <-ended:
	}
}
