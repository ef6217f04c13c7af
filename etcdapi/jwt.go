package etcdapi

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/golang-jwt/jwt/v5"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/tripod-cluster/tripod/store"
)

// errVerifyOnly refuses to make a token where only the public key is known.
// Code and text are etcd's.
var errVerifyOnly = status.Error(codes.Unknown, "auth: token signing attempted with verify-only key")

// signedTokens are JSON web tokens. They are good on every member that knows
// the key, and end with their time only, or with a change of users and roles.
type signedTokens struct {
	method jwt.SigningMethod
	sealer any // private key or secret; nil to only verify
	opener any // public key or secret
	ttl    time.Duration
}

func newSignedTokens(options map[string]string) (Tokens, error) {
	for name := range options {
		switch name {
		case "sign-method", "pub-key", "priv-key", "ttl":
		default:
			return nil, fmt.Errorf("jwt option %q is not known (want sign-method, pub-key, priv-key, ttl): %w", name, ErrTokenOptions)
		}
	}
	t := &signedTokens{method: jwt.GetSigningMethod(options["sign-method"]), ttl: DefaultTokenTTL}
	if t.method == nil || t.method == jwt.SigningMethodNone {
		return nil, fmt.Errorf("jwt sign-method %q is not known (want RS256, PS256, ES256, EdDSA, HS256 or a longer one): %w", options["sign-method"], ErrTokenOptions)
	}
	if text := options["ttl"]; text != "" {
		ttl, err := time.ParseDuration(text)
		if err != nil {
			return nil, fmt.Errorf("jwt ttl %q: %v: %w", text, err, ErrTokenOptions)
		}
		t.ttl = ttl
	}
	private, err := readKey("priv-key", options)
	if err != nil {
		return nil, err
	}
	public, err := readKey("pub-key", options)
	if err != nil {
		return nil, err
	}
	switch t.method.(type) {
	case *jwt.SigningMethodRSA, *jwt.SigningMethodRSAPSS:
		err = keyPair(t, private, public, jwt.ParseRSAPrivateKeyFromPEM, jwt.ParseRSAPublicKeyFromPEM)
	case *jwt.SigningMethodECDSA:
		err = keyPair(t, private, public, jwt.ParseECPrivateKeyFromPEM, jwt.ParseECPublicKeyFromPEM)
	case *jwt.SigningMethodEd25519:
		err = keyPair(t, private, public, jwt.ParseEdPrivateKeyFromPEM, jwt.ParseEdPublicKeyFromPEM)
	default: // a shared secret
		if len(private) == 0 {
			err = errors.New("it needs a secret: give priv-key")
		}
		t.sealer, t.opener = private, private
	}
	if err != nil {
		return nil, fmt.Errorf("jwt with sign-method %s: %w: %w", t.method.Alg(), err, ErrTokenOptions)
	}
	return t, nil
}

func readKey(option string, options map[string]string) ([]byte, error) {
	name := options[option]
	if name == "" {
		return nil, nil
	}
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("jwt %s: %w: %w", option, err, ErrTokenOptions)
	}
	return b, nil
}

// keyPair sets t's keys from their PEM. The private key alone is enough; the
// public one alone can only verify; both must belong together.
func keyPair[Private, Public any](t *signedTokens, private, public []byte, parsePrivate func([]byte) (Private, error), parsePublic func([]byte) (Public, error)) error {
	if len(private) == 0 && len(public) == 0 {
		return errors.New("it needs a key: give priv-key, or pub-key to only verify")
	}
	if len(public) > 0 {
		key, err := parsePublic(public)
		if err != nil {
			return fmt.Errorf("pub-key: %w", err)
		}
		t.opener = key
	}
	if len(private) == 0 {
		return nil
	}
	key, err := parsePrivate(private)
	if err != nil {
		return fmt.Errorf("priv-key: %w", err)
	}
	signer, ok := any(key).(crypto.Signer)
	if !ok {
		return fmt.Errorf("priv-key: a %T cannot sign", key)
	}
	own := signer.Public()
	if t.opener != nil && !samePublic(own, t.opener) {
		return errors.New("pub-key and priv-key do not belong together")
	}
	t.sealer, t.opener = key, own
	return nil
}

func samePublic(a crypto.PublicKey, b any) bool {
	switch a := a.(type) {
	case *rsa.PublicKey:
		return a.Equal(b)
	case *ecdsa.PublicKey:
		return a.Equal(b)
	case ed25519.PublicKey:
		return a.Equal(b)
	}
	return false
}

func (t *signedTokens) prefix() string           { return "" }
func (t *signedTokens) follow(store.TokenChange) {}

func (t *signedTokens) sign(user string, revision uint64) (string, error) {
	if t.sealer == nil {
		return "", errVerifyOnly
	}
	return jwt.NewWithClaims(t.method, jwt.MapClaims{
		"username": user,
		"revision": revision,
		"exp":      time.Now().Add(t.ttl).Unix(),
	}).SignedString(t.sealer)
}

func (t *signedTokens) info(_ context.Context, word string, _ func() *store.Auth, _ func(context.Context) error) (store.AuthInfo, bool) {
	parsed, err := jwt.Parse(word, func(*jwt.Token) (any, error) { return t.opener, nil }, jwt.WithValidMethods([]string{t.method.Alg()}))
	if err != nil {
		return store.AuthInfo{}, false
	}
	claims, _ := parsed.Claims.(jwt.MapClaims)
	user, okUser := claims["username"].(string)
	revision, okRevision := claims["revision"].(float64)
	return store.AuthInfo{Username: user, Revision: uint64(revision)}, okUser && okRevision
}
