package resourcequota

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func list(pairs ...string) corev1.ResourceList {
	out := corev1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		out[corev1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return out
}

func TestWhatIsCounted(t *testing.T) {
	for name, want := range map[corev1.ResourceName]string{
		"secrets": "secrets", "configmaps": "configmaps", "count/secrets": "secrets", "count/deployments.apps": "deployments.apps",
		"count/widgets.example.com": "widgets.example.com", "cpu": "", "requests.cpu": "", "pods": "", "services.nodeports": "",
	} {
		gr, ok := countedResource(name)
		if ok != (want != "") || ok && gr.String() != want {
			t.Errorf("%s: %s, %v; want %q", name, gr, ok, want)
		}
	}
}

func TestInterval(t *testing.T) {
	for name, want := range map[string]time.Duration{
		"requests.cpu": resync, "pods": resync, "count/pods": resync, "configmaps": resync,
		"secrets": poll, "count/jobs.batch": poll, "gpu.deviceclass.resource.k8s.io/devices": poll,
	} {
		if got := interval(list("cpu", "1", name, "1")); got != want {
			t.Errorf("%s: %s, want %s", name, got, want)
		}
	}
}

func TestStatus(t *testing.T) {
	q := &corev1.ResourceQuota{
		Spec:   corev1.ResourceQuotaSpec{Hard: list("cpu", "4", "pods", "10", "secrets", "3")},
		Status: corev1.ResourceQuotaStatus{Used: list("secrets", "2", "memory", "1Gi")},
	}
	s := status(q, list("cpu", "500m", "memory", "2Gi"))
	if !same(s, corev1.ResourceQuotaStatus{Hard: q.Spec.Hard, Used: list("cpu", "0.5", "pods", "0", "secrets", "2")}) {
		t.Errorf("%+v", s)
	}
}

func TestLowers(t *testing.T) {
	of := func(pairs ...string) corev1.ResourceQuotaStatus {
		return corev1.ResourceQuotaStatus{Used: list(pairs...)}
	}
	if lowers(of("cpu", "1"), of("cpu", "1", "pods", "0")) || lowers(of("cpu", "1"), of("cpu", "2")) {
		t.Error("what rises or begins is lowered")
	}
	if !lowers(of("cpu", "1", "pods", "3"), of("cpu", "2", "pods", "2")) {
		t.Error("one of two is lowered, unnoticed")
	}
}
