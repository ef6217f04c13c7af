package volumes

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ktesting "k8s.io/client-go/testing"
)

func block(s string) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte(s)}))
}

func bundle(name, signer, text string, labels map[string]string) *certificatesv1.ClusterTrustBundle {
	return &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: text},
	}
}

// withBundles serves lists as the API does, by the signer too.
func (r *rig) withBundles(t *testing.T, bundles ...*certificatesv1.ClusterTrustBundle) {
	t.Helper()
	for _, b := range bundles {
		if _, err := r.client.CertificatesV1().ClusterTrustBundles().Create(t.Context(), b, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	r.client.PrependReactor("list", "clustertrustbundles", func(a ktesting.Action) (bool, runtime.Object, error) {
		by := a.(ktesting.ListAction).GetListRestrictions()
		out := &certificatesv1.ClusterTrustBundleList{}
		for _, b := range bundles {
			if by.Labels.Matches(labelSet(b.Labels)) && by.Fields.Matches(labelSet{"spec.signerName": b.Spec.SignerName}) {
				out.Items = append(out.Items, *b)
			}
		}
		return true, out, nil
	})
}

type labelSet map[string]string

func (s labelSet) Has(k string) bool              { _, ok := s[k]; return ok }
func (s labelSet) Get(k string) string            { return s[k] }
func (s labelSet) Lookup(k string) (string, bool) { v, ok := s[k]; return v, ok }

func TestTrustBundles(t *testing.T) {
	signer, yes := "example.com/ca", true
	name := func(s string) *string { return &s }
	for what, c := range map[string]struct {
		source v1.ClusterTrustBundleProjection
		want   string
		err    string
	}{
		"by name, without what stands around": {source: v1.ClusterTrustBundleProjection{Name: name("one")}, want: block("a") + block("b")},
		"by signer, each once":                {source: v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: &metav1.LabelSelector{}}, want: block("b") + block("c")},
		"by signer and labels":                {source: v1.ClusterTrustBundleProjection{SignerName: &signer, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"k": "v"}}}, want: block("c")},
		"no selector matches none":            {source: v1.ClusterTrustBundleProjection{SignerName: &signer}, err: "not found"},
		"none is there":                       {source: v1.ClusterTrustBundleProjection{Name: name("none")}, err: `"none" not found`},
		"none need be there":                  {source: v1.ClusterTrustBundleProjection{Name: name("none"), Optional: &yes}},
		"none of the signer need be there":    {source: v1.ClusterTrustBundleProjection{SignerName: &signer, Optional: &yes}},
	} {
		t.Run(what, func(t *testing.T) {
			r := newRig(t)
			r.withBundles(t, bundle("one", "", "# both\n"+block("b")+"between\n"+block("a")+block("b"), nil),
				bundle("ca:1", signer, block("b")+block("b"), nil), bundle("ca:2", signer, block("c")+block("c"), map[string]string{"k": "v"}))
			c.source.Path = "roots.pem"
			p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ClusterTrustBundle: &c.source}}}}})
			err := r.Prepare(t.Context(), p)
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Fatalf("got %v, want %q", err, c.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(r.volumeDir(p.UID, "v"), "roots.pem"))
			if err != nil || string(got) != c.want {
				t.Errorf("got %q, %v, want %q", got, err, c.want)
			}
		})
	}
}

// certified has a pod with a certificate's volume, and what a signer sees of it.
type certified struct {
	*rig
	pod *v1.Pod
}

func newCertified(t *testing.T) certified {
	r := newRig(t)
	p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{
		PodCertificate: &v1.PodCertificateProjection{SignerName: "example.com/s", KeyType: "ED25519", CredentialBundlePath: "both.pem", KeyPath: "key.pem", CertificateChainPath: "chain.pem"},
	}}}}})
	if err := r.client.Tracker().Add(&v1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "ns", UID: "sa-1"}}); err != nil {
		t.Fatal(err)
	}
	r.client.PrependReactor("get", "nodes", func(ktesting.Action) (bool, runtime.Object, error) {
		return true, &v1.Node{ObjectMeta: metav1.ObjectMeta{UID: "node-1"}}, nil
	})
	n := 0
	r.client.PrependReactor("create", "podcertificaterequests", func(a ktesting.Action) (bool, runtime.Object, error) {
		n++
		pcr := a.(ktesting.CreateAction).GetObject().(*certificatesv1.PodCertificateRequest)
		pcr.Name = fmt.Sprintf("%s%d", pcr.GenerateName, n)
		return false, nil, nil
	})
	return certified{r, p}
}

func (c certified) request(t *testing.T, name string) *certificatesv1.PodCertificateRequest {
	t.Helper()
	pcr, err := c.client.CertificatesV1().PodCertificateRequests("ns").Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pcr
}

func (c certified) answer(t *testing.T, name, condition, chain string, renew time.Time) {
	t.Helper()
	pcr := c.request(t, name)
	pcr.Status.Conditions = []metav1.Condition{{Type: condition, Status: "True", Reason: "R", Message: "M"}}
	pcr.Status.CertificateChain = chain
	pcr.Status.BeginRefreshAt = &metav1.Time{Time: renew}
	if _, err := c.client.CertificatesV1().PodCertificateRequests("ns").UpdateStatus(t.Context(), pcr, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c certified) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(c.volumeDir(c.pod.UID, "v"), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestPodCertificateIsAskedForAndShown(t *testing.T) {
	c := newCertified(t)
	for range 2 { // it waits, and asks once
		if err := c.Prepare(t.Context(), c.pod); err == nil || !strings.Contains(err.Error(), `"example.com/s" has not answered PodCertificateRequest ns/req-1`) {
			t.Fatalf("without an answer: %v", err)
		}
	}
	pcr := c.request(t, "req-1")
	if s := pcr.Spec; s.PodUID != c.pod.UID || s.ServiceAccountName != "default" || s.ServiceAccountUID != "sa-1" || s.NodeUID != "node-1" || pcr.OwnerReferences[0].UID != c.pod.UID {
		t.Errorf("the request says %+v", pcr)
	}
	req, err := x509.ParseCertificateRequest(pcr.Spec.StubPKCS10Request)
	if err != nil || req.CheckSignature() != nil {
		t.Fatalf("the request is not signed by its key: %v", err)
	}
	c.answer(t, "req-1", certificatesv1.PodCertificateRequestConditionTypeIssued, "noise\n"+block("leaf"), time.Now().Add(time.Hour))
	if err := c.Prepare(t.Context(), c.pod); err != nil {
		t.Fatal(err)
	}
	if c.read(t, "chain.pem") != block("leaf") || c.read(t, "both.pem") != c.read(t, "key.pem")+block("leaf") {
		t.Errorf("the files hold %q and %q", c.read(t, "chain.pem"), c.read(t, "both.pem"))
	}
	der, _ := pem.Decode([]byte(c.read(t, "key.pem")))
	key, err := x509.ParsePKCS8PrivateKey(der.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if !key.(ed25519.PrivateKey).Public().(ed25519.PublicKey).Equal(req.PublicKey) {
		t.Error("the key is not the one of the request")
	}
}

func TestPodCertificateIsRenewed(t *testing.T) {
	c := newCertified(t)
	now := time.Now()
	c.certificates.now = func() time.Time { return now }
	_ = c.Prepare(t.Context(), c.pod)
	c.answer(t, "req-1", certificatesv1.PodCertificateRequestConditionTypeIssued, block("first"), now.Add(time.Hour))
	if err := c.Prepare(t.Context(), c.pod); err != nil {
		t.Fatal(err)
	}
	key := c.read(t, "key.pem")
	now = now.Add(time.Hour + renewalSpread)
	if err := c.Refresh(t.Context(), c.pod); err != nil {
		t.Fatal(err)
	}
	if c.read(t, "chain.pem") != block("first") {
		t.Error("the certificate went before the new one came")
	}
	c.answer(t, "req-2", certificatesv1.PodCertificateRequestConditionTypeIssued, block("second"), now.Add(time.Hour))
	if err := c.Refresh(t.Context(), c.pod); err != nil {
		t.Fatal(err)
	}
	if c.read(t, "chain.pem") != block("second") || c.read(t, "key.pem") == key {
		t.Error("the new certificate, or its key, is not in the volume")
	}
}

func TestPodCertificateRefusedIsForGood(t *testing.T) {
	c := newCertified(t)
	_ = c.Prepare(t.Context(), c.pod)
	c.answer(t, "req-1", certificatesv1.PodCertificateRequestConditionTypeDenied, "", time.Now())
	for range 2 {
		if err := c.Prepare(t.Context(), c.pod); err == nil || !isDefinite(err) || !strings.Contains(err.Error(), "Denied: R: M") {
			t.Fatalf("got %v", err)
		}
	}
	if list, err := c.client.CertificatesV1().PodCertificateRequests("ns").List(context.Background(), metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
		t.Errorf("asked again: %d requests, %v", len(list.Items), err)
	}
}

func TestPodCertificateAsksAgainWhenTheRequestIsGone(t *testing.T) {
	c := newCertified(t)
	_ = c.Prepare(t.Context(), c.pod)
	if err := c.client.CertificatesV1().PodCertificateRequests("ns").Delete(t.Context(), "req-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_ = c.Prepare(t.Context(), c.pod)
	_ = c.Prepare(t.Context(), c.pod)
	if _, err := c.client.CertificatesV1().PodCertificateRequests("ns").Get(t.Context(), "req-2", metav1.GetOptions{}); apierrors.IsNotFound(err) {
		t.Error("no second request")
	}
}

func TestKeyTypes(t *testing.T) {
	for _, kind := range []string{"RSA3072", "ECDSAP256", "ECDSAP384", "ECDSAP521", "ED25519"} {
		key, request, err := newKey(kind)
		if err != nil {
			t.Fatal(kind, err)
		}
		req, err := x509.ParseCertificateRequest(request)
		if err != nil || req.CheckSignature() != nil || len(req.RawSubject) > 2 {
			t.Errorf("%s: request %v", kind, err)
		}
		if !bytes.HasPrefix(key, []byte("-----BEGIN PRIVATE KEY-----\n")) {
			t.Errorf("%s: the key is not PKCS#8 in PEM", kind)
		}
	}
	if _, _, err := newKey("DSA"); err == nil || !isDefinite(err) {
		t.Errorf("an unknown type: %v", err)
	}
}
