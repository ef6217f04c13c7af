package benchstore

import (
	"crypto/tls"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/pki"
	"github.com/tripod-cluster/tripod/raftfsm"
)

// newPeerCA returns what issues the certificate of a peer.
func newPeerCA(t *testing.T) func(*testing.T, raftfsm.PeerID) func() (server, client *tls.Config, err error) {
	t.Helper()
	ca, err := pki.NewAuthority("bench peers", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	return func(t *testing.T, id raftfsm.PeerID) func() (*tls.Config, *tls.Config, error) {
		t.Helper()
		cert, key, err := ca.Issue(pki.Leaf{CommonName: id.String(), DNSNames: []string{id.String()}, Server: true, Client: true}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		return func() (*tls.Config, *tls.Config, error) {
			return &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: ca.Pool()},
				&tls.Config{Certificates: []tls.Certificate{pair}, RootCAs: ca.Pool()}, nil
		}
	}
}
