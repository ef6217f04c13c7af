package horizontalpodautoscaler

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var now = time.Unix(1e9, 0)

// parsePods reads pods such as "80 90 -:missing 10:pending": the use of each, in
// percent of its request of 1000 thousandths, and what is special of it.
func parsePods(t *testing.T, text string) ([]*corev1.Pod, map[string]sample) {
	t.Helper()
	var pods []*corev1.Pod
	samples := map[string]sample{}
	for i, word := range strings.Fields(text) {
		use, mark, _ := strings.Cut(word, ":")
		begin := metav1.NewTime(now.Add(-time.Hour))
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i), Namespace: "default", Labels: map[string]string{"app": "web"}},
			Spec: corev1.PodSpec{Containers: []corev1.Container{
				{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}},
			}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &begin, Conditions: []corev1.PodCondition{
				{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: begin},
			}},
		}
		switch mark {
		case "", "missing":
		case "pending":
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		case "starting":
			begin := metav1.NewTime(now.Add(-time.Minute))
			p.Status.StartTime = &begin
			p.Status.Conditions[0].Status = corev1.ConditionFalse
		case "unready": // it was ready once, so its use says something
			p.Status.Conditions[0].Status = corev1.ConditionFalse
			p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(now.Add(-time.Second))
		case "going":
			p.DeletionTimestamp = &metav1.Time{Time: now}
		case "failed":
			p.Status.Phase = corev1.PodFailed
		default:
			t.Fatalf("pod mark %q", mark)
		}
		pods = append(pods, p)
		if n, err := strconv.Atoi(use); err == nil {
			samples[p.Name] = sample{value: int64(n) * 10, at: now, window: 30 * time.Second}
		}
	}
	return pods, samples
}

func TestProposalOfPods(t *testing.T) {
	tenth := tolerances{0.1, 0.1}
	for _, c := range []struct {
		name string
		pods string
		tol  tolerances
		want int // -1 for an error
	}{
		{"as it should be", "50 50 50", tenth, 3},
		{"twice as much", "100 100 100", tenth, 6},
		{"a little more, rounded up", "60 60 60", tenth, 4},
		{"half as much", "25 25 25 25", tenth, 2},
		{"within the tolerance", "54 54 54", tenth, 3},
		{"within a lower tolerance for going up", "54 54 54", tolerances{0.05, 0.1}, 4},
		{"within a lower tolerance for going down", "46 46 46 46 46 46 46 46 46 46 46 46 46", tolerances{0.1, 0.05}, 12},
		{"nothing is used", "0 0", tenth, 0},

		{"missing ones use nothing when going up", "100 100 -:missing -:missing", tenth, 4},
		{"missing ones use all when going down", "10 10 -:missing", tenth, 3},
		{"one of many is missing when going down", "5 5 5 5 5 5 5 5 5 -:missing", tenth, 3},
		{"one of many is missing when going up", "100 100 100 -:missing", tenth, 6},
		{"all are missing", "-:missing -:missing", tenth, -1},
		{"pending ones use nothing when going up", "100 100 -:pending", tenth, 4},
		{"pending ones damp to nothing", "80 -:pending", tenth, 2},
		{"pending ones do not matter when going down", "20 20 -:pending", tenth, 1},
		{"the start of a pod is no use", "50 50 300:starting", tenth, 3},
		{"the start of a pod damps", "100 100 300:starting", tenth, 4},
		{"unready after its start counts", "100 100 100:unready", tenth, 6},
		{"those that go do not count", "50 50 90:going 90:failed", tenth, 4},
		{"no pods", "", tenth, -1},
	} {
		pods, samples := parsePods(t, c.pods)
		share := func(percent int64) func(*corev1.Pod) (int64, error) {
			return func(p *corev1.Pod) (int64, error) {
				r, err := request(p, corev1.ResourceCPU, "")
				return r * percent / 100, err
			}
		}
		p := pool{current: len(pods), pods: pods, samples: samples, goal: share(50), fallback: share(100), cpu: true, now: now}
		got, _, _, _, err := p.propose(c.tol)
		if err != nil {
			got = -1
		}
		if got != c.want {
			t.Errorf("%s: %d (%v), want %d", c.name, got, err, c.want)
		}
	}
}

func TestProposalOfAWhole(t *testing.T) {
	tol := tolerances{0.1, 0.1}
	for _, c := range []struct {
		current, serving int
		used, goal       int64
		perPod           bool
		want             int
	}{
		{3, 3, 1000, 1000, false, 3},
		{3, 3, 2000, 1000, false, 6},
		{3, 2, 2000, 1000, false, 4},
		{3, 3, 1050, 1000, false, 3},
		{0, 0, 2500, 1000, false, 3},
		{3, 3, 0, 1000, false, 0},
		{3, 3, 3000, 1000, true, 3},
		{3, 3, 6500, 1000, true, 7},
		{0, 0, 6500, 1000, true, 7},
	} {
		if got := proposeWhole(c.current, c.serving, c.used, c.goal, c.perPod, tol); got != c.want {
			t.Errorf("%+v: %d", c, got)
		}
	}
}

func TestRequests(t *testing.T) {
	pods, _ := parsePods(t, "10")
	pod := pods[0]
	always := corev1.ContainerRestartPolicyAlways
	half := corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("500m")}}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init"}, {Name: "sidecar", RestartPolicy: &always, Resources: half}}
	for container, want := range map[string]int64{"": 1500, "c": 1000, "sidecar": 500, "none": -1} {
		got, err := request(pod, corev1.ResourceCPU, container)
		if err != nil {
			got = -1
		}
		if got != want {
			t.Errorf("container %q: %d (%v), want %d", container, got, err, want)
		}
	}
	if _, err := request(pod, corev1.ResourceMemory, ""); err == nil {
		t.Error("what is not requested is no error")
	}
	pod.Spec.Resources = &half
	if got, err := request(pod, corev1.ResourceCPU, ""); err != nil || got != 500 {
		t.Errorf("of the pod: %d, %v", got, err)
	}
}
