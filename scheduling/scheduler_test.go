package scheduling

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"

	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

// rig is a scheduler over a fake API whose binding subresource acts: it sets the
// node, refuses a second binding, and fails as often as told.
type rig struct {
	*Scheduler
	client *fake.Clientset
	events *record.FakeRecorder
	mu     sync.Mutex
	binds  map[string]int
	fail   int
}

func start(t *testing.T, objects ...runtime.Object) *rig {
	t.Helper()
	r := &rig{client: fake.NewClientset(objects...), events: record.NewFakeRecorder(1000), binds: map[string]int{}}
	r.client.PrependReactor("create", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		if a.GetSubresource() != "binding" {
			return false, nil, nil
		}
		b := a.(k8stesting.CreateAction).GetObject().(*corev1.Binding)
		r.mu.Lock()
		defer r.mu.Unlock()
		if r.fail > 0 {
			r.fail--
			return true, nil, errors.New("the store is away")
		}
		gvr := schema.GroupVersionResource{Version: "v1", Resource: "pods"}
		o, err := r.client.Tracker().Get(gvr, b.Namespace, b.Name)
		if err != nil {
			return true, nil, err
		}
		p := o.(*corev1.Pod).DeepCopy()
		if p.Spec.NodeName != "" {
			return true, nil, fmt.Errorf("pod %s is bound to %s already", p.Name, p.Spec.NodeName)
		}
		p.Spec.NodeName = b.Target.Name
		r.binds[p.Name]++
		return true, b, r.client.Tracker().Update(gvr, p, p.Namespace)
	})
	s, err := New(Config{Client: r.client, Informers: informers.NewSharedInformerFactory(r.client, 0), Recorder: r.events})
	if err != nil {
		t.Fatal(err)
	}
	r.Scheduler = s
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	r.eventually(t, "the scheduler runs", func() bool { return s.Health() == nil })
	return r
}

func (r *rig) eventually(t *testing.T, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !f(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never: %s", what)
		}
	}
}

func (r *rig) pod(t *testing.T, name string) *corev1.Pod {
	t.Helper()
	p, err := r.client.CoreV1().Pods("default").Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (r *rig) create(t *testing.T, p *corev1.Pod) {
	t.Helper()
	if _, err := r.client.CoreV1().Pods("default").Create(context.Background(), p, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestPodsAreBoundOnceAndOnlyWithRoom(t *testing.T) {
	r := start(t, Node("a", "4", "8Gi"), Node("b", "4", "8Gi"), Pod("early", "1", "1Gi"))
	for i := range 7 {
		r.create(t, Pod(fmt.Sprint("p", i), "1", "1Gi"))
	}
	r.eventually(t, "all are bound", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.binds) == 8
	})
	per := map[string]int{r.pod(t, "early").Spec.NodeName: 1}
	for i := range 7 {
		per[r.pod(t, fmt.Sprint("p", i)).Spec.NodeName]++
	}
	if per["a"] != 4 || per["b"] != 4 {
		t.Fatalf("placed %v, want 4 on each", per)
	}
	for name, n := range r.binds {
		if n != 1 {
			t.Errorf("%s was bound %d times", name, n)
		}
	}
}

// TestAPendingPodSaysWhyAndIsPlacedWhenRoomComes: in an event and in its
// condition; and it is placed as soon as a pod makes room.
func TestAPendingPodSaysWhyAndIsPlacedWhenRoomComes(t *testing.T) {
	r := start(t, Node("a", "2", "8Gi"), Pod("big", "2", "1Gi"))
	r.eventually(t, "the first is bound", func() bool { return r.pod(t, "big").Spec.NodeName == "a" })
	r.create(t, Pod("second", "1", "1Gi"))
	const why = "0/1 nodes are available: 1 Insufficient cpu. preemption: 0/1 nodes are available: 1 No preemption victims found for incoming pod."
	r.eventually(t, "the condition says why", func() bool {
		for _, c := range r.pod(t, "second").Status.Conditions {
			if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == "Unschedulable" && c.Message == why {
				return true
			}
		}
		return false
	})
	r.eventually(t, "an event says why", func() bool {
		select {
		case e := <-r.events.Events:
			return strings.Contains(e, "FailedScheduling "+why)
		default:
			return false
		}
	})
	if err := r.client.CoreV1().Pods("default").Delete(context.Background(), "big", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "the second is bound", func() bool { return r.pod(t, "second").Spec.NodeName == "a" })
}

func TestABindingThatFailsIsTriedAgainAndFreesTheRoom(t *testing.T) {
	r := start(t, Node("a", "1", "8Gi"))
	r.mu.Lock()
	r.fail = 2
	r.mu.Unlock()
	r.create(t, Pod("p", "1", "1Gi"))
	r.eventually(t, "the pod is bound", func() bool { return r.pod(t, "p").Spec.NodeName == "a" })
}

func TestOthersPodsAreLeftAlone(t *testing.T) {
	r := start(t, Node("a", "4", "8Gi"))
	r.create(t, Pod("theirs", "", "", func(p *corev1.Pod) { p.Spec.SchedulerName = "other" }))
	r.create(t, Pod("gated", "", "", func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }))
	r.create(t, Pod("ours", "", ""))
	r.eventually(t, "ours is bound", func() bool { return r.pod(t, "ours").Spec.NodeName == "a" })
	if p := r.pod(t, "theirs"); p.Spec.NodeName != "" {
		t.Error("a pod of another scheduler was bound")
	}
	p := r.pod(t, "gated")
	if p.Spec.NodeName != "" {
		t.Fatal("a gated pod was bound")
	}
	p.Spec.SchedulingGates = nil
	if _, err := r.client.CoreV1().Pods("default").Update(context.Background(), p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "the pod is bound once its gate is gone", func() bool { return r.pod(t, "gated").Spec.NodeName == "a" })
}

// TestAMoreImportantPodTakesTheRoomOfTheLeast: the victim is told why and deleted,
// the pod is promised the node, and gets it; pods that may not preempt wait, and
// one of equal importance is never taken.
func TestAMoreImportantPodTakesTheRoomOfTheLeast(t *testing.T) {
	prio := func(n int32) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.Priority = &n } }
	never := corev1.PreemptNever
	r := start(t, Node("a", "2", "8Gi"), Pod("low", "1", "1Gi", prio(1), On("a")), Pod("mid", "1", "1Gi", prio(5), On("a")))
	r.create(t, Pod("polite", "1", "1Gi", prio(9), func(p *corev1.Pod) { p.Spec.PreemptionPolicy = &never }))
	r.eventually(t, "the polite pod says that it may not", func() bool {
		return slices.ContainsFunc(r.pod(t, "polite").Status.Conditions, func(c corev1.PodCondition) bool {
			return strings.HasSuffix(c.Message, "preemption: not eligible due to preemptionPolicy=Never.")
		})
	})
	if err := r.client.CoreV1().Pods("default").Delete(context.Background(), "polite", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	var told *corev1.PodCondition
	r.client.PrependReactor("delete", "pods", func(a k8stesting.Action) (bool, runtime.Object, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		o, err := r.client.Tracker().Get(schema.GroupVersionResource{Version: "v1", Resource: "pods"}, "default", a.(k8stesting.DeleteAction).GetName())
		if err != nil {
			return true, nil, err
		}
		for _, c := range o.(*corev1.Pod).Status.Conditions {
			told = &c
		}
		return false, nil, nil
	})
	r.create(t, Pod("high", "1", "1Gi", prio(5)))
	r.eventually(t, "the pod is bound", func() bool { return r.pod(t, "high").Spec.NodeName == "a" })
	if r.pod(t, "mid").DeletionTimestamp != nil {
		t.Error("a pod of equal priority went")
	}
	if _, err := r.client.CoreV1().Pods("default").Get(context.Background(), "low", metav1.GetOptions{}); err == nil {
		t.Error("the victim is still there")
	}
	if told == nil || told.Type != corev1.DisruptionTarget || told.Reason != corev1.PodReasonPreemptionByScheduler || told.Message != "default-scheduler: preempting to accommodate a higher priority pod" {
		t.Errorf("the victim was told %+v", told)
	}
}

// TestWhyNamesTheNearestHelp: what each filter says, and what would let the pod in.
func TestWhyNamesTheNearestHelp(t *testing.T) {
	r := start(t, Node("a", "1", "8Gi"), Node("b", "1", "8Gi"), Node("c", "4", "1Gi", func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoSchedule}}
	}))
	r.create(t, Pod("p", "1300m", "2Gi"))
	r.eventually(t, "the pod is refused", func() bool {
		w, err := r.Explain("default", "p")
		return err == nil && w.Attempts > 0 && w.State == stateWords[waiting]
	})
	w, err := r.Explain("default", "p")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, x := range w.Waits {
		got = append(got, x.For+" ("+x.By+")")
	}
	want := []string{"1 of 3: Insufficient memory (NodeResourcesFit)", "1 of 3: node(s) had untolerated taint(s) (TaintToleration)", "2 of 3: Insufficient cpu (NodeResourcesFit)",
		"nearest help: needs 300m more cpu on any of 2 nodes (you)"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if _, err := r.Explain("default", "nobody"); err == nil {
		t.Error("a pod that there is not is explained")
	}
}

// TestAClaimIsBoundWhereItsFirstConsumerGoes: the node is one that reaches a
// volume, the volume is given to the claim, and the pod waits until that holds.
func TestAClaimIsBoundWhereItsFirstConsumerGoes(t *testing.T) {
	late := storagev1.VolumeBindingWaitForFirstConsumer
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "local"}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: &late}
	gi := corev1.ResourceList{corev1.ResourceStorage: Node("", "1", "1Gi").Status.Allocatable["memory"]}
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeAvailable}, Spec: corev1.PersistentVolumeSpec{
		StorageClassName: "local", Capacity: gi, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}}}}}}}}
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "c", UID: "uid-c"}, Spec: corev1.PersistentVolumeClaimSpec{
		StorageClassName: &class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, Resources: corev1.VolumeResourceRequirements{Requests: gi}}}
	r := start(t, Node("a", "4", "8Gi"), Node("b", "4", "8Gi"), class, pv, claim)
	ctx := context.Background()
	r.create(t, Pod("p", "1", "1Gi", func(p *corev1.Pod) {
		p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}}}
	}))
	r.eventually(t, "the volume is the claim's", func() bool {
		v, err := r.client.CoreV1().PersistentVolumes().Get(ctx, "v", metav1.GetOptions{})
		return err == nil && v.Spec.ClaimRef != nil && v.Spec.ClaimRef.UID == "uid-c"
	})
	if p := r.pod(t, "p"); p.Spec.NodeName != "" {
		t.Fatal("the pod is bound before its claim is")
	}
	claim = claim.DeepCopy() // as the controller does
	claim.Spec.VolumeName, claim.Status.Phase = "v", corev1.ClaimBound
	claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
	claim.ResourceVersion = "2"
	if _, err := r.client.CoreV1().PersistentVolumeClaims("default").Update(ctx, claim, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	r.eventually(t, "the pod is bound", func() bool { return r.pod(t, "p").Spec.NodeName == "b" })
}
