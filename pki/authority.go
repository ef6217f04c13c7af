package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

const (
	// AuthorityLifetime is how long a certificate authority is valid.
	AuthorityLifetime = 10 * 365 * 24 * time.Hour
	// LeafLifetime is how long a certificate of a peer or an operator is valid.
	LeafLifetime = 365 * 24 * time.Hour
	// backdate tolerates hosts whose clocks are a little behind the issuer's.
	backdate = 5 * time.Minute
)

// Authority is a certificate authority with its key.
type Authority struct {
	Cert *x509.Certificate
	Key  crypto.Signer
}

// NewAuthority makes a self-signed authority with the given common name, valid
// for AuthorityLifetime from now.
func NewAuthority(commonName string, now time.Time) (*Authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate key of authority %q: %w", commonName, err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: commonName},
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(AuthorityLifetime).UTC(),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature | x509.KeyUsageCRLSign,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority %q: %w", commonName, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("parse authority %q: %w", commonName, err)
	}
	return &Authority{Cert: cert, Key: key}, nil
}

// Leaf says what a certificate is for.
type Leaf struct {
	CommonName    string
	Organizations []string // become Kubernetes groups in a client certificate
	DNSNames      []string
	IPs           []net.IP
	Server        bool // usable as a TLS server
	Client        bool // usable as a TLS client
	Lifetime      time.Duration
}

// Issue makes a new key and a certificate for it. The PEM certificate ends with
// the authority's own certificate, so that a client that knows only the hash of
// the authority can find it in the handshake.
func (a *Authority) Issue(l Leaf, now time.Time) (certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key of %q: %w", l.CommonName, err)
	}
	der, err := a.sign(l, key.Public(), now)
	if err != nil {
		return nil, nil, err
	}
	keyPEM, err = EncodeKey(key)
	if err != nil {
		return nil, nil, err
	}
	return append(EncodeCert(der), EncodeCert(a.Cert.Raw)...), keyPEM, nil
}

func (a *Authority) sign(l Leaf, pub crypto.PublicKey, now time.Time) ([]byte, error) {
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	life := l.Lifetime
	if life == 0 {
		life = LeafLifetime
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               pkix.Name{CommonName: l.CommonName, Organization: l.Organizations},
		DNSNames:              l.DNSNames,
		IPAddresses:           l.IPs,
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              earlier(now.Add(life), a.Cert.NotAfter).UTC(),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
	}
	if l.Server {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	if l.Client {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.Cert, pub, a.Key)
	if err != nil {
		return nil, fmt.Errorf("sign certificate of %q: %w", l.CommonName, err)
	}
	return der, nil
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte { return EncodeCert(a.Cert.Raw) }

// Pool holds the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Cert)
	return p
}

// ParseAuthority reads an authority from PEM, and checks that the key belongs to
// the certificate.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	cert, err := ParseCert(certPEM)
	if err != nil {
		return nil, err
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("certificate %q is not an authority", cert.Subject.CommonName)
	}
	key, err := ParseKey(keyPEM)
	if err != nil {
		return nil, err
	}
	type equal interface{ Equal(crypto.PublicKey) bool }
	if pub, ok := key.Public().(equal); !ok || !pub.Equal(cert.PublicKey) {
		return nil, fmt.Errorf("the key does not belong to the certificate %q", cert.Subject.CommonName)
	}
	return &Authority{Cert: cert, Key: key}, nil
}

// EncodeCert puts a DER certificate into PEM.
func EncodeCert(der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

// EncodeKey puts a private key into PKCS#8 PEM.
func EncodeKey(k crypto.Signer) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// ParseCert reads the first certificate of a PEM file.
func ParseCert(p []byte) (*x509.Certificate, error) {
	b, _ := pem.Decode(p)
	if b == nil || b.Type != "CERTIFICATE" {
		return nil, errors.New("no PEM certificate found")
	}
	c, err := x509.ParseCertificate(b.Bytes)
	if err != nil {
		return nil, fmt.Errorf("parse certificate: %w", err)
	}
	return c, nil
}

// ParseKey reads a PKCS#8 private key.
func ParseKey(p []byte) (crypto.Signer, error) {
	b, _ := pem.Decode(p)
	if b == nil || b.Type != "PRIVATE KEY" {
		return nil, errors.New("no PEM private key found")
	}
	k, err := x509.ParsePKCS8PrivateKey(b.Bytes)
	if err != nil {
		return nil, errors.New("parse private key: not valid PKCS#8") // the cause could quote key bytes
	}
	s, ok := k.(crypto.Signer)
	if !ok {
		return nil, fmt.Errorf("private key of type %T cannot sign", k)
	}
	return s, nil
}

func newServiceAccountKey() (crypto.Signer, error) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("generate ServiceAccount key: %w", err)
	}
	return k, nil
}

func newSerial() (*big.Int, error) {
	n, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("generate serial number: %w", err)
	}
	return n.Add(n, big.NewInt(1)), nil
}
