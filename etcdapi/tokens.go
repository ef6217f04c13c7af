package etcdapi

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/tripod-cluster/tripod/store"
)

// DefaultTokenTTL is how long a token is good, in simple tokens since its last
// use, in signed ones since it was made; etcd's.
const DefaultTokenTTL = 5 * time.Minute

// ErrTokenOptions refuses a description of tokens that says nothing sensible;
// the error that wraps it says what.
var ErrTokenOptions = errors.New("auth: invalid auth options")

// Tokens makes and checks the tokens that stand for users who have given their
// password. ParseTokens makes one.
type Tokens interface {
	// prefix begins a token that the store assigns; empty when sign makes it.
	prefix() string
	// sign makes a token for a user whose password was right at an auth
	// revision.
	sign(user string, revision uint64) (string, error)
	// follow is told of the tokens that the store assigns and ends.
	follow(store.TokenChange)
	// info tells for whom a token stands; false when it is no good.
	info(ctx context.Context, token string, auth func() *store.Auth, catchUp func(context.Context) error) (store.AuthInfo, bool)
}

// ParseTokens reads etcd's --auth-token: "simple", or "jwt," followed by
// sign-method=, and as the method needs, pub-key= and priv-key= (files in
// PEM, the secret itself in a file for HS256 and its like) and ttl=. ttl is
// what --auth-token-ttl says of simple tokens; 0 is DefaultTokenTTL. Errors
// wrap ErrTokenOptions, or are about reading the keys.
func ParseTokens(description string, ttl time.Duration) (Tokens, error) {
	kind, rest, _ := strings.Cut(description, ",")
	options := map[string]string{}
	if rest != "" {
		for _, o := range strings.Split(rest, ",") {
			k, v, ok := strings.Cut(o, "=")
			_, twice := options[k]
			if !ok || twice || strings.Contains(v, "=") {
				return nil, fmt.Errorf("token option %q: want each option once, as name=value: %w", o, ErrTokenOptions)
			}
			options[k] = v
		}
	}
	switch kind {
	case "simple":
		return newSimpleTokens(ttl), nil
	case "jwt":
		return newSignedTokens(options)
	}
	return nil, fmt.Errorf("tokens of kind %q: want simple or jwt: %w", kind, ErrTokenOptions)
}

// simpleTokens are random words with a number. The store assigns them on all
// members alike; each member forgets them after its own time without use.
type simpleTokens struct {
	ttl time.Duration

	mu     sync.Mutex
	tokens map[string]*simpleToken
	sweep  int // look for expired ones when there are this many
}

type simpleToken struct {
	user   string
	expiry time.Time
}

const (
	prefixLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	prefixLength  = 16
	minSweep      = 64
)

func newSimpleTokens(ttl time.Duration) *simpleTokens {
	def(&ttl, DefaultTokenTTL)
	return &simpleTokens{ttl: ttl, tokens: map[string]*simpleToken{}, sweep: minSweep}
}

func (t *simpleTokens) prefix() string {
	// Bytes from 208 = 4 * 52 on are thrown away: every letter is as likely.
	out := make([]byte, 0, prefixLength)
	var b [2 * prefixLength]byte
	for {
		rand.Read(b[:])
		for _, x := range b {
			if x < 208 {
				out = append(out, prefixLetters[x%52])
			}
			if len(out) == prefixLength {
				return string(out)
			}
		}
	}
}

func (t *simpleTokens) sign(string, uint64) (string, error) {
	return "", errors.New("auth: simple tokens are assigned by the store")
}

func (t *simpleTokens) follow(c store.TokenChange) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch c.Kind {
	case store.TokenAssigned:
		now := time.Now()
		if len(t.tokens) >= t.sweep {
			for word, token := range t.tokens {
				if now.After(token.expiry) {
					delete(t.tokens, word)
				}
			}
			t.sweep = max(minSweep, 2*len(t.tokens))
		}
		t.tokens[c.Token] = &simpleToken{user: c.User, expiry: now.Add(t.ttl)}
	case store.UserTokensEnded:
		for word, token := range t.tokens {
			if token.user == c.User {
				delete(t.tokens, word)
			}
		}
	case store.AllTokensEnded:
		clear(t.tokens)
	}
}

// info waits, for a token that another member has assigned and that is still
// to be applied here.
func (t *simpleTokens) info(ctx context.Context, word string, auth func() *store.Auth, catchUp func(context.Context) error) (store.AuthInfo, bool) {
	revision := auth().Revision()
	user, ok := t.use(word)
	if ok {
		return store.AuthInfo{Username: user, Revision: revision}, true
	}
	_, number, _ := strings.Cut(word, ".")
	n, err := strconv.ParseUint(number, 10, 64)
	if err != nil || n <= auth().Logins() || catchUp(ctx) != nil {
		return store.AuthInfo{}, false
	}
	revision = auth().Revision()
	user, ok = t.use(word)
	return store.AuthInfo{Username: user, Revision: revision}, ok
}

// use returns whose token it is, and starts its time anew.
func (t *simpleTokens) use(word string) (user string, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	token := t.tokens[word]
	now := time.Now()
	if token == nil || now.After(token.expiry) {
		return "", false
	}
	token.expiry = now.Add(t.ttl)
	return token.user, true
}

// tokenService is Tokens with the store that they are about.
type tokenService struct {
	Tokens
	s *Server
}

func (t tokenService) info(ctx context.Context, word string) (store.AuthInfo, bool) {
	return t.Tokens.info(ctx, word, t.s.cfg.Store.Auth, t.s.readIndex)
}
