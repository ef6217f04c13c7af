package rootca

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// ConfigMapName is the name of the published ConfigMap; its key is ca.crt.
const ConfigMapName = "kube-root-ca.crt"

const (
	descriptionAnnotation = "kubernetes.io/description"
	description           = "Contains a CA bundle that can be used to verify the cluster's API server through its internal names, such as kubernetes.default.svc. " +
		"No other use is guaranteed."
)

type controller struct {
	client     kubernetes.Interface
	namespaces corelisters.NamespaceLister
	configMaps corelisters.ConfigMapLister
	data       map[string]string
}

// New builds the controller. caPEM holds the root certificates.
func New(d runtime.Deps, q runtime.Queue, caPEM []byte) (runtime.Controller, error) {
	if len(caPEM) == 0 {
		return runtime.Controller{}, errors.New("no root CA certificate to publish: set RootCA")
	}
	core := d.Informers.Core().V1()
	// Only these ConfigMaps are cached, not all of the cluster.
	configMaps := coreinformers.NewFilteredConfigMapInformer(d.Client, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", ConfigMapName).String()
		})
	c := &controller{d.Client, core.Namespaces().Lister(), corelisters.NewConfigMapLister(configMaps.GetIndexer()), map[string]string{"ca.crt": string(caPEM)}}
	return runtime.Controller{
		Workers: 2,
		Private: []cache.SharedInformer{configMaps},
		Sources: []runtime.Source{
			runtime.Own(q, core.Namespaces().Informer()),
			runtime.On(configMaps, runtime.Handlers[*corev1.ConfigMap]{
				Update: func(_, cm *corev1.ConfigMap) {
					if cm.Name == ConfigMapName {
						q.Add(cm.Namespace)
					}
				},
				Delete: func(cm *corev1.ConfigMap) {
					if cm.Name == ConfigMapName {
						q.Add(cm.Namespace)
					}
				},
			}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	ns, err := c.namespaces.Get(key)
	if apierrors.IsNotFound(err) || (err == nil && ns.Status.Phase == corev1.NamespaceTerminating) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	cm, err := c.configMaps.ConfigMaps(key).Get(ConfigMapName)
	switch {
	case apierrors.IsNotFound(err):
		_, err = c.client.CoreV1().ConfigMaps(key).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{
				Name: ConfigMapName, Namespace: key,
				Annotations: map[string]string{descriptionAnnotation: description},
			},
			Data: c.data,
		}, metav1.CreateOptions{})
		if err == nil || apierrors.IsNotFound(err) || runtime.NamespaceEnding(err) {
			return 0, nil
		}
		if apierrors.IsAlreadyExists(err) {
			return 0, runtime.Silent(err) // the cache will show it; then compare
		}
	case err != nil:
		return 0, err
	case maps.Equal(cm.Data, c.data) && len(cm.BinaryData) == 0 && cm.Annotations[descriptionAnnotation] != "":
		return 0, nil
	default:
		cm = cm.DeepCopy()
		cm.Data, cm.BinaryData = c.data, nil
		if cm.Annotations == nil {
			cm.Annotations = map[string]string{}
		}
		if cm.Annotations[descriptionAnnotation] == "" {
			cm.Annotations[descriptionAnnotation] = description
		}
		_, err = c.client.CoreV1().ConfigMaps(key).Update(ctx, cm, metav1.UpdateOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			return 0, nil
		}
	}
	return 0, fmt.Errorf("write config map %s/%s: %w", key, ConfigMapName, err)
}
