package etcdapi

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/tripod-cluster/tripod/store"
)

// keyFiles writes a key pair and returns the options that name its files.
func keyFiles(t *testing.T, key crypto.Signer) (private, public string) {
	t.Helper()
	write := func(kind string, der []byte, err error) string {
		if err != nil {
			t.Fatal(err)
		}
		name := filepath.Join(t.TempDir(), "key.pem")
		if err := os.WriteFile(name, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if ec, ok := key.(*ecdsa.PrivateKey); ok {
		der, err = x509.MarshalECPrivateKey(ec)
		private = write("EC PRIVATE KEY", der, err)
	} else {
		private = write("PRIVATE KEY", der, err)
	}
	der, err = x509.MarshalPKIXPublicKey(key.Public())
	return ",priv-key=" + private, ",pub-key=" + write("PUBLIC KEY", der, err)
}

func TestSignedTokens(t *testing.T) {
	rsaKey, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	ecKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	_, edKey, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("a secret of some length, not to be guessed"), 0o600); err != nil {
		t.Fatal(err)
	}
	info := func(tokens Tokens, word string) (store.AuthInfo, bool) {
		return tokens.info(t.Context(), word, nil, nil)
	}
	parse := func(description string) Tokens {
		t.Helper()
		tokens, err := ParseTokens(description, 0)
		if err != nil {
			t.Fatal(err)
		}
		return tokens
	}
	hmac := parse("jwt,sign-method=HS256,priv-key=" + secret)
	for _, c := range []struct {
		method string
		key    crypto.Signer
	}{{"RS256", rsaKey}, {"PS256", rsaKey}, {"ES256", ecKey}, {"EdDSA", edKey}} {
		private, public := keyFiles(t, c.key)
		signer := parse("jwt,sign-method=" + c.method + private + ",ttl=1h")
		verifier := parse("jwt,sign-method=" + c.method + public)
		parse("jwt,sign-method=" + c.method + public + private)
		word, err := signer.sign("alice", 7)
		if err != nil {
			t.Fatal(c.method, err)
		}
		for who, tokens := range map[string]Tokens{"signer": signer, "verifier": verifier} {
			if got, ok := info(tokens, word); !ok || got != (store.AuthInfo{Username: "alice", Revision: 7}) {
				t.Errorf("%s, %s: %+v, %v", c.method, who, got, ok)
			}
			if _, ok := info(tokens, word[:len(word)-8]+"AAAAAAAA"); ok {
				t.Errorf("%s, %s: a forged signature", c.method, who)
			}
		}
		if _, err := verifier.sign("alice", 7); err != errVerifyOnly {
			t.Errorf("%s: a verifier signs: %v", c.method, err)
		}
		if _, ok := info(hmac, word); ok {
			t.Errorf("%s: a token of another method", c.method)
		}
	}
	// A public key is no secret: who knows it must not be able to sign with it.
	private, public := keyFiles(t, rsaKey)
	forged := parse("jwt,sign-method=HS256,priv-key=" + strings.TrimPrefix(public, ",pub-key="))
	word, err := forged.sign("root", 9)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok := info(parse("jwt,sign-method=RS256"+private), word); ok {
		t.Error("a token that was signed with the public key as a secret")
	}

	_, otherPublic := keyFiles(t, edKey)
	for description, want := range map[string]string{
		"":                                         "simple or jwt",
		"jwt":                                      "sign-method",
		"jwt,sign-method=none":                     "sign-method",
		"jwt,sign-method=RS256":                    "priv-key",
		"jwt,sign-method=HS256":                    "secret",
		"jwt,sign-method=RS256,ttl=x":              "ttl",
		"jwt,sign-method=RS256,ttl":                "name=value",
		"jwt,sign-method=RS256,ttl=1h,q=":          "not known",
		"jwt,sign-method=RS256,ttl=1h,ttl=2h":      "once",
		"jwt,sign-method=RS256,priv-key=/nowhere":  "/nowhere",
		"jwt,sign-method=RS256,priv-key=" + secret: "priv-key",
		"jwt,sign-method=EdDSA" + mustKey(t) + otherPublic:        "belong together",
		"jwt,sign-method=ES256" + otherPublic:                     "pub-key",
		"jwt,sign-method=RS256" + private + ",unknown-option=yes": "not known",
	} {
		if _, err := ParseTokens(description, 0); !errors.Is(err, ErrTokenOptions) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want one about %s", description, err, want)
		}
	}
}

func mustKey(t *testing.T) string {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, _ := keyFiles(t, key)
	return private
}

func TestSignedTokensEnd(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("0123456789012345678901234567890123456789"), 0o600); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		tokens, err := ParseTokens("jwt,sign-method=HS512,ttl=1m,priv-key="+secret, 0)
		if err != nil {
			t.Fatal(err)
		}
		word, err := tokens.sign("alice", 7)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []bool{true, false} {
			if _, ok := tokens.info(context.Background(), word, nil, nil); ok != want {
				t.Errorf("it is good: %v", ok)
			}
			time.Sleep(61 * time.Second)
		}
	})
}

// A signed token is as of the auth revision at which it was made.
func TestClientWithSignedToken(t *testing.T) {
	private := mustKey(t)
	tokens, err := ParseTokens("jwt,sign-method=EdDSA"+private, 0)
	if err != nil {
		t.Fatal(err)
	}
	g := newAuthRig(t, func(c *Config) { c.Tokens = tokens })
	ctx := testContext(t)
	root, alice := g.as(t, "root"), g.as(t, "alice")
	if _, err := alice.Put(ctx, "b", "1"); err != nil {
		t.Fatal(err)
	}
	if _, err := root.RoleAdd(ctx, "more"); err != nil {
		t.Fatal(err)
	}
	// The client sees that its token is old, and logs in again.
	if _, err := alice.Put(ctx, "b", "2"); err != nil {
		t.Errorf("after roles have changed: %v", err)
	}
	if _, err := clientv3.New(clientv3.Config{Endpoints: g.client.Endpoints(), Username: "root", Password: "guess", Logger: zap.NewNop()}); !errors.Is(err, rpctypes.ErrAuthFailed) {
		t.Errorf("a wrong password: %v", err)
	}
}
