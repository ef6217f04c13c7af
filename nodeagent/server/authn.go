package server

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// How long reviewed answers are believed: a kubelet's defaults.
const (
	tokenTTL    = 2 * time.Minute
	allowedTTL  = 5 * time.Minute
	deniedTTL   = 30 * time.Second
	reviewLimit = 10 * time.Second
)

// user is an authenticated caller.
type user struct {
	Name   string
	UID    string
	Groups []string
	Extra  map[string][]string
}

type authenticator struct {
	roots  *x509.CertPool
	client kubernetes.Interface
	tokens *ttlCache[[sha256.Size]byte, *user] // nil: reviewed and refused
}

func newAuthenticator(roots *x509.CertPool, client kubernetes.Interface) *authenticator {
	return &authenticator{roots: roots, client: client, tokens: newTTLCache[[sha256.Size]byte, *user](4096)}
}

var errNobody = errors.New("no client certificate and no bearer token")

func (a *authenticator) authenticate(r *http.Request) (*user, error) {
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		u, err := a.certificate(r.TLS.PeerCertificates)
		if err == nil {
			return u, nil
		}
		if bearer(r) == "" {
			return nil, err
		}
	}
	t := bearer(r)
	if t == "" {
		return nil, errNobody
	}
	return a.token(r.Context(), t)
}

func bearer(r *http.Request) string {
	scheme, t, ok := strings.Cut(strings.TrimSpace(r.Header.Get("Authorization")), " ")
	if !ok || !strings.EqualFold(scheme, "bearer") {
		return ""
	}
	return strings.TrimSpace(t)
}

func (a *authenticator) certificate(chain []*x509.Certificate) (*user, error) {
	inter := x509.NewCertPool()
	for _, c := range chain[1:] {
		inter.AddCert(c)
	}
	if _, err := chain[0].Verify(x509.VerifyOptions{Roots: a.roots, Intermediates: inter, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
		return nil, fmt.Errorf("client certificate of %q: %w", chain[0].Subject.CommonName, err)
	}
	if chain[0].Subject.CommonName == "" {
		return nil, errors.New("client certificate names nobody")
	}
	return &user{Name: chain[0].Subject.CommonName, Groups: append(append([]string{}, chain[0].Subject.Organization...), "system:authenticated")}, nil
}

func (a *authenticator) token(ctx context.Context, t string) (*user, error) {
	key := sha256.Sum256([]byte(t)) // the cache must not hold usable tokens
	if u, ok := a.tokens.get(key); ok {
		if u == nil {
			return nil, errors.New("bearer token refused (remembered)")
		}
		return u, nil
	}
	ctx, cancel := context.WithTimeout(ctx, reviewLimit)
	defer cancel()
	r, err := a.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: t}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("token review: %w", err)
	}
	if !r.Status.Authenticated {
		a.tokens.put(key, nil, deniedTTL)
		return nil, fmt.Errorf("bearer token refused: %s", r.Status.Error)
	}
	u := &user{Name: r.Status.User.Username, UID: r.Status.User.UID, Groups: r.Status.User.Groups, Extra: map[string][]string{}}
	for k, v := range r.Status.User.Extra {
		u.Extra[k] = v
	}
	a.tokens.put(key, u, tokenTTL)
	return u, nil
}
