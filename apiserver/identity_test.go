package apiserver_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tripod-cluster/tripod/apiserver"
)

// whoami is the user as which the API takes a client.
func whoami(t *testing.T, cs *kubernetes.Clientset) (authenticationv1.UserInfo, error) {
	t.Helper()
	me, err := cs.AuthenticationV1().SelfSubjectReviews().Create(testContext(t), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return me.Status.UserInfo, nil
}

func TestIssuersTokensAreTaken(t *testing.T) {
	c := start(t)
	as := func(claims map[string]any) (authenticationv1.UserInfo, error) {
		token, err := c.outside.token(claims)
		if err != nil {
			t.Fatal(err)
		}
		return whoami(t, client(t, c.bearer(token)))
	}
	eventually(t, "the issuer's keys are known", func() error {
		u, err := as(map[string]any{"groups": []string{"crew"}})
		if err != nil {
			return err
		}
		if u.Username != "oidc:ann" || !slices.Contains(u.Groups, "oidc:crew") {
			t.Errorf("the token is of %s, %v", u.Username, u.Groups)
		}
		return nil
	})
	for name, claims := range map[string]map[string]any{
		"another audience": {"aud": "elsewhere"}, "another team": {"team": "cars"}, "expired": {"exp": 1}, "another issuer": {"iss": "https://127.0.0.1:1"},
	} {
		if u, err := as(claims); !apierrors.IsUnauthorized(err) {
			t.Errorf("%s: taken as %s, %v", name, u.Username, err)
		}
	}

	if err := c.outside.writeAuthentication("sso:"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the changed file is in force", func() error {
		u, err := as(nil)
		if err == nil && u.Username != "sso:ann" {
			err = fmt.Errorf("the token is of %s", u.Username)
		}
		return err
	})
	if got := get(t, c.anonymous(), http.MethodGet, "/version"); got != http.StatusUnauthorized {
		t.Errorf("after a reload, anonymous GET /version: %d", got)
	}
	if got := get(t, c.anonymous(), http.MethodGet, "/readyz"); got != http.StatusOK {
		t.Errorf("after a reload, anonymous GET /readyz: %d", got)
	}
}

// TestWebhooksDecide: who a token's owner is, and what it may do, is asked outside.
func TestWebhooksDecide(t *testing.T) {
	c, ctx := start(t), testContext(t)
	hooked := client(t, c.bearer("opaque"))
	u, err := whoami(t, hooked)
	if err != nil || u.Username != "hooked-reader" || !slices.Contains(u.Groups, "outsiders") {
		t.Fatalf("the token is of %s, %v: %v", u.Username, u.Groups, err)
	}
	if _, err := whoami(t, client(t, c.bearer("unknown"))); !apierrors.IsUnauthorized(err) {
		t.Errorf("a token that nobody knows: %v", err)
	}
	if _, err := hooked.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("what the webhook allows: %v", err)
	}
	if _, err := hooked.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("what the webhook does not allow: %v", err)
	}
	if _, err := client(t, c.as(t, "reader")).CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a user that the webhook is not asked about: %v", err)
	}
}

func TestAuditWebhookGetsTheEvents(t *testing.T) {
	c, ctx := start(t), testContext(t)
	if _, err := c.admin(t).CoreV1().Secrets("default").Create(ctx, secret("told", "x"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the webhook has the event", func() error {
		c.outside.mu.Lock()
		defer c.outside.mu.Unlock()
		// With generated names in the rule, a create is told with the name of the request's object.
		if !slices.ContainsFunc(c.outside.audited, func(e string) bool { return strings.HasPrefix(e, "create secrets/") }) {
			return fmt.Errorf("it has %d others", len(c.outside.audited))
		}
		return nil
	})
}

// TestServiceAccountTokensCanBeVerified: by the keys that the issuer tells to
// ServiceAccounts, and by a TokenReview, until the ServiceAccount is gone.
func TestServiceAccountTokensCanBeVerified(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	accounts := cs.CoreV1().ServiceAccounts("default")
	if _, err := accounts.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "verified"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	seconds := int64(3600)
	tr, err := accounts.CreateToken(ctx, "verified", &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	own := client(t, c.bearer(tr.Status.Token))
	var keys []byte
	eventually(t, "a ServiceAccount reads the issuer's keys", func() error {
		keys, err = own.Discovery().RESTClient().Get().AbsPath("/openid/v1/jwks").DoRaw(ctx)
		return err
	})
	config, err := own.Discovery().RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	if err != nil || !strings.Contains(string(config), `"issuer":"`+apiserver.Issuer+`"`) || !strings.Contains(string(config), "/openid/v1/jwks") {
		t.Errorf("the issuer tells %s, %v", config, err)
	}
	if got := get(t, c.as(t, "somebody"), http.MethodGet, "/openid/v1/jwks"); got != http.StatusForbidden {
		t.Errorf("a user who is no ServiceAccount got %d", got)
	}
	parsed, _, err := jwt.NewParser().ParseUnverified(tr.Status.Token, jwt.MapClaims{})
	if err != nil {
		t.Fatal(err)
	}
	var set struct {
		Keys []struct {
			Kid string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(keys, &set); err != nil || len(set.Keys) == 0 || set.Keys[0].Kid != parsed.Header["kid"] {
		t.Errorf("keys %s do not hold the token's %v: %v", keys, parsed.Header["kid"], err)
	}

	review := func(audiences ...string) authenticationv1.TokenReviewStatus {
		r, err := cs.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: tr.Status.Token, Audiences: audiences}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return r.Status
	}
	if s := review(); !s.Authenticated || s.User.Username != "system:serviceaccount:default:verified" {
		t.Errorf("a review says %+v", s)
	}
	if s := review("elsewhere"); s.Authenticated {
		t.Error("a review for another audience accepts the token")
	}
	if err := accounts.Delete(ctx, "verified", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the token of a deleted ServiceAccount is refused", func() error {
		if review().Authenticated {
			return errors.New("it is accepted")
		}
		return nil
	})
}
