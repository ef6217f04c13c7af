package apiserver_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"net/http"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/apiserver"
)

func TestAnonymousSeesHealthOnly(t *testing.T) {
	c := start(t)
	for path, want := range map[string]int{
		"/livez":                            http.StatusOK,
		"/readyz":                           http.StatusOK,
		"/healthz":                          http.StatusOK,
		"/version":                          http.StatusUnauthorized,
		"/api":                              http.StatusUnauthorized,
		"/metrics":                          http.StatusUnauthorized,
		"/api/v1/secrets":                   http.StatusUnauthorized,
		apiserver.PathJoin:                  http.StatusUnauthorized,
		"/readyz/tripod":                    http.StatusUnauthorized,
		"/apis/apps/v1":                     http.StatusUnauthorized,
		"/openapi/v3":                       http.StatusUnauthorized,
		"/.well-known/openid-configuration": http.StatusUnauthorized,
	} {
		if got := get(t, c.anonymous(), http.MethodGet, path); got != want {
			t.Errorf("anonymous GET %s: %d, want %d", path, got, want)
		}
	}
}

func TestRBACDeniesByDefault(t *testing.T) {
	c, ctx := start(t), testContext(t)
	nobody := client(t, c.as(t, "nobody"))
	if _, err := nobody.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user without a role listed pods: %v", err)
	}
}

// bootstrapToken makes a join token as controld does and returns its bearer
// form.
func bootstrapToken(t *testing.T, c *cluster, id string, expires time.Time, groups string) string {
	t.Helper()
	const secret = "0123456789abcdef"
	data := map[string]string{
		"token-id": id, "token-secret": secret, "usage-bootstrap-authentication": "true",
		"expiration": expires.UTC().Format(time.RFC3339),
	}
	if groups != "" {
		data["auth-extra-groups"] = groups
	}
	_, err := c.admin(t).CoreV1().Secrets("kube-system").Create(testContext(t), &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + id},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: data,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return id + "." + secret
}

func TestBootstrapTokensMayJoinAndNoMore(t *testing.T) {
	c, ctx := start(t), testContext(t)
	later := time.Now().Add(time.Hour)
	node := c.bearer(bootstrapToken(t, c, "nodeaa", later, ""))
	peer := c.bearer(bootstrapToken(t, c, "peeraa", later, apiserver.GroupPeerBootstrappers))
	expired := c.bearer(bootstrapToken(t, c, "pastaa", time.Now().Add(-time.Hour), apiserver.GroupPeerBootstrappers))

	eventually(t, "a peer's token reaches the join handler", func() error {
		if got := get(t, peer, http.MethodPost, apiserver.PathJoin); got != http.StatusOK {
			return fmt.Errorf("it got %d", got)
		}
		return nil
	})
	if user := <-c.joined; user != "system:bootstrap:peeraa" {
		t.Errorf("the handler saw user %q", user)
	}
	eventually(t, "a node's token is known, and refused", func() error {
		if got := get(t, node, http.MethodPost, apiserver.PathJoin); got != http.StatusForbidden {
			return fmt.Errorf("it got %d", got)
		}
		return nil
	})
	if got := get(t, expired, http.MethodPost, apiserver.PathJoin); got != http.StatusUnauthorized {
		t.Errorf("an expired token got %d", got)
	}
	if got := get(t, c.bearer("nodeaa.fedcba9876543210"), http.MethodPost, apiserver.PathJoin); got != http.StatusUnauthorized {
		t.Errorf("a wrong secret got %d", got)
	}

	csrs := client(t, node).CertificatesV1().CertificateSigningRequests()
	if _, err := csrs.Create(ctx, nodeCSR(t, "n1"), metav1.CreateOptions{}); err != nil {
		t.Errorf("a node's token may not ask for a certificate: %v", err)
	}
	if _, err := client(t, node).CoreV1().Nodes().List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a node's token listed nodes: %v", err)
	}
}

func nodeCSR(t *testing.T, name string) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject: pkix.Name{CommonName: "system:node:" + name, Organization: []string{"system:nodes"}},
	}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: certificatesv1.KubeAPIServerClientKubeletSignerName,
			Usages:     []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature, certificatesv1.UsageClientAuth},
		},
	}
}

func TestNodeMayChangeItselfOnly(t *testing.T) {
	c, ctx := start(t), testContext(t)
	n1 := client(t, c.as(t, "system:node:n1", "system:nodes"))
	node := func(name string) *corev1.Node { return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}} }
	if _, err := n1.CoreV1().Nodes().Create(ctx, node("n1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := n1.CoreV1().Nodes().Create(ctx, node("n2"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("n1 registered n2: %v", err)
	}
	// What its dataplane and pod network read.
	if _, err := n1.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("n1 may not list services: %v", err)
	}
	if _, err := n1.DiscoveryV1().EndpointSlices("").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("n1 may not list endpoint slices: %v", err)
	}
	if _, err := n1.CoreV1().Nodes().List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("n1 may not list nodes: %v", err)
	}
	if _, err := n1.CoreV1().Secrets("kube-system").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("n1 listed secrets: %v", err)
	}
}
