package main

import (
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha1"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/binary"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"github.com/tripod-cluster/tripod/raftfsm"
)

// founderID is the ID of a founder of the cluster of token, as etcd makes it: a digest of its peer URLs and the
// token. IDs of those who come later are made by the cluster.
func founderID(token string, peerURLs []string) raftfsm.PeerID {
	sum := sha1.Sum([]byte(strings.Join(slices.Sorted(slices.Values(peerURLs)), "") + token))
	return raftfsm.PeerID(binary.BigEndian.Uint64(sum[:]))
}

// clusterID is the ID of a new cluster, as etcd makes it: a digest of its founders' IDs.
func clusterID(founders []raftfsm.Member) uint64 {
	var ids []raftfsm.PeerID
	for _, f := range founders {
		ids = append(ids, f.ID)
	}
	slices.Sort(ids)
	var all []byte
	for _, id := range ids {
		all = binary.BigEndian.AppendUint64(all, uint64(id))
	}
	sum := sha1.Sum(all)
	return binary.BigEndian.Uint64(sum[:])
}

// peerTLS returns what raftfsm asks for, for a peer or a stranger of that name. The authority is the same in every process: it protects nothing, as
// anyone can derive it. Clusters are kept apart by their IDs, as with etcd, where a member that joins need not know the token.
func peerTLS(name string) (func() (server, client *tls.Config, err error), error) {
	seed := sha256.Sum256([]byte("authority"))
	caKey := ed25519.NewKeyFromSeed(seed[:])
	begin := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	ca := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test peers"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: begin, NotAfter: begin.AddDate(100, 0, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, ca, ca, caKey.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make the peers' authority: %w", err)
	}
	if ca, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("make the peers' authority: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the peer's key: %w", err)
	}
	der, err = x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: begin, NotAfter: ca.NotAfter, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}, ca, key.Public(), caKey)
	if err != nil {
		return nil, fmt.Errorf("make the peer's certificate: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(ca)
	pair := []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}
	return func() (*tls.Config, *tls.Config, error) {
		return &tls.Config{Certificates: pair, ClientCAs: pool}, &tls.Config{Certificates: pair, RootCAs: pool}, nil
	}, nil
}

// founder is one entry of --initial-cluster.
type founder struct {
	name string
	urls []string
}

// parseInitialCluster reads name=url,name=url. A name that comes again has several URLs.
func parseInitialCluster(s string) ([]founder, error) {
	var out []founder
	for _, part := range strings.Split(s, ",") {
		name, url, ok := strings.Cut(part, "=")
		if !ok || name == "" || url == "" {
			return nil, fmt.Errorf("--initial-cluster: %q is not name=url", part)
		}
		i := slices.IndexFunc(out, func(f founder) bool { return f.name == name })
		if i < 0 {
			i = len(out)
			out = append(out, founder{name: name})
		}
		out[i].urls = append(out[i].urls, url)
	}
	return out, nil
}
