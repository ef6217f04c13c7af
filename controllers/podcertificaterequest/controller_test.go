package podcertificaterequest

import (
	"fmt"
	"testing"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func request(name string, old time.Duration) *certv1.PodCertificateRequest {
	return &certv1.PodCertificateRequest{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", CreationTimestamp: metav1.NewTime(time.Now().Add(-old))}}
}

func TestOldRequestsGo(t *testing.T) {
	c := runtimetest.New(t, request("old", age+time.Second), request("young", time.Minute))
	c.Run(t, map[string]runtime.Builder{"podcertificaterequest": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
	runtimetest.Eventually(t, func() string {
		l, err := c.CertificatesV1().PodCertificateRequests("default").List(t.Context(), metav1.ListOptions{})
		if err != nil || len(l.Items) != 1 || l.Items[0].Name != "young" {
			return fmt.Sprintf("left: %v, %v", l, err)
		}
		return ""
	})
}
