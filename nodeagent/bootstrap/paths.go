package bootstrap

import (
	"crypto/ecdsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/tripod-cluster/tripod/pki"
)

// UserPrefix is what a node's certificate puts before the node's name.
const UserPrefix = "system:node:"

// NodesGroup is the group of every node's certificate.
const NodesGroup = "system:nodes"

// Paths are the files of a joined node, all below one directory.
type Paths struct{ Root string }

// CA holds the cluster's authority.
func (p Paths) CA() string { return filepath.Join(p.Root, "ca.crt") }

// ClientCert holds the node's certificate and key in one file, so that they
// change together.
func (p Paths) ClientCert() string { return filepath.Join(p.Root, "pki", "client.pem") }

// ServingCert holds the certificate and key of the node's API.
func (p Paths) ServingCert() string { return filepath.Join(p.Root, "pki", "serving.pem") }

// Peers holds the known API peers.
func (p Paths) Peers() string { return filepath.Join(p.Root, "peers.json") }

// LoadCA reads the cluster's authority.
func (p Paths) LoadCA() (*x509.CertPool, []*x509.Certificate, error) {
	b, err := os.ReadFile(p.CA())
	if err != nil {
		return nil, nil, fmt.Errorf("read the cluster's CA: %w", err)
	}
	pool := x509.NewCertPool()
	var certs []*x509.Certificate
	for block, rest := pem.Decode(b); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, nil, fmt.Errorf("read the cluster's CA %s: %w", p.CA(), err)
		}
		pool.AddCert(c)
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, nil, fmt.Errorf("the cluster's CA %s holds no certificate: run noded join again with --force", p.CA())
	}
	return pool, certs, nil
}

// LoadPair reads a certificate with its key from one file; Leaf is set.
func LoadPair(path string) (*tls.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	return ParsePair(b)
}

// ParsePair reads a certificate with its key from PEM; Leaf is set.
func ParsePair(b []byte) (*tls.Certificate, error) {
	c, err := tls.X509KeyPair(b, b)
	if err != nil {
		return nil, fmt.Errorf("read certificate and key: %w", err)
	}
	if c.Leaf == nil {
		if c.Leaf, err = x509.ParseCertificate(c.Certificate[0]); err != nil {
			return nil, fmt.Errorf("read certificate: %w", err)
		}
	}
	return &c, nil
}

// NodeName is the name that a node's client certificate gives it.
func NodeName(c *tls.Certificate) (string, error) {
	if c == nil || c.Leaf == nil {
		return "", errors.New("no client certificate")
	}
	n, ok := strings.CutPrefix(c.Leaf.Subject.CommonName, UserPrefix)
	if !ok || n == "" {
		return "", fmt.Errorf("client certificate of %q is no node's: run noded join again with --force", c.Leaf.Subject.CommonName)
	}
	return n, nil
}

// encodeKey and the certificate in PEM make the one file of a pair.
func encodeKey(k *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

func writePair(path string, pair []byte) error { return pki.WriteFile(path, pair, 0o600) }
