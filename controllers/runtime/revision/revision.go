package revision

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/rand"
)

// HashLabel is the label of a revision that holds the hash of its data.
const HashLabel = "controller.kubernetes.io/hash"

// maxPrefix is how much of the owner's name goes into a revision's, so that the
// name fits a label value.
const maxPrefix = 223

// Data encodes a template as the patch that brings it back. Equal templates give
// equal bytes.
func Data(t *corev1.PodTemplateSpec) ([]byte, error) {
	encoded, err := json.Marshal(t)
	if err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	var template map[string]any
	if err := json.Unmarshal(encoded, &template); err != nil {
		return nil, fmt.Errorf("encode pod template: %w", err)
	}
	template["$patch"] = "replace"
	return json.Marshal(map[string]any{"spec": map[string]any{"template": template}})
}

// Template decodes the template that a revision holds.
func Template(r *appsv1.ControllerRevision) (*corev1.PodTemplateSpec, error) {
	var patch struct {
		Spec struct {
			Template *corev1.PodTemplateSpec `json:"template"`
		} `json:"spec"`
	}
	if err := json.Unmarshal(r.Data.Raw, &patch); err != nil {
		return nil, fmt.Errorf("controller revision %s/%s holds no pod template: %w", r.Namespace, r.Name, err)
	}
	if patch.Spec.Template == nil {
		return nil, fmt.Errorf("controller revision %s/%s holds no pod template: delete it", r.Namespace, r.Name)
	}
	return patch.Spec.Template, nil
}

// New makes the revision of a template with the number rev. collisions may be
// nil.
func New(owner metav1.Object, kind schema.GroupVersionKind, t *corev1.PodTemplateSpec, rev int64, collisions *int32) (*appsv1.ControllerRevision, error) {
	data, err := Data(t)
	if err != nil {
		return nil, err
	}
	h := hash(data, collisions)
	labels := maps.Clone(t.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[HashLabel] = h
	labels[appsv1.ControllerRevisionHashLabelKey] = h
	prefix := owner.GetName()
	prefix = prefix[:min(len(prefix), maxPrefix)]
	return &appsv1.ControllerRevision{
		ObjectMeta: metav1.ObjectMeta{
			Name:            prefix + "-" + h,
			Namespace:       owner.GetNamespace(),
			Labels:          labels,
			Annotations:     maps.Clone(owner.GetAnnotations()),
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)},
		},
		Data:     apiruntime.RawExtension{Raw: data},
		Revision: rev,
	}, nil
}

func hash(data []byte, collisions *int32) string {
	h := fnv.New32()
	h.Write(data)
	if collisions != nil {
		h.Write([]byte(strconv.FormatInt(int64(*collisions), 10)))
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10))
}

// Hash returns the hash of a revision's data.
func Hash(r *appsv1.ControllerRevision) string {
	if h := r.Labels[appsv1.ControllerRevisionHashLabelKey]; h != "" {
		return h
	}
	return r.Labels[HashLabel]
}

// Holds reports whether r is a revision of the template. Templates are compared
// by meaning, so that another encoding of the same one, say by another version
// of the API, is no change.
func Holds(r *appsv1.ControllerRevision, t *corev1.PodTemplateSpec) bool {
	got, err := Template(r)
	return err == nil && equality.Semantic.DeepEqual(got, t)
}

// Sort orders revisions, oldest first.
func Sort(all []*appsv1.ControllerRevision) {
	slices.SortFunc(all, func(a, b *appsv1.ControllerRevision) int {
		return cmp.Or(
			cmp.Compare(a.Revision, b.Revision),
			a.CreationTimestamp.Compare(b.CreationTimestamp.Time),
			cmp.Compare(a.Name, b.Name),
		)
	})
}

// Surplus returns the oldest of the revisions that live does not name, beyond
// limit of them. all must be sorted.
func Surplus(all []*appsv1.ControllerRevision, live func(*appsv1.ControllerRevision) bool, limit *int32) []*appsv1.ControllerRevision {
	if limit == nil {
		return nil
	}
	idle := slices.DeleteFunc(slices.Clone(all), func(r *appsv1.ControllerRevision) bool {
		return live(r) || r.DeletionTimestamp != nil
	})
	return idle[:max(0, len(idle)-int(*limit))]
}
