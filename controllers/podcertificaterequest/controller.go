package podcertificaterequest

import (
	"context"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certlisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// age is how old a request becomes.
const age = 15 * time.Minute

type controller struct {
	client   kubernetes.Interface
	requests certlisters.PodCertificateRequestLister
	clock    clock.PassiveClock
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	requests := d.Informers.Certificates().V1().PodCertificateRequests()
	c := &controller{d.Client, requests.Lister(), d.Clock}
	return runtime.Controller{
		Sources:   []runtime.Source{runtime.Own(q, requests.Informer())},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	r, err := c.requests.PodCertificateRequests(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	if left := r.CreationTimestamp.Add(age).Sub(c.clock.Now()); left > 0 {
		return left, nil
	}
	err = c.client.CertificatesV1().PodCertificateRequests(namespace).Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(r.UID))})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return 0, fmt.Errorf("delete pod certificate request %s: %w", key, err)
	}
	return 0, nil
}
