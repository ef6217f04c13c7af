package serviceaccounttoken

import (
	"context"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func secret(name, account, uid string) *corev1.Secret {
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Annotations: map[string]string{corev1.ServiceAccountNameKey: account}},
		Type:       corev1.SecretTypeServiceAccountToken,
	}
	if uid != "" {
		s.Annotations[corev1.ServiceAccountUIDKey] = uid
	}
	return s
}

func TestTokenSecretsThroughTheirLives(t *testing.T) {
	account := &corev1.ServiceAccount{
		ObjectMeta: metav1.ObjectMeta{Name: "robot", Namespace: "default", UID: "uid-of-robot"},
		Secrets:    []corev1.ObjectReference{{Name: "new"}, {Name: "other"}},
	}
	c := runtimetest.New(t, account, secret("new", "robot", ""), secret("of-an-earlier-robot", "robot", "another-uid"), secret("of-nobody", "nobody", ""))
	sign := func(_ context.Context, a *corev1.ServiceAccount, s *corev1.Secret) (string, error) {
		return "token of " + a.Name + " in " + s.Name, nil
	}
	c.Run(t, map[string]runtime.Builder{"serviceaccounttoken": func(q runtime.Queue) (runtime.Controller, error) {
		return New(c.Deps(), q, sign, []byte("ca"))
	}})
	secrets := c.CoreV1().Secrets("default")
	runtimetest.Eventually(t, func() string {
		s, err := secrets.Get(t.Context(), "new", metav1.GetOptions{})
		if err != nil {
			return err.Error()
		}
		if string(s.Data["token"]) != "token of robot in new" || string(s.Data["ca.crt"]) != "ca" || string(s.Data["namespace"]) != "default" ||
			s.Annotations[corev1.ServiceAccountUIDKey] != "uid-of-robot" {
			return fmt.Sprintf("keys %d, annotations %v", len(s.Data), s.Annotations)
		}
		for _, name := range []string{"of-an-earlier-robot", "of-nobody"} {
			if _, err := secrets.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return fmt.Sprintf("%s: %v", name, err)
			}
		}
		return ""
	})
	c.Settle(t)
	if w := c.Writes(); w != 3 {
		t.Errorf("%d writes, want one filling and two deletions", w)
	}
	if err := secrets.Delete(t.Context(), "new", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	runtimetest.Eventually(t, func() string {
		a, err := c.CoreV1().ServiceAccounts("default").Get(t.Context(), "robot", metav1.GetOptions{})
		if err != nil || len(a.Secrets) != 1 || a.Secrets[0].Name != "other" {
			return fmt.Sprintf("%v, %v", a, err)
		}
		return ""
	})
}
