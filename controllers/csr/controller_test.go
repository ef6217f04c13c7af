package csr

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"testing"
	"time"

	authzv1 "k8s.io/api/authorization/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	clienttesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func newCA(t *testing.T) (*ecdsa.PrivateKey, []byte, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tpl := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(90 * 24 * time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, tpl, tpl, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	return key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), cert
}

type option func(*certv1.CertificateSigningRequest, *x509.CertificateRequest)

// request makes a request for a client certificate of node n1 by a join token.
func request(t *testing.T, name string, options ...option) *certv1.CertificateSigningRequest {
	t.Helper()
	csr := &certv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: certv1.CertificateSigningRequestSpec{
			SignerName: certv1.KubeAPIServerClientKubeletSignerName, Username: "system:bootstrap:abcdef",
			Usages: []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageClientAuth},
		},
	}
	tpl := &x509.CertificateRequest{Subject: pkix.Name{CommonName: "system:node:n1", Organization: []string{"system:nodes"}}}
	for _, o := range options {
		o(csr, tpl)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, tpl, key)
	if err != nil {
		t.Fatal(err)
	}
	csr.Spec.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der})
	return csr
}

func user(name string, groups ...string) option {
	return func(c *certv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
		c.Spec.Username, c.Spec.Groups = name, groups
	}
}

func subject(cn string, org ...string) option {
	return func(_ *certv1.CertificateSigningRequest, r *x509.CertificateRequest) {
		r.Subject = pkix.Name{CommonName: cn, Organization: org}
	}
}

func serving(names []string, ips ...string) option {
	return func(c *certv1.CertificateSigningRequest, r *x509.CertificateRequest) {
		c.Spec.SignerName = certv1.KubeletServingSignerName
		c.Spec.Usages = []certv1.KeyUsage{certv1.UsageDigitalSignature, certv1.UsageServerAuth}
		r.DNSNames = names
		for _, ip := range ips {
			r.IPAddresses = append(r.IPAddresses, net.ParseIP(ip))
		}
	}
}

func admin(approved bool) option {
	return func(c *certv1.CertificateSigningRequest, r *x509.CertificateRequest) {
		c.Spec.SignerName = certv1.KubeAPIServerClientSignerName
		r.Subject = pkix.Name{CommonName: "alice"}
		if approved {
			c.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: certv1.CertificateApproved, Status: corev1.ConditionTrue, LastUpdateTime: metav1.Now()}}
		}
	}
}

func node(name string, ready corev1.ConditionStatus, addresses ...corev1.NodeAddress) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Addresses: addresses, Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}}}
}

func start(t *testing.T, c *runtimetest.Cluster) *x509.Certificate {
	key, caPEM, ca := newCA(t)
	// The authorizer: join tokens may nodeclient, nodes may selfnodeclient.
	c.PrependReactor("create", "subjectaccessreviews", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		r := a.(clienttesting.CreateAction).GetObject().(*authzv1.SubjectAccessReview).DeepCopy()
		want := map[string]string{"system:bootstrap:abcdef": "nodeclient", "system:node:n1": "selfnodeclient", "system:node:n2": "selfnodeclient"}
		r.Status.Allowed = want[r.Spec.User] == r.Spec.ResourceAttributes.Subresource
		return true, r, nil
	})
	c.Run(t, map[string]runtime.Builder{"csr": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, key, caPEM, 24*time.Hour)
	}})
	return ca
}

func get(t *testing.T, c *runtimetest.Cluster, name string) *certv1.CertificateSigningRequest {
	t.Helper()
	csr, err := c.CertificatesV1().CertificateSigningRequests().Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return csr
}

func TestWhatIsApprovedAndSigned(t *testing.T) {
	n2 := node("n2", corev1.ConditionTrue, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}, corev1.NodeAddress{Type: corev1.NodeHostName, Address: "host2"})
	good := []*certv1.CertificateSigningRequest{
		request(t, "join"),
		request(t, "renew", user("system:node:n1", "system:nodes")),
		request(t, "serve", user("system:node:n2", "system:nodes"), subject("system:node:n2", "system:nodes"), serving([]string{"host2", "n2"}, "10.0.0.2")),
		request(t, "approved-by-a-person", admin(true)),
	}
	left := []*certv1.CertificateSigningRequest{
		request(t, "stranger", user("mallory")),
		request(t, "another-node", user("system:node:n1", "system:nodes"), subject("system:node:n2", "system:nodes")),
		request(t, "not-a-node", subject("admin", "system:masters")),
		request(t, "more-than-a-node", subject("system:node:n1", "system:nodes", "system:masters")),
		request(t, "with-names", func(_ *certv1.CertificateSigningRequest, r *x509.CertificateRequest) {
			r.DNSNames = []string{"kubernetes"}
		}),
		request(t, "serve-for-another", user("system:node:n1", "system:nodes"), subject("system:node:n2", "system:nodes"), serving([]string{"n2"})),
		request(t, "serve-too-much", user("system:node:n2", "system:nodes"), subject("system:node:n2", "system:nodes"), serving([]string{"n2", "kubernetes"})),
		request(t, "serve-foreign-address", user("system:node:n2", "system:nodes"), subject("system:node:n2", "system:nodes"), serving(nil, "10.0.0.3")),
		request(t, "serve-without-node", user("system:node:n1", "system:nodes"), serving([]string{"n1"})),
		request(t, "for-a-person", admin(false)),
		request(t, "other-signer", func(c *certv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			c.Spec.SignerName = "example.com/x"
		}),
		request(t, "wrong-usage", func(c *certv1.CertificateSigningRequest, _ *x509.CertificateRequest) {
			c.Spec.Usages = append(c.Spec.Usages, certv1.UsageCertSign)
		}),
	}
	objects := []apiruntime.Object{n2}
	for _, r := range append(good, left...) {
		objects = append(objects, r)
	}
	c := runtimetest.New(t, objects...)
	ca := start(t, c)
	for _, r := range good {
		runtimetest.Eventually(t, func() string {
			if len(get(t, c, r.Name).Status.Certificate) == 0 {
				return "no certificate for " + r.Name
			}
			return ""
		})
		block, _ := pem.Decode(get(t, c, r.Name).Status.Certificate)
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		roots := x509.NewCertPool()
		roots.AddCert(ca)
		if _, err := cert.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err != nil {
			t.Errorf("%s: %v", r.Name, err)
		}
		if life := time.Until(cert.NotAfter); life > 24*time.Hour || life < 23*time.Hour || cert.IsCA {
			t.Errorf("%s: lives %s, CA %v", r.Name, life, cert.IsCA)
		}
	}
	// A denied one comes last in the queue: then the others have been looked at.
	taken := request(t, "name-taken", subject("system:node:n2", "system:nodes"))
	if _, err := c.CertificatesV1().CertificateSigningRequests().Create(t.Context(), taken, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		if o := outcomeOf(get(t, c, "name-taken")); !o.denied {
			return fmt.Sprintf("the name of a living node: %+v", o)
		}
		return ""
	})
	for _, r := range left {
		if got := get(t, c, r.Name); len(got.Status.Certificate) > 0 || outcomeOf(got).approved {
			t.Errorf("%s was approved", r.Name)
		}
	}
	// The address appears: the serving certificate follows.
	n2.Status.Addresses = append(n2.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: "10.0.0.3"})
	if _, err := c.CoreV1().Nodes().UpdateStatus(t.Context(), n2, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		if len(get(t, c, "serve-foreign-address").Status.Certificate) == 0 {
			return "no serving certificate after the node reported the address"
		}
		return ""
	})
}

func TestExpiry(t *testing.T) {
	now := time.Unix(1e9, 0)
	csr := &certv1.CertificateSigningRequest{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: metav1.NewTime(now)}}
	if got := expiresIn(csr, now); got != keepPending {
		t.Errorf("pending: %s", got)
	}
	csr.Status.Conditions = []certv1.CertificateSigningRequestCondition{{Type: certv1.CertificateApproved, LastUpdateTime: metav1.NewTime(now.Add(time.Minute))}}
	if got := expiresIn(csr, now); got != keepPending {
		t.Errorf("approved without a certificate: %s", got)
	}
	csr.Status.Certificate = []byte("x")
	if got := expiresIn(csr, now); got != keepApproved+time.Minute {
		t.Errorf("approved: %s", got)
	}
	csr.Status.Conditions[0].Type = certv1.CertificateDenied
	if got := expiresIn(csr, now.Add(2*time.Hour)); got > 0 {
		t.Errorf("denied long ago: %s", got)
	}
}

func TestLifetime(t *testing.T) {
	a := &authority{maxAge: 24 * time.Hour}
	seconds := func(n int32) *int32 { return &n }
	for asked, want := range map[*int32]time.Duration{nil: 24 * time.Hour, seconds(3600): time.Hour, seconds(1 << 30): 24 * time.Hour, seconds(1): 10 * time.Minute} {
		if got := a.lifetime(asked); got != want {
			t.Errorf("%v: %s, want %s", asked, got, want)
		}
	}
}

func TestKeyMustFitCertificate(t *testing.T) {
	_, certPEM, _ := newCA(t)
	other, _, _ := newCA(t)
	if _, err := newAuthority(other, certPEM, time.Hour); err == nil {
		t.Error("a key of another CA was accepted")
	}
}
