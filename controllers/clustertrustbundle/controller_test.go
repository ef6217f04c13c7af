package clustertrustbundle

import (
	"fmt"
	"strings"
	"testing"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func bundle(name, of string) *certv1.ClusterTrustBundle {
	return &certv1.ClusterTrustBundle{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: certv1.ClusterTrustBundleSpec{SignerName: of, TrustBundle: "old"}}
}

func TestOnlyTheCurrentAuthorityIsPublished(t *testing.T) {
	c := runtimetest.New(t, bundle("kubernetes.io:kube-apiserver-serving:old", signer), bundle("example.com:x:y", "example.com/x"))
	c.Run(t, map[string]runtime.Builder{"clustertrustbundle": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q, []byte("new")) }})
	runtimetest.Eventually(t, func() string {
		l, err := c.CertificatesV1().ClusterTrustBundles().List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 2 {
			return fmt.Sprintf("bundles %v, %v", l, err)
		}
		for _, b := range l.Items {
			if b.Spec.SignerName == signer && (b.Spec.TrustBundle != "new" || !strings.HasPrefix(b.Name, "kubernetes.io:kube-apiserver-serving:")) {
				return fmt.Sprintf("bundle %s holds %q", b.Name, b.Spec.TrustBundle)
			}
		}
		return ""
	})
	c.Settle(t)
	if w := c.Writes(); w != 2 {
		t.Errorf("%d writes, want one creation and one deletion", w)
	}
}
