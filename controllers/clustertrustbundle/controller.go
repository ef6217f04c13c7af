package clustertrustbundle

import (
	"context"
	"crypto/sha256"
	"fmt"
	"strings"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	certlisters "k8s.io/client-go/listers/certificates/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const signer = "kubernetes.io/kube-apiserver-serving"

type controller struct {
	client  kubernetes.Interface
	bundles certlisters.ClusterTrustBundleLister
	want    *certv1.ClusterTrustBundle
}

// New builds the controller. caPEM is the authority in PEM.
func New(d runtime.Deps, q runtime.Queue, caPEM []byte) (runtime.Controller, error) {
	bundles := d.Informers.Certificates().V1().ClusterTrustBundles()
	hash := sha256.Sum256(caPEM)
	c := &controller{d.Client, bundles.Lister(), &certv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s:%x", strings.ReplaceAll(signer, "/", ":"), hash[:12])},
		Spec:       certv1.ClusterTrustBundleSpec{SignerName: signer, TrustBundle: string(caPEM)},
	}}
	q.Add(signer)
	return runtime.Controller{
		Workers: 1,
		Sources: []runtime.Source{runtime.Each(bundles.Informer(), func(b *certv1.ClusterTrustBundle) {
			if b.Spec.SignerName == signer {
				q.Add(signer)
			}
		})},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	api := c.client.CertificatesV1().ClusterTrustBundles()
	have, err := c.bundles.Get(c.want.Name)
	switch {
	case apierrors.IsNotFound(err):
		_, err = api.Create(ctx, c.want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			return 0, runtime.Silent(err) // the cache will show it
		}
	case err == nil && have.Spec.TrustBundle != c.want.Spec.TrustBundle:
		next := have.DeepCopy()
		next.Spec.TrustBundle = c.want.Spec.TrustBundle
		_, err = api.Update(ctx, next, metav1.UpdateOptions{})
	}
	if err != nil {
		return 0, fmt.Errorf("publish trust bundle %s: %w", c.want.Name, err)
	}
	all, err := c.bundles.List(labels.Everything())
	if err != nil {
		return 0, err
	}
	for _, b := range all {
		if b.Spec.SignerName != signer || b.Name == c.want.Name {
			continue
		}
		if err := api.Delete(ctx, b.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete old trust bundle %s: %w", b.Name, err)
		}
	}
	return 0, nil
}
