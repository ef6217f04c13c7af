package csr

import (
	"crypto"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"

	certv1 "k8s.io/api/certificates/v1"
)

// backdate tolerates clocks of other hosts that are behind; upstream's value.
const backdate = 5 * time.Minute

// authority signs with the cluster CA.
type authority struct {
	key    crypto.Signer
	cert   *x509.Certificate
	maxAge time.Duration
}

// newAuthority reads the first certificate of certPEM, which must belong to key.
func newAuthority(key crypto.Signer, certPEM []byte, maxAge time.Duration) (*authority, error) {
	block, _ := pem.Decode(certPEM)
	if block == nil || block.Type != "CERTIFICATE" {
		return nil, errors.New("the cluster CA's certificate is not a PEM block of type CERTIFICATE")
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read the cluster CA's certificate: %w", err)
	}
	pub, ok := key.Public().(interface{ Equal(crypto.PublicKey) bool })
	if !ok || !pub.Equal(cert.PublicKey) {
		return nil, errors.New("the cluster CA's key does not belong to its certificate")
	}
	return &authority{key, cert, maxAge}, nil
}

// lifetime is how long a certificate may live that asks for expirationSeconds.
// The API admits 600 s and more.
func (a *authority) lifetime(expirationSeconds *int32) time.Duration {
	if expirationSeconds == nil {
		return a.maxAge
	}
	return min(a.maxAge, max(10*time.Minute, time.Duration(*expirationSeconds)*time.Second))
}

// sign returns the certificate in PEM.
func (a *authority) sign(req *x509.CertificateRequest, usages []certv1.KeyUsage, life time.Duration, now time.Time) ([]byte, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("serial number: %w", err)
	}
	t := &x509.Certificate{
		SerialNumber:          serial,
		Subject:               req.Subject,
		DNSNames:              req.DNSNames,
		IPAddresses:           req.IPAddresses,
		EmailAddresses:        req.EmailAddresses,
		URIs:                  req.URIs,
		NotBefore:             now.Add(-backdate).UTC(),
		NotAfter:              now.Add(life).UTC(),
		BasicConstraintsValid: true,
	}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	if !now.Before(t.NotAfter) {
		return nil, fmt.Errorf("the cluster CA expired at %s: it must be replaced", a.cert.NotAfter.Format(time.RFC3339))
	}
	for _, u := range usages {
		switch u {
		case certv1.UsageDigitalSignature:
			t.KeyUsage |= x509.KeyUsageDigitalSignature
		case certv1.UsageKeyEncipherment:
			t.KeyUsage |= x509.KeyUsageKeyEncipherment
		case certv1.UsageClientAuth:
			t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageClientAuth)
		case certv1.UsageServerAuth:
			t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, req.PublicKey, a.key)
	if err != nil {
		return nil, fmt.Errorf("sign: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), nil
}
