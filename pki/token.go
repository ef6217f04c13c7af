package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
)

// Role is what a join token admits.
type Role string

// The roles of a join token.
const (
	RolePeer Role = "peer" // a controld peer: receives the cluster's authorities
	RoleNode Role = "node" // a noded host: may ask for a kubelet certificate
)

// Token is a join token: which role, the bootstrap token (a Secret in
// kube-system that expires), and the hash by which the joining host knows the
// cluster. Its text form is one word,
//
//	tripod1.<role>.<id>.<secret>.<hash>
//
// where id and secret have the form of a Kubernetes bootstrap token (6 and 16
// characters of [a-z0-9]) and hash is the hex SHA-256 of the cluster CA's
// SubjectPublicKeyInfo.
type Token struct {
	Role   Role
	ID     string
	Secret string
	CAHash string
}

const tokenPrefix = "tripod1"

var (
	tokenID     = regexp.MustCompile(`^[a-z0-9]{6}$`)
	tokenSecret = regexp.MustCompile(`^[a-z0-9]{16}$`)
	tokenHash   = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

// NewToken makes a token with a random ID and secret.
func NewToken(role Role, caHash string) (Token, error) {
	id, err := randomWord(6)
	if err != nil {
		return Token{}, err
	}
	secret, err := randomWord(16)
	if err != nil {
		return Token{}, err
	}
	return Token{Role: role, ID: id, Secret: secret, CAHash: caHash}, nil
}

// Word is the token's text form. It is a secret.
func (t Token) Word() string {
	return strings.Join([]string{tokenPrefix, string(t.Role), t.ID, t.Secret, t.CAHash}, ".")
}

// String hides the secret, so that a token can be logged.
func (t Token) String() string { return fmt.Sprintf("%s token %s", t.Role, t.ID) }

// Bearer is the bootstrap token that the API server takes as bearer token.
func (t Token) Bearer() string { return t.ID + "." + t.Secret }

// ParseToken reads TOKEN@HOST or TOKEN@HOST:PORT and returns the token and the
// address HOST:PORT (port 6443 where none is given). Errors never quote the
// secret.
func ParseToken(s string) (Token, string, error) {
	word, host, ok := strings.Cut(strings.TrimSpace(s), "@")
	if !ok || host == "" {
		return Token{}, "", errors.New("a join line has the form TOKEN@HOST: copy it whole from `controld token` on a peer")
	}
	f := strings.Split(word, ".")
	if len(f) != 5 || f[0] != tokenPrefix {
		return Token{}, "", errors.New("this is not a Tripod join token (tripod1.ROLE.ID.SECRET.HASH): copy it whole from `controld token` on a peer")
	}
	t := Token{Role: Role(f[1]), ID: f[2], Secret: f[3], CAHash: f[4]}
	switch {
	case t.Role != RolePeer && t.Role != RoleNode:
		return Token{}, "", fmt.Errorf("the join token has the unknown role %q (known: peer, node)", f[1])
	case !tokenID.MatchString(t.ID), !tokenSecret.MatchString(t.Secret), !tokenHash.MatchString(t.CAHash):
		return Token{}, "", errors.New("the join token is damaged (a part has the wrong length or characters): copy it whole from `controld token` on a peer")
	}
	if _, _, err := net.SplitHostPort(host); err != nil {
		host = net.JoinHostPort(strings.Trim(host, "[]"), "6443")
	}
	return t, host, nil
}

// HashCA is the hash of an authority that a token carries.
func HashCA(c *x509.Certificate) string {
	h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return hex.EncodeToString(h[:])
}

// ErrWrongCluster says that the server showed no authority with the token's hash.
var ErrWrongCluster = errors.New("the server does not belong to the cluster of this join token (its CA has another hash)")

// PinnedTLS is the client configuration of a host that knows a cluster only by
// the hash of its CA: the chain that the server shows must end in that CA and
// name `kubernetes`. When the handshake succeeds, found is called with the CA.
// verify is the clock used, nil for the system's; certificate time errors are
// returned as x509.CertificateInvalidError with reason Expired.
func PinnedTLS(hash string, found func(*x509.Certificate)) *tls.Config {
	return &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         ServerName,
		InsecureSkipVerify: true, // replaced by the check below: there is no root to verify with yet
		VerifyConnection: func(cs tls.ConnectionState) error {
			for _, c := range cs.PeerCertificates[1:] {
				if !c.IsCA || HashCA(c) != hash {
					continue
				}
				pool := x509.NewCertPool()
				pool.AddCert(c)
				_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: pool, DNSName: ServerName})
				if err == nil && found != nil {
					found(c)
				}
				return err
			}
			return ErrWrongCluster
		},
	}
}

func randomWord(n int) (string, error) {
	const letters = "abcdefghijklmnopqrstuvwxyz0123456789"
	b := make([]byte, 0, n)
	buf := make([]byte, 2*n)
	for len(b) < n {
		if _, err := rand.Read(buf); err != nil {
			return "", fmt.Errorf("read random bytes: %w", err)
		}
		for _, c := range buf {
			if int(c) < 256/len(letters)*len(letters) && len(b) < n { // no modulo bias
				b = append(b, letters[int(c)%len(letters)])
			}
		}
	}
	return string(b), nil
}
