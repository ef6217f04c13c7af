package statefulset

import (
	"fmt"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/util/retry"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func start(t *testing.T, c *runtimetest.Cluster) {
	c.Run(t, map[string]runtime.Builder{"statefulset": func(q runtime.Queue) (runtime.Controller, error) { return New(c.Deps(), q) }})
}

func pods(t *testing.T, c *runtimetest.Cluster) []corev1.Pod {
	t.Helper()
	l, err := c.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// run makes every pod ready that is not of a broken image.
func run(t *testing.T, c *runtimetest.Cluster) {
	t.Helper()
	for _, p := range pods(t, c) {
		if p.Status.Phase != "" {
			continue
		}
		p.Status = ready()
		if p.Spec.Containers[0].Image == "broken" {
			p.Status = corev1.PodStatus{Phase: corev1.PodPending}
		}
		_, _ = c.CoreV1().Pods("default").UpdateStatus(t.Context(), &p, metav1.UpdateOptions{}) // what lost a race is tried again
	}
}

func edit(t *testing.T, c *runtimetest.Cluster, f func(*appsv1.StatefulSet)) {
	t.Helper()
	err := retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		set, err := c.AppsV1().StatefulSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err
		}
		f(set)
		_, err = c.AppsV1().StatefulSets("default").Update(t.Context(), set, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

func image(name string) func(*appsv1.StatefulSet) {
	return func(s *appsv1.StatefulSet) { s.Spec.Template.Spec.Containers[0].Image = name }
}

// waitFor waits until there are n pods of the image, as the status says.
func waitFor(t *testing.T, c *runtimetest.Cluster, image string, n int) {
	t.Helper()
	runtimetest.Eventually(t, func() string {
		run(t, c)
		set, err := c.AppsV1().StatefulSets("default").Get(t.Context(), "web", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		all := pods(t, c)
		for _, p := range all {
			if p.Spec.Containers[0].Image != image {
				return "a pod is of " + p.Spec.Containers[0].Image
			}
		}
		s := set.Status
		if len(all) != n || int(s.AvailableReplicas) != n || int(s.CurrentReplicas) != n || s.CurrentRevision != s.UpdateRevision || s.ObservedGeneration != set.Generation {
			return fmt.Sprintf("%d pods, want %d; status %+v", len(all), n, s)
		}
		return ""
	})
}

func withClaims(set *appsv1.StatefulSet) {
	set.Spec.VolumeClaimTemplates = []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "data", Labels: map[string]string{"tier": "db"}}}}
}

func TestPodsHaveNumbersAndClaims(t *testing.T) {
	set := newSet(3)
	withClaims(set)
	c := runtimetest.New(t, set)
	start(t, c)
	waitFor(t, c, "v1", 3)
	var created []string
	for _, a := range c.Actions() {
		if a.Matches("create", "pods") {
			created = append(created, a.(clienttesting.CreateAction).GetObject().(*corev1.Pod).Name)
		}
	}
	if !slices.Equal(created, []string{"web-0", "web-1", "web-2"}) {
		t.Errorf("created %v", created)
	}
	for i, p := range pods(t, c) {
		if p.Labels[appsv1.PodIndexLabel] != fmt.Sprint(i) || p.Labels[appsv1.StatefulSetPodNameLabel] != p.Name || p.Spec.Hostname != p.Name || p.Spec.Subdomain != "web" {
			t.Errorf("pod %s: labels %v, host name %s.%s", p.Name, p.Labels, p.Spec.Hostname, p.Spec.Subdomain)
		}
		if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName != "data-"+p.Name {
			t.Errorf("pod %s: volumes %v", p.Name, p.Spec.Volumes)
		}
		claim, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), "data-"+p.Name, metav1.GetOptions{})
		if err != nil || claim.Labels["app"] != "web" || claim.Labels["tier"] != "db" || len(claim.OwnerReferences) != 0 {
			t.Errorf("claim %v, %v", claim, err)
		}
	}
	edit(t, c, func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 1 })
	waitFor(t, c, "v1", 1)
	l, err := c.CoreV1().PersistentVolumeClaims("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(l.Items) != 3 {
		t.Errorf("%d claims are left, want all three: %v", len(l.Items), err)
	}
}

func TestRollsOverAndBack(t *testing.T) {
	c := runtimetest.New(t, newSet(3))
	start(t, c)
	waitFor(t, c, "v1", 3)
	edit(t, c, image("v2"))
	waitFor(t, c, "v2", 3)
	edit(t, c, image("v1"))
	waitFor(t, c, "v1", 3)
	l, err := c.AppsV1().ControllerRevisions("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(l.Items) != 2 {
		t.Errorf("%d revisions, want one for each template: %v", len(l.Items), err)
	}
}

func TestMendedTemplateGoesOn(t *testing.T) {
	set := newSet(2)
	image("broken")(set)
	c := runtimetest.New(t, set)
	start(t, c)
	waitPending := func(name string) {
		t.Helper()
		runtimetest.Eventually(t, func() string {
			run(t, c)
			p, err := c.CoreV1().Pods("default").Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || p.Status.Phase != corev1.PodPending {
				return fmt.Sprintf("pod %s is not pending: %v", name, err)
			}
			return ""
		})
	}
	waitPending("web-0")
	edit(t, c, image("v1"))
	waitFor(t, c, "v1", 2)
	edit(t, c, image("broken"))
	waitPending("web-1")
	edit(t, c, image("v2"))
	waitFor(t, c, "v2", 2)
}

func TestClaimsGoWithThePodsScaledDown(t *testing.T) {
	set := newSet(2)
	withClaims(set)
	set.Spec.PersistentVolumeClaimRetentionPolicy = policy(appsv1.DeletePersistentVolumeClaimRetentionPolicyType, appsv1.DeletePersistentVolumeClaimRetentionPolicyType)
	c := runtimetest.New(t, set)
	start(t, c)
	waitFor(t, c, "v1", 2)
	owner := func(name string) string {
		claim, err := c.CoreV1().PersistentVolumeClaims("default").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if ref := metav1.GetControllerOf(claim); ref != nil {
			return ref.Kind
		}
		return ""
	}
	if o := owner("data-web-1"); o != "StatefulSet" {
		t.Errorf("the claim's owner is %q", o)
	}
	edit(t, c, func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 1 })
	waitFor(t, c, "v1", 1)
	if o := owner("data-web-1"); o != "Pod" {
		t.Errorf("the owner of the claim scaled down is %q", o)
	}
	// Until the garbage collector has deleted it, a new pod does not get it.
	edit(t, c, func(s *appsv1.StatefulSet) { *s.Spec.Replicas = 2 })
	c.Settle(t)
	if n := len(pods(t, c)); n != 1 {
		t.Errorf("%d pods: one has a claim that is about to go", n)
	}
	if err := c.CoreV1().PersistentVolumeClaims("default").Delete(t.Context(), "data-web-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	waitFor(t, c, "v1", 2)
}

func TestSettledSetWritesNothing(t *testing.T) {
	set := newSet(2)
	withClaims(set)
	c := runtimetest.New(t, set)
	start(t, c)
	waitFor(t, c, "v1", 2)
	c.Settle(t)
	before := c.Writes()
	p := pods(t, c)[0]
	p.Annotations = map[string]string{"x": "y"} // reconciles
	if _, err := c.CoreV1().Pods("default").Update(t.Context(), &p, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.Settle(t)
	if w := c.Writes() - before - 1; w != 0 {
		t.Errorf("%d writes without a need", w)
	}
}
