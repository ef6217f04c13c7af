package deployment

import (
	"cmp"
	"encoding/json"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/rand"
)

// maxNameLength is that of a DNS subdomain.
const maxNameLength = 253

// rollout is what is seen of a Deployment.
type rollout struct {
	d *appsv1.Deployment
	// new has the Deployment's template; nil before it is created.
	new *appsv1.ReplicaSet
	// old are all others, oldest first.
	old []*appsv1.ReplicaSet
	// oldPods is whether pods of old are left (terminating ones too). It counts
	// for the strategy Recreate only.
	oldPods bool
}

// observe sorts the Deployment's ReplicaSets.
func observe(d *appsv1.Deployment, sets []*appsv1.ReplicaSet, oldPods func(new *appsv1.ReplicaSet) bool) rollout {
	r := rollout{d: d}
	sorted := slices.Clone(sets)
	slices.SortFunc(sorted, byAge)
	for _, rs := range sorted {
		// Of several with the template the oldest is taken, always the same one.
		if r.new == nil && sameTemplate(&d.Spec.Template, &rs.Spec.Template) {
			r.new = rs
			continue
		}
		r.old = append(r.old, rs)
	}
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		r.oldPods = oldPods(r.new)
	}
	return r
}

func byAge(a, b *appsv1.ReplicaSet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// sameTemplate compares templates without the hash label.
func sameTemplate(a, b *corev1.PodTemplateSpec) bool {
	a, b = a.DeepCopy(), b.DeepCopy()
	delete(a.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	delete(b.Labels, appsv1.DefaultDeploymentUniqueLabelKey)
	return equality.Semantic.DeepEqual(a, b)
}

// all returns a new slice of all ReplicaSets.
func (r rollout) all() []*appsv1.ReplicaSet {
	out := slices.Clone(r.old)
	if r.new != nil {
		out = append(out, r.new)
	}
	return out
}

// active are the ReplicaSets that want pods, oldest first.
func (r rollout) active() []*appsv1.ReplicaSet {
	out := slices.DeleteFunc(r.all(), func(rs *appsv1.ReplicaSet) bool { return *rs.Spec.Replicas == 0 })
	slices.SortFunc(out, byAge)
	return out
}

// scaling reports whether the wanted size changed since the ReplicaSets were
// last resized.
func (r rollout) scaling() bool {
	for _, rs := range r.active() {
		if n, ok := intAnnotation(rs, desiredAnnotation); ok && n != *r.d.Spec.Replicas {
			return true
		}
	}
	return false
}

// wantsNew reports whether the new ReplicaSet is to be created now.
func (r rollout) wantsNew() bool {
	if r.new != nil || r.d.Spec.Paused || r.d.DeletionTimestamp != nil || r.scaling() {
		return false
	}
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return total(r.old) == 0 && !r.oldPods
	}
	return true
}

// newSet makes the new ReplicaSet with its first size.
func (r rollout) newSet() (*appsv1.ReplicaSet, error) {
	d := r.d
	hash, err := templateHash(&d.Spec.Template, d.Status.CollisionCount)
	if err != nil {
		return nil, err
	}
	rs := &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{
			Name:            setName(d.Name, hash),
			Namespace:       d.Namespace,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(d, kind)},
		},
		Spec: appsv1.ReplicaSetSpec{
			Replicas:        new(int32),
			MinReadySeconds: d.Spec.MinReadySeconds,
			Selector:        d.Spec.Selector.DeepCopy(),
			Template:        *d.Spec.Template.DeepCopy(),
		},
	}
	if rs.Spec.Template.Labels == nil {
		rs.Spec.Template.Labels = map[string]string{}
	}
	rs.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	rs.Labels = map[string]string{}
	for k, v := range rs.Spec.Template.Labels {
		rs.Labels[k] = v
	}
	if rs.Spec.Selector.MatchLabels == nil {
		rs.Spec.Selector.MatchLabels = map[string]string{}
	}
	rs.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] = hash
	with := r
	with.new = rs
	*rs.Spec.Replicas = with.grown()
	annotate(d, rs, maxRevision(r.old)+1)
	setSizeAnnotations(rs, *d.Spec.Replicas, *d.Spec.Replicas+surge(d))
	return rs, nil
}

// templateHash names a template. It need not be unique: see collisionCount.
func templateHash(t *corev1.PodTemplateSpec, collisions *int32) (string, error) {
	b, err := json.Marshal(t)
	if err != nil {
		return "", fmt.Errorf("hash pod template: %w", err)
	}
	h := fnv.New32a()
	h.Write(b)
	if collisions != nil {
		fmt.Fprintf(h, "#%d", *collisions)
	}
	return rand.SafeEncodeString(strconv.FormatUint(uint64(h.Sum32()), 10)), nil
}

func setName(deployment, hash string) string {
	if n := maxNameLength - 1 - len(hash); len(deployment) > n {
		deployment = deployment[:n]
	}
	return deployment + "-" + hash
}

// sizes returns the size that each ReplicaSet is to have now, by name. Those
// that are not named stay as they are.
func (r rollout) sizes() map[string]int32 {
	d := r.d
	switch {
	case d.DeletionTimestamp != nil:
		return nil
	case d.Spec.Paused || r.scaling():
		return r.proportional()
	case d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType:
		return r.recreate()
	default:
		return r.rolling()
	}
}

func (r rollout) recreate() map[string]int32 {
	out := map[string]int32{}
	for _, rs := range r.old {
		out[rs.Name] = 0
	}
	if r.new != nil && total(r.old) == 0 && !r.oldPods {
		out[r.new.Name] = *r.d.Spec.Replicas
	}
	return out
}

func (r rollout) rolling() map[string]int32 {
	out := map[string]int32{}
	if r.new == nil {
		return out
	}
	out[r.new.Name] = r.grown()
	r.shrink(out)
	return out
}

// grown is the size the new ReplicaSet may have beside the old ones.
func (r rollout) grown() int32 {
	want, have := *r.d.Spec.Replicas, *r.new.Spec.Replicas
	if have >= want {
		return want
	}
	if r.d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType {
		return want
	}
	room := want + surge(r.d) - total(r.all())
	return have + max(0, min(room, want-have))
}

// shrink takes away pods of old ReplicaSets: first the ones that are not
// available anyhow (they may block the rollout for ever), then as many available
// ones as can be spared. Pods of the new ReplicaSet that are not available yet
// are not counted on.
func (r rollout) shrink(out map[string]int32) {
	minAvailable := *r.d.Spec.Replicas - unavailable(r.d)
	pending := max(0, *r.new.Spec.Replicas-r.new.Status.AvailableReplicas)
	budget := total(r.all()) - minAvailable - pending
	size := map[string]int32{}
	for _, rs := range r.old {
		size[rs.Name] = *rs.Spec.Replicas
	}
	for _, rs := range r.old {
		n := max(0, min(budget, size[rs.Name]-rs.Status.AvailableReplicas))
		size[rs.Name] -= n
		budget -= n
	}
	spare := min(available(r.all())-minAvailable, budget)
	for _, rs := range r.old {
		n := max(0, min(spare, size[rs.Name]))
		size[rs.Name] -= n
		spare -= n
	}
	for name, n := range size {
		out[name] = n
	}
}

// proportional spreads a change of the wanted size over the ReplicaSets in
// proportion to their own, so that a scaling in the midst of a rollout neither
// hastens nor reverts it.
func (r rollout) proportional() map[string]int32 {
	d, want := r.d, *r.d.Spec.Replicas
	out := map[string]int32{}
	active := r.active()
	if len(active) <= 1 {
		only := r.new
		if len(active) == 1 {
			only = active[0]
		} else if only == nil && len(r.old) > 0 {
			only = r.old[len(r.old)-1]
		}
		if only != nil {
			out[only.Name] = want
		}
		return out
	}
	if r.new != nil && saturated(d, r.new) {
		for _, rs := range active {
			if rs != r.new {
				out[rs.Name] = 0
			}
		}
		return out
	}
	if d.Spec.Strategy.Type != appsv1.RollingUpdateDeploymentStrategyType {
		return out
	}
	allowed := int32(0)
	if want > 0 {
		allowed = want + surge(d)
	}
	toAdd := allowed - total(active)
	// Largest first; among equals the newer grows, the older shrinks.
	slices.SortStableFunc(active, func(a, b *appsv1.ReplicaSet) int {
		age := byAge(a, b)
		if toAdd > 0 {
			age = -age
		}
		return cmp.Or(-cmp.Compare(*a.Spec.Replicas, *b.Spec.Replicas), age)
	})
	left := toAdd
	for _, rs := range active {
		share := proportion(d, rs, allowed)
		if toAdd > 0 {
			share = max(0, min(share, left))
		} else {
			share = min(0, max(share, left))
		}
		out[rs.Name] = *rs.Spec.Replicas + share
		left -= share
	}
	largest := active[0].Name
	out[largest] = max(0, out[largest]+left)
	return out
}

// proportion is how much the size of rs changes when all together become
// allowed, going by how many all were when it was last resized.
func proportion(d *appsv1.Deployment, rs *appsv1.ReplicaSet, allowed int32) int32 {
	size := *rs.Spec.Replicas
	if *d.Spec.Replicas == 0 {
		return -size
	}
	before, ok := intAnnotation(rs, maxAnnotation)
	if !ok || before == 0 {
		before = d.Status.Replicas
	}
	if before == 0 {
		return 0
	}
	scaled := (2*int64(size)*int64(allowed) + int64(before)) / (2 * int64(before)) // rounded
	return int32(scaled) - size
}

// saturated reports whether the new ReplicaSet holds all replicas, available.
func saturated(d *appsv1.Deployment, rs *appsv1.ReplicaSet) bool {
	n, ok := intAnnotation(rs, desiredAnnotation)
	want := *d.Spec.Replicas
	return ok && n == want && *rs.Spec.Replicas == want && rs.Status.AvailableReplicas == want
}

// surplus returns the old ReplicaSets beyond the history limit that hold
// nothing, lowest revision first.
func (r rollout) surplus() []*appsv1.ReplicaSet {
	if r.d.Spec.RevisionHistoryLimit == nil {
		return nil
	}
	alive := slices.DeleteFunc(slices.Clone(r.old), func(rs *appsv1.ReplicaSet) bool { return rs.DeletionTimestamp != nil })
	excess := len(alive) - int(*r.d.Spec.RevisionHistoryLimit)
	if excess <= 0 {
		return nil
	}
	slices.SortStableFunc(alive, func(a, b *appsv1.ReplicaSet) int { return cmp.Compare(revision(a), revision(b)) })
	return slices.DeleteFunc(alive[:excess], func(rs *appsv1.ReplicaSet) bool {
		return rs.Status.Replicas != 0 || *rs.Spec.Replicas != 0 || rs.Generation > rs.Status.ObservedGeneration
	})
}

func total(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += *rs.Spec.Replicas
	}
	return n
}

// available counts the available pods, without those that a ReplicaSet is about
// to give up: its status lags behind its size.
func available(sets []*appsv1.ReplicaSet) (n int32) {
	for _, rs := range sets {
		n += min(rs.Status.AvailableReplicas, *rs.Spec.Replicas)
	}
	return n
}

// limits resolves maxSurge (rounded up) and maxUnavailable (rounded down); when
// both come to nothing one pod may be missing, or no rollout could move.
func limits(d *appsv1.Deployment) (maxSurge, maxUnavailable int32) {
	ru := d.Spec.Strategy.RollingUpdate
	if d.Spec.Strategy.Type == appsv1.RecreateDeploymentStrategyType || *d.Spec.Replicas == 0 {
		return 0, 0
	}
	want := int(*d.Spec.Replicas)
	value := func(v *intstr.IntOrString, up bool) int32 {
		if v == nil {
			return 0
		}
		n, err := intstr.GetScaledValueFromIntOrPercent(v, want, up)
		if err != nil {
			return 0 // validation let no such value in
		}
		return int32(n)
	}
	if ru != nil {
		maxSurge, maxUnavailable = value(ru.MaxSurge, true), value(ru.MaxUnavailable, false)
	}
	if maxSurge == 0 && maxUnavailable == 0 {
		maxUnavailable = 1
	}
	return maxSurge, min(maxUnavailable, *d.Spec.Replicas)
}

func surge(d *appsv1.Deployment) int32       { s, _ := limits(d); return s }
func unavailable(d *appsv1.Deployment) int32 { _, u := limits(d); return u }
