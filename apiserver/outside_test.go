package apiserver_test

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/golang-jwt/jwt/v5"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	kms "k8s.io/kms/pkg/service"

	"github.com/tripod-cluster/tripod/apiserver"
)

// outside is what an operator may put beside a cluster: an issuer of tokens,
// webhooks, a KMS plugin, and the files that tell the API server of them.
type outside struct {
	dir    string
	https  *httptest.Server
	key    *ecdsa.PrivateKey // signs the issuer's tokens
	plugin *kms.GRPCService

	mu      sync.Mutex
	audited []string // what the audit webhook got: VERB RESOURCE/NAME
}

func newOutside(dir string) (*outside, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	o := &outside{dir: dir, key: key}
	mux := http.NewServeMux()
	mux.HandleFunc("/.well-known/openid-configuration", o.discovery)
	mux.HandleFunc("/keys", o.keys)
	mux.HandleFunc("/tokens", o.reviewToken)
	mux.HandleFunc("/access", o.reviewAccess)
	mux.HandleFunc("/audit", o.takeAudit)
	o.https = httptest.NewTLSServer(mux)

	socket := filepath.Join(dir, "kms.sock")
	o.plugin = kms.NewGRPCService(socket, 5*time.Second, &reversing{})
	go o.plugin.ListenAndServe() //nolint:errcheck // ends with Close
	for start := time.Now(); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(socket); err == nil {
			break
		}
		if time.Since(start) > within {
			return nil, errors.New("the KMS plugin does not listen")
		}
	}
	return o, errors.Join(o.writeEncryption("aescbc", "key1"), o.writeAuthentication("oidc:"), o.writeRest())
}

func (o *outside) close() {
	o.https.Close()
	o.plugin.Close()
}

func (o *outside) path(name string) string { return filepath.Join(o.dir, name) }

func (o *outside) options() apiserver.Options {
	return apiserver.Options{
		FeatureGates:          map[string]bool{"CBORServingAndStorage": true, "CoordinatedLeaderElection": true},
		RuntimeConfig:         map[string]bool{"coordination.k8s.io/v1beta1": true, "autoscaling/v1": false},
		EncryptionConfig:      o.path("encryption.yaml"),
		AuthenticationConfig:  o.path("authentication.yaml"),
		AuthenticationWebhook: o.path("tokens.kubeconfig"),
		AuthorizationConfig:   o.path("authorization.yaml"),
		AuditWebhook:          o.path("audit.kubeconfig"),
		ReloadInterval:        200 * time.Millisecond,
	}
}

// write replaces a file at once, as an operator's editor does.
func (o *outside) write(name, text string) error {
	next := o.path(name + ".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		return err
	}
	return os.Rename(next, o.path(name))
}

// localKey is the secret of the local key of that name.
func localKey(name string) string {
	return base64.StdEncoding.EncodeToString([]byte(strings.Repeat(name+"-", 32)[:32]))
}

// writeEncryption has Secrets written with the first of the keys, each given as
// provider and name, and read with all of them.
func (o *outside) writeEncryption(keys ...string) error {
	b := &strings.Builder{}
	b.WriteString("apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n- resources: [secrets]\n  providers:\n")
	for i := 0; i+1 < len(keys); i += 2 {
		fmt.Fprintf(b, "  - %s: {keys: [{name: %s, secret: %s}]}\n", keys[i], keys[i+1], localKey(keys[i+1]))
	}
	fmt.Fprintf(b, "  - identity: {}\n- resources: [configmaps]\n  providers:\n  - kms: {apiVersion: v2, name: reversing, endpoint: \"unix://%s\"}\n  - identity: {}\n", o.path("kms.sock"))
	return o.write("encryption.yaml", b.String())
}

// writeAuthentication has the issuer's users named with a prefix.
func (o *outside) writeAuthentication(prefix string) error {
	ca := strings.ReplaceAll(string(o.ca()), "\n", "\n      ")
	return o.write("authentication.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthenticationConfiguration
jwt:
- issuer:
    url: %s
    audiences: [tripod]
    certificateAuthority: |
      %s
  claimMappings:
    username: {claim: sub, prefix: %q}
    groups: {claim: groups, prefix: %q}
  claimValidationRules:
  - expression: "has(claims.team) && claims.team == 'boats'"
    message: only for the team of boats
`, o.https.URL, ca, prefix, prefix))
}

func (o *outside) writeRest() error {
	return errors.Join(
		o.write("authorization.yaml", fmt.Sprintf(`apiVersion: apiserver.config.k8s.io/v1
kind: AuthorizationConfiguration
authorizers:
- {type: Node, name: node}
- {type: RBAC, name: rbac}
- type: Webhook
  name: outside
  webhook:
    timeout: 5s
    subjectAccessReviewVersion: v1
    matchConditionSubjectAccessReviewVersion: v1
    failurePolicy: NoOpinion
    authorizedTTL: 1s
    unauthorizedTTL: 1s
    connectionInfo: {type: KubeConfigFile, kubeConfigFile: %s}
    matchConditions:
    - expression: "request.user.startsWith('hooked-')"
`, o.path("access.kubeconfig"))),
		o.write("access.kubeconfig", o.kubeconfig("/access")),
		o.write("tokens.kubeconfig", o.kubeconfig("/tokens")),
		o.write("audit.kubeconfig", o.kubeconfig("/audit")),
	)
}

func (o *outside) ca() []byte { return certificateOf(o.https) }

func (o *outside) kubeconfig(path string) string {
	return fmt.Sprintf(`apiVersion: v1
kind: Config
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
`, o.https.URL+path, base64.StdEncoding.EncodeToString(o.ca()))
}

func (o *outside) discovery(w http.ResponseWriter, _ *http.Request) {
	json.NewEncoder(w).Encode(map[string]any{"issuer": o.https.URL, "jwks_uri": o.https.URL + "/keys", "id_token_signing_alg_values_supported": []string{"ES256"}})
}

func (o *outside) keys(w http.ResponseWriter, _ *http.Request) {
	point, err := o.key.PublicKey.Bytes() // 4, x, y
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	b64 := base64.RawURLEncoding.EncodeToString
	json.NewEncoder(w).Encode(map[string]any{"keys": []any{map[string]string{
		"kty": "EC", "crv": "P-256", "kid": "k", "use": "sig", "alg": "ES256", "x": b64(point[1:33]), "y": b64(point[33:]),
	}}})
}

// token is one of the issuer's, with the claims that are usual and those given.
func (o *outside) token(claims map[string]any) (string, error) {
	c := jwt.MapClaims{"iss": o.https.URL, "aud": "tripod", "sub": "ann", "team": "boats", "exp": time.Now().Add(time.Hour).Unix(), "iat": time.Now().Unix()}
	for k, v := range claims {
		c[k] = v
	}
	t := jwt.NewWithClaims(jwt.SigningMethodES256, c)
	t.Header["kid"] = "k"
	return t.SignedString(o.key)
}

// reviewToken knows the token "opaque".
func (o *outside) reviewToken(w http.ResponseWriter, r *http.Request) {
	var review authenticationv1.TokenReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	if review.Spec.Token == "opaque" {
		review.Status.Authenticated = true
		review.Status.User = authenticationv1.UserInfo{Username: "hooked-reader", Groups: []string{"outsiders"}}
	}
	json.NewEncoder(w).Encode(review)
}

// reviewAccess lets everybody that it is asked about list pods in the default
// namespace.
func (o *outside) reviewAccess(w http.ResponseWriter, r *http.Request) {
	var review authorizationv1.SubjectAccessReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a := review.Spec.ResourceAttributes
	review.Status.Allowed = a != nil && a.Verb == "list" && a.Resource == "pods" && a.Namespace == "default"
	json.NewEncoder(w).Encode(review)
}

func (o *outside) takeAudit(_ http.ResponseWriter, r *http.Request) {
	var list auditv1.EventList
	if err := json.NewDecoder(r.Body).Decode(&list); err != nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, e := range list.Items {
		if e.ObjectRef != nil {
			o.audited = append(o.audited, e.Verb+" "+e.ObjectRef.Resource+"/"+e.ObjectRef.Name)
		}
	}
}

// reversing is a KMS plugin whose only virtue is that it changes what it gets.
type reversing struct{}

func reverse(b []byte) []byte {
	out := bytes.Clone(b)
	for i := range out {
		out[i] ^= 0x5a
	}
	return out
}

func (*reversing) Status(context.Context) (*kms.StatusResponse, error) {
	return &kms.StatusResponse{Version: "v2", Healthz: "ok", KeyID: "one"}, nil
}

func (*reversing) Encrypt(_ context.Context, _ string, data []byte) (*kms.EncryptResponse, error) {
	return &kms.EncryptResponse{Ciphertext: reverse(data), KeyID: "one"}, nil
}

func (*reversing) Decrypt(_ context.Context, _ string, r *kms.DecryptRequest) ([]byte, error) {
	if r.KeyID != "one" {
		return nil, fmt.Errorf("no key %q", r.KeyID)
	}
	return reverse(r.Ciphertext), nil
}

// certificateOf is what a client needs to trust s.
func certificateOf(s *httptest.Server) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
}
