package deployment

import (
	"fmt"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

func deploymentOf(replicas int32, maxSurge, maxUnavailable intstr.IntOrString) *appsv1.Deployment {
	deadline, history := int32(600), int32(10)
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "d", Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			Template: corev1.PodTemplateSpec{
				ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "v0"}}},
			},
			Strategy: appsv1.DeploymentStrategy{
				Type:          appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &maxSurge, MaxUnavailable: &maxUnavailable},
			},
			ProgressDeadlineSeconds: &deadline,
			RevisionHistoryLimit:    &history,
		},
	}
}

func setOf(name string, age time.Duration, size, available int32) *appsv1.ReplicaSet {
	return &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(1e9, 0).Add(-age))},
		Spec:       appsv1.ReplicaSetSpec{Replicas: &size},
		Status:     appsv1.ReplicaSetStatus{Replicas: size, ReadyReplicas: available, AvailableReplicas: available},
	}
}

func TestLimits(t *testing.T) {
	for _, c := range []struct {
		replicas           int32
		surge, unavailable string
		wantSurge, wantUn  int32
	}{
		{10, "25%", "25%", 3, 2},
		{1, "25%", "25%", 1, 0},
		{4, "0", "0", 0, 1}, // or nothing could move
		{4, "0", "10", 0, 4},
		{0, "25%", "25%", 0, 0},
		{3, "1", "0", 1, 0},
	} {
		d := deploymentOf(c.replicas, intstr.Parse(c.surge), intstr.Parse(c.unavailable))
		s, u := limits(d)
		if s != c.wantSurge || u != c.wantUn {
			t.Errorf("%d replicas, surge %s, unavailable %s: %d and %d, want %d and %d", c.replicas, c.surge, c.unavailable, s, u, c.wantSurge, c.wantUn)
		}
	}
}

func TestRollingSteps(t *testing.T) {
	type set struct{ size, available int32 }
	for _, c := range []struct {
		name      string
		replicas  int32
		surge, un int
		new       set
		old       []set
		wantNew   int32
		wantOld   []int32
	}{
		{"first step", 10, 3, 2, set{0, 0}, []set{{10, 10}}, 3, []int32{8}},
		{"nothing new is up yet", 10, 3, 2, set{5, 0}, []set{{8, 8}}, 5, []int32{8}},
		{"some are up", 10, 3, 2, set{5, 3}, []set{{8, 8}}, 5, []int32{5}},
		{"room after a shrink", 10, 3, 2, set{5, 5}, []set{{3, 3}}, 10, []int32{3}},
		{"the last", 10, 3, 2, set{10, 10}, []set{{3, 3}}, 10, []int32{0}},
		{"a broken old version gives way, one by one", 4, 1, 0, set{1, 1}, []set{{4, 0}}, 1, []int32{3}},
		{"rollback from a broken rollout", 10, 3, 2, set{8, 8}, []set{{5, 0}}, 8, []int32{0}},
		{"no surge", 3, 0, 1, set{0, 0}, []set{{3, 3}}, 0, []int32{2}},
		{"oldest first", 6, 0, 2, set{2, 2}, []set{{1, 1}, {3, 3}}, 2, []int32{0, 2}},
		{"size was lowered", 2, 1, 0, set{5, 5}, nil, 2, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := deploymentOf(c.replicas, intstr.FromInt(c.surge), intstr.FromInt(c.un))
			r := rollout{d: d, new: setOf("new", 0, c.new.size, c.new.available)}
			for i, o := range c.old {
				r.old = append(r.old, setOf(fmt.Sprint("old", i), time.Duration(10-i)*time.Hour, o.size, o.available))
			}
			got := r.rolling()
			if got["new"] != c.wantNew {
				t.Errorf("new: %d, want %d", got["new"], c.wantNew)
			}
			for i, want := range c.wantOld {
				if n := got[fmt.Sprint("old", i)]; n != want {
					t.Errorf("old%d: %d, want %d", i, n, want)
				}
			}
		})
	}
}

func TestScalingInMidRolloutIsProportional(t *testing.T) {
	d := deploymentOf(20, intstr.FromInt(3), intstr.FromInt(2))
	r := rollout{d: d, new: setOf("new", 0, 5, 5), old: []*appsv1.ReplicaSet{setOf("old", time.Hour, 8, 8)}}
	for _, rs := range r.all() {
		setSizeAnnotations(rs, 10, 13) // as of when there were 10
	}
	if !r.scaling() {
		t.Fatal("a change of the size is not seen")
	}
	got := r.sizes()
	// 13 pods become 23 in the proportion 8 to 5.
	if got["old"] != 14 || got["new"] != 9 {
		t.Errorf("sizes %v, want old 14 and new 9", got)
	}
	*d.Spec.Replicas = 0
	if got := r.sizes(); got["old"] != 0 || got["new"] != 0 {
		t.Errorf("scaled to zero: %v", got)
	}
}

func TestRecreateWaitsForOldPods(t *testing.T) {
	d := deploymentOf(3, intstr.FromInt(0), intstr.FromInt(0))
	d.Spec.Strategy = appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}
	r := rollout{d: d, old: []*appsv1.ReplicaSet{setOf("old", time.Hour, 3, 3)}, oldPods: true}
	if r.wantsNew() {
		t.Error("the new one is to be created beside the old pods")
	}
	if got := r.sizes(); got["old"] != 0 {
		t.Errorf("sizes %v", got)
	}
	r.old[0] = setOf("old", time.Hour, 0, 0)
	if r.wantsNew() {
		t.Error("the new one is to be created while old pods end")
	}
	r.oldPods = false
	if !r.wantsNew() {
		t.Error("the new one is not to be created though the old pods are gone")
	}
	rs, err := r.newSet()
	if err != nil || *rs.Spec.Replicas != 3 {
		t.Errorf("new set of %d, %v; want 3", *rs.Spec.Replicas, err)
	}
}

func TestNewSetIsNamedByItsTemplate(t *testing.T) {
	d := deploymentOf(3, intstr.FromInt(1), intstr.FromInt(0))
	d.Annotations = map[string]string{"kubernetes.io/change-cause": "v1", corev1.LastAppliedConfigAnnotation: "{}"}
	one, _ := rollout{d: d}.newSet()
	two, _ := rollout{d: d}.newSet()
	if one.Name != two.Name {
		t.Error("two names for one template")
	}
	hash := one.Labels[appsv1.DefaultDeploymentUniqueLabelKey]
	if hash == "" || one.Name != "web-"+hash || one.Spec.Selector.MatchLabels[appsv1.DefaultDeploymentUniqueLabelKey] != hash ||
		one.Spec.Template.Labels[appsv1.DefaultDeploymentUniqueLabelKey] != hash {
		t.Errorf("hash %q is not in name, selector and template of %s", hash, one.Name)
	}
	if !sameTemplate(&d.Spec.Template, &one.Spec.Template) {
		t.Error("the template is not found again")
	}
	if one.Annotations["kubernetes.io/change-cause"] != "v1" || one.Annotations[corev1.LastAppliedConfigAnnotation] != "" ||
		one.Annotations[revisionAnnotation] != "1" {
		t.Errorf("annotations %v", one.Annotations)
	}
	collisions := int32(1)
	d.Status.CollisionCount = &collisions
	if three, _ := (rollout{d: d}).newSet(); three.Name == one.Name {
		t.Error("a collision does not change the name")
	}
}

func TestRollbackMakesAnOldRevisionTheNewest(t *testing.T) {
	d := deploymentOf(1, intstr.FromInt(1), intstr.FromInt(0))
	rs := setOf("web-1", time.Hour, 0, 0)
	rs.Annotations = map[string]string{revisionAnnotation: "1"}
	annotate(d, rs, 3)
	annotate(d, rs, 3)
	if rs.Annotations[revisionAnnotation] != "3" || rs.Annotations[historyAnnotation] != "1" {
		t.Errorf("annotations %v", rs.Annotations)
	}
}

func TestSurplusKeepsTheNewestAndAnythingInUse(t *testing.T) {
	d := deploymentOf(1, intstr.FromInt(1), intstr.FromInt(0))
	*d.Spec.RevisionHistoryLimit = 1
	r := rollout{d: d, new: setOf("new", 0, 1, 1)}
	for i, size := range []int32{0, 2, 0, 0} {
		rs := setOf(fmt.Sprint("old", i), time.Hour, size, size)
		rs.Annotations = map[string]string{revisionAnnotation: fmt.Sprint(i + 1)}
		r.old = append(r.old, rs)
	}
	var names []string
	for _, rs := range r.surplus() {
		names = append(names, rs.Name)
	}
	if fmt.Sprint(names) != "[old0 old2]" {
		t.Errorf("surplus %v, want old0 and old2 (old1 has pods, old3 is the history)", names)
	}
}

// sim is a cluster with one Deployment: per ReplicaSet the pods there are, and
// how many of them are available.
type sim struct {
	d     *appsv1.Deployment
	sets  []*appsv1.ReplicaSet
	steps int
}

func (s *sim) see() rollout {
	return observe(s.d, s.sets, func(*appsv1.ReplicaSet) bool { return false })
}

// control does one step of the controller and checks what it did.
func (s *sim) control(t *rapid.T) (changed bool) {
	r := s.see()
	before := total(r.all())
	if r.wantsNew() {
		rs, err := r.newSet()
		if err != nil {
			t.Fatal(err)
		}
		s.steps++
		rs.CreationTimestamp = metav1.NewTime(time.Unix(1e9+int64(s.steps), 0))
		rs.Status = appsv1.ReplicaSetStatus{}
		s.sets = append(s.sets, rs)
		r.new = rs
		changed = true
	}
	scaling, availableBefore := r.scaling(), available(s.sets)
	sizes := r.sizes()
	for _, rs := range r.all() {
		want, ok := sizes[rs.Name]
		if !ok {
			continue
		}
		if want < 0 {
			t.Fatalf("%s is to have %d pods", rs.Name, want)
		}
		changed = changed || *rs.Spec.Replicas != want
		*rs.Spec.Replicas = want
		setSizeAnnotations(rs, *s.d.Spec.Replicas, *s.d.Spec.Replicas+surge(s.d))
	}
	most := *s.d.Spec.Replicas + surge(s.d)
	if after := total(s.sets); after > max(most, before) {
		t.Fatalf("%d pods are wanted, at most %d may be", after, most)
	}
	if !scaling {
		// The ReplicaSets give up pods that are not available first.
		left := available(s.sets)
		if least := min(availableBefore, *s.d.Spec.Replicas-unavailable(s.d)); left < least {
			t.Fatalf("a step leaves %d of %d available pods, %d are needed", left, availableBefore, least)
		}
	}
	return changed
}

// replicate lets one ReplicaSet make its pods; become is how many more of them
// turn available.
func (s *sim) replicate(i int, become int32) {
	rs := s.sets[i]
	rs.Status.Replicas = *rs.Spec.Replicas
	rs.Status.AvailableReplicas = min(rs.Status.AvailableReplicas+become, rs.Status.Replicas)
	rs.Status.ReadyReplicas = rs.Status.AvailableReplicas
}

func TestRolloutIsSafeAndConverges(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		number := func(name string) intstr.IntOrString {
			if rapid.Bool().Draw(t, name+" in percent") {
				return intstr.FromString(fmt.Sprintf("%d%%", rapid.IntRange(0, 100).Draw(t, name)))
			}
			return intstr.FromInt(rapid.IntRange(0, 5).Draw(t, name))
		}
		s := &sim{d: deploymentOf(int32(rapid.IntRange(0, 20).Draw(t, "replicas")), number("surge"), number("unavailable"))}
		for range rapid.IntRange(0, 60).Draw(t, "steps") {
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.d.Spec.Template.Spec.Containers[0].Image = fmt.Sprintf("v%d", rapid.IntRange(0, 3).Draw(t, "version"))
			case 1:
				*s.d.Spec.Replicas = int32(rapid.IntRange(0, 20).Draw(t, "scale"))
			case 2:
				s.d.Spec.Paused = !s.d.Spec.Paused
			case 3: // pods break
				if len(s.sets) > 0 {
					rs := s.sets[rapid.IntRange(0, len(s.sets)-1).Draw(t, "broken set")]
					rs.Status.AvailableReplicas = max(0, rs.Status.AvailableReplicas-int32(rapid.IntRange(1, 5).Draw(t, "broken pods")))
				}
			case 4, 5, 6:
				s.control(t)
			default:
				if len(s.sets) > 0 {
					s.replicate(rapid.IntRange(0, len(s.sets)-1).Draw(t, "set"), int32(rapid.IntRange(0, 5).Draw(t, "become")))
				}
			}
		}
		// Left alone, with pods that come up, it ends where it should.
		s.d.Spec.Paused = false
		for range 500 {
			changed := s.control(t)
			for i := range s.sets {
				s.replicate(i, 1)
			}
			r := s.see()
			if !changed && r.new != nil && *r.new.Spec.Replicas == *s.d.Spec.Replicas &&
				r.new.Status.AvailableReplicas == *s.d.Spec.Replicas && total(r.old) == 0 {
				return
			}
		}
		r := s.see()
		t.Fatalf("no end after 500 rounds: want %d, have %v, new %v", *s.d.Spec.Replicas, total(r.all()), r.new != nil)
	})
}
