package legacytokencleaner

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	now := time.Date(2026, 6, 1, 12, 0, 0, 0, time.UTC)
	old := now.Add(-2 * unusedFor)
	token := func(made time.Time, labels map[string]string) *corev1.Secret {
		return &corev1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s", CreationTimestamp: metav1.NewTime(made), Labels: labels},
			Type:       corev1.SecretTypeServiceAccountToken,
		}
	}
	lists := &corev1.ServiceAccount{Secrets: []corev1.ObjectReference{{Name: "s"}}}
	for name, x := range map[string]struct {
		s       *corev1.Secret
		account *corev1.ServiceAccount
		mounted bool
		want    verdict
	}{
		"never used":                   {token(old, nil), lists, false, mark},
		"made lately":                  {token(now.Add(-unusedFor+time.Hour), nil), lists, false, keep},
		"used lately":                  {token(old, map[string]string{lastUsed: "2026-05-30"}), lists, false, keep},
		"used long ago":                {token(old, map[string]string{lastUsed: "2024-01-01"}), lists, false, mark},
		"a label that is no date":      {token(old, map[string]string{lastUsed: "x"}), lists, false, keep},
		"made by a person":             {token(old, nil), &corev1.ServiceAccount{}, false, keep},
		"without an account":           {token(old, nil), nil, false, keep},
		"a pod names it":               {token(old, nil), lists, true, keep},
		"marked lately":                {token(old, map[string]string{invalidSince: "2026-01-01"}), lists, false, keep},
		"marked long ago":              {token(old, map[string]string{invalidSince: "2025-05-01"}), lists, false, remove},
		"marked long ago, used lately": {token(old, map[string]string{invalidSince: "2025-05-01", lastUsed: "2026-05-30"}), lists, false, keep},
	} {
		if got := judge(x.s, x.account, x.mounted, now); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
}
