package runtime

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

const (
	ownerIndex = "tripod-owner"
	nodeIndex  = "tripod-node"
)

// PodIndex finds pods by their controller or their node without a walk through
// all of them. The pods are shared and must not be changed.
type PodIndex struct{ indexer cache.Indexer }

// NewPodIndex adds the indexes to the pod informer, once for all its users.
func NewPodIndex(pods cache.SharedIndexInformer) (PodIndex, error) {
	for name, f := range map[string]cache.IndexFunc{
		ownerIndex: func(o any) ([]string, error) {
			pod, ok := o.(*corev1.Pod)
			if !ok {
				return nil, nil
			}
			if ref := metav1.GetControllerOf(pod); ref != nil {
				return []string{string(ref.UID)}, nil
			}
			return []string{orphans(pod.Namespace)}, nil
		},
		nodeIndex: func(o any) ([]string, error) {
			pod, ok := o.(*corev1.Pod)
			if !ok || pod.Spec.NodeName == "" {
				return nil, nil
			}
			return []string{pod.Spec.NodeName}, nil
		},
	} {
		if _, ok := pods.GetIndexer().GetIndexers()[name]; ok {
			continue
		}
		if err := pods.AddIndexers(cache.Indexers{name: f}); err != nil {
			// Two controllers may be built at once and add it both.
			if _, ok := pods.GetIndexer().GetIndexers()[name]; !ok {
				return PodIndex{}, fmt.Errorf("index pods by %s: %w", name, err)
			}
		}
	}
	return PodIndex{pods.GetIndexer()}, nil
}

// orphans is an index value that no UID can have.
func orphans(namespace string) string { return "orphans/" + namespace }

// OwnedBy returns the pods whose controller has the UID.
func (x PodIndex) OwnedBy(uid types.UID) []*corev1.Pod { return x.get(ownerIndex, string(uid)) }

// Orphans returns the namespace's pods without a controller.
func (x PodIndex) Orphans(namespace string) []*corev1.Pod {
	return x.get(ownerIndex, orphans(namespace))
}

// OnNode returns the pods bound to the node.
func (x PodIndex) OnNode(node string) []*corev1.Pod { return x.get(nodeIndex, node) }

func (x PodIndex) get(index, value string) []*corev1.Pod {
	objs, err := x.indexer.ByIndex(index, value)
	if err != nil {
		panic(err) // only for an unknown index
	}
	out := make([]*corev1.Pod, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.(*corev1.Pod))
	}
	return out
}
