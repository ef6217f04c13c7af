package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

const (
	// A token is renewed when four fifths of its life, or a day, have passed.
	renewAfterPercent = 80
	maxTokenAge       = 24 * time.Hour
)

type tokenKey struct {
	uid      types.UID
	audience string
	seconds  int64
}

type token struct {
	value           string
	issued, expires time.Time
}

func (t token) stale(now time.Time) bool {
	life := t.expires.Sub(t.issued)
	return now.After(t.issued.Add(life*renewAfterPercent/100)) || now.Sub(t.issued) > maxTokenAge
}

// tokens asks for ServiceAccount tokens bound to pods and keeps them until
// they need renewal.
type tokens struct {
	client kubernetes.Interface
	mu     sync.Mutex
	have   map[tokenKey]token
}

func newTokens(c kubernetes.Interface) *tokens {
	return &tokens{client: c, have: map[tokenKey]token{}}
}

func (t *tokens) get(ctx context.Context, pod *v1.Pod, s *v1.ServiceAccountTokenProjection) (string, error) {
	seconds := int64(3600)
	if s.ExpirationSeconds != nil {
		seconds = *s.ExpirationSeconds
	}
	key := tokenKey{pod.UID, s.Audience, seconds}
	t.mu.Lock()
	cur, ok := t.have[key]
	t.mu.Unlock()
	now := time.Now()
	if ok && !cur.stale(now) {
		return cur.value, nil
	}
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	req := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: &seconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	if s.Audience != "" {
		req.Spec.Audiences = []string{s.Audience}
	}
	r, err := t.client.CoreV1().ServiceAccounts(pod.Namespace).CreateToken(ctx, account, req, metav1.CreateOptions{})
	if err != nil {
		if ok && now.Before(cur.expires) {
			return cur.value, nil
		}
		return "", fmt.Errorf("token of service account %s/%s: %w", pod.Namespace, account, err)
	}
	n := token{value: r.Status.Token, issued: now, expires: r.Status.ExpirationTimestamp.Time}
	t.mu.Lock()
	t.have[key] = n
	t.mu.Unlock()
	return n.value, nil
}

func (t *tokens) drop(uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for k := range t.have {
		if k.uid == uid {
			delete(t.have, k)
		}
	}
}
