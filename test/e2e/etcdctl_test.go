package e2e

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/pki"
)

func etcdFile(name string) string { return filepath.Join(state, "etcd", name) }

// etcdAt is where the etcd API of the given hosts is, of all of them when none is given.
func etcdAt(of ...int) string {
	if len(of) == 0 {
		of = []int{1, 2, 3}
	}
	var out []string
	for _, i := range of {
		out = append(out, "https://"+cluster.Addr(i)+":2379")
	}
	return strings.Join(out, ",")
}

func etcdctlLine(at string, args ...string) []string {
	return append([]string{"etcdctl", "--endpoints", at, "--cacert", etcdFile("ca.crt"), "--cert", etcdFile("client.crt"), "--key", etcdFile("client.key")}, args...)
}

// etcdctl runs the real etcdctl and returns its standard output; it ends the test
// when it fails.
func etcdctl(t *testing.T, at string, args ...string) string {
	t.Helper()
	return etcdctlInput(t, "", at, args...)
}

func etcdctlInput(t *testing.T, stdin, at string, args ...string) string {
	t.Helper()
	r := run(t, nil, strings.NewReader(stdin), etcdctlLine(at, args...)...)
	if r.code != 0 {
		t.Fatalf("etcdctl %s: %v", strings.Join(args, " "), r)
	}
	return r.out
}

// prefix is where the test's keys are; they go with it.
func prefix(t *testing.T) string {
	t.Helper()
	p := fmt.Sprintf("/e2e/%s/%d/", t.Name(), time.Now().UnixNano())
	t.Cleanup(func() { etcdctl(t, etcdAt(), "del", "--prefix", p) })
	return p
}

// TestEtcdctl: keys, transactions, watches and leases through the real etcdctl;
// what one peer is told, the others tell.
func TestEtcdctl(t *testing.T) {
	p := prefix(t)
	say := func(got, want string) {
		t.Helper()
		if got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
	t.Run("keys", func(t *testing.T) {
		say(etcdctl(t, etcdAt(1), "put", p+"a", "one"), "OK\n")
		say(etcdctl(t, etcdAt(2), "put", p+"b", "two"), "OK\n")
		for i := 1; i <= hosts; i++ {
			say(etcdctl(t, etcdAt(i), "get", p+"a"), p+"a\none\n")
			say(etcdctl(t, etcdAt(i), "get", p, "--prefix", "--print-value-only", "--order=DESCEND"), "two\none\n")
		}
		var was struct{ Header struct{ Revision int64 } }
		if err := json.Unmarshal([]byte(etcdctl(t, etcdAt(3), "get", p+"a", "-w", "json")), &was); err != nil {
			t.Fatal(err)
		}
		say(etcdctl(t, etcdAt(3), "put", "--prev-kv", p+"a", "three"), "OK\n"+p+"a\none\n")
		say(etcdctl(t, etcdAt(1), "get", p+"a", "--print-value-only", fmt.Sprintf("--rev=%d", was.Header.Revision)), "one\n")
		say(etcdctl(t, etcdAt(1), "del", p, "--prefix"), "2\n")
		say(etcdctl(t, etcdAt(2), "get", p, "--prefix"), "")
	})
	t.Run("transactions", func(t *testing.T) {
		etcdctl(t, etcdAt(1), "put", p+"t", "old")
		txn := fmt.Sprintf("value(%q) = \"old\"\n\nput %st new\nget %st\n\nput %sfailed yes\n\n", p+"t", p, p, p)
		say(etcdctlInput(t, txn, etcdAt(2), "txn"), "SUCCESS\n\nOK\n\n"+p+"t\nnew\n")
		say(etcdctlInput(t, txn, etcdAt(3), "txn"), "FAILURE\n\nOK\n")
		say(etcdctl(t, etcdAt(1), "get", p+"failed", "--print-value-only"), "yes\n")
	})
	t.Run("watches", func(t *testing.T) {
		w := start(t, etcdctlLine(etcdAt(1), "watch", "--prefix", p+"w")...)
		// The watch says nothing when it begins: write until it sees something, through another peer.
		eventually(t, time.Minute, "the watch has begun", func() error {
			etcdctl(t, etcdAt(2), "put", p+"w0", "begin")
			if !strings.Contains(w.output(), "begin") {
				return errors.New("it prints nothing")
			}
			return nil
		})
		etcdctl(t, etcdAt(3), "put", p+"w1", "seen")
		etcdctl(t, etcdAt(2), "del", p+"w1")
		etcdctl(t, etcdAt(1), "put", p+"x", "elsewhere")
		etcdctl(t, etcdAt(1), "put", p+"w2", "end")
		w.prints(t, "PUT\n"+p+"w1\nseen\nDELETE\n"+p+"w1\n\nPUT\n"+p+"w2\nend\n")
		if strings.Contains(w.output(), "elsewhere") {
			t.Errorf("a watch of a prefix saw another key: %s", w.output())
		}
		// From history, through a peer that did not take the writes.
		var first struct {
			Kvs []struct {
				CreateRevision int64 `json:"create_revision"`
			}
		}
		if err := json.Unmarshal([]byte(etcdctl(t, etcdAt(1), "get", p+"w0", "-w", "json")), &first); err != nil || len(first.Kvs) != 1 {
			t.Fatalf("%v %+v", err, first)
		}
		h := start(t, etcdctlLine(etcdAt(3), "watch", "--prefix", p+"w", fmt.Sprintf("--rev=%d", first.Kvs[0].CreateRevision))...)
		h.prints(t, "PUT\n"+p+"w0\nbegin\n")
		h.prints(t, "PUT\n"+p+"w1\nseen\nDELETE\n"+p+"w1\n\nPUT\n"+p+"w2\nend\n")
	})
	t.Run("leases", func(t *testing.T) {
		grant := func(ttl string) string {
			t.Helper()
			out := etcdctl(t, etcdAt(1), "lease", "grant", ttl)
			m := regexp.MustCompile(`^lease ([0-9a-f]{16}) granted with TTL\(` + ttl + `s\)\n$`).FindStringSubmatch(out)
			if m == nil {
				t.Fatalf("lease grant: %q", out)
			}
			return m[1]
		}
		id := grant("600")
		etcdctl(t, etcdAt(2), "put", p+"leased", "yes", "--lease="+id)
		if out := etcdctl(t, etcdAt(3), "lease", "timetolive", id, "--keys"); !regexp.MustCompile(`^lease ` + id + ` granted with TTL\(600s\), remaining\(\d+s\), attached keys\(\[` + p + `leased\]\)\n$`).MatchString(out) {
			t.Errorf("lease timetolive: %q", out)
		}
		if out := etcdctl(t, etcdAt(2), "lease", "list"); !strings.Contains(out, id) {
			t.Errorf("lease list: %q", out)
		}
		say(etcdctl(t, etcdAt(3), "lease", "keep-alive", "--once", id), "lease "+id+" keepalived with TTL(600)\n")
		say(etcdctl(t, etcdAt(2), "lease", "revoke", id), "lease "+id+" revoked\n")
		say(etcdctl(t, etcdAt(1), "get", p+"leased"), "")
		say(etcdctl(t, etcdAt(1), "lease", "timetolive", id), "lease "+id+" already expired\n")

		// Kept alive through a follower or the leader, a short lease outlives its time; left alone, it does not.
		short := grant("8")
		k := start(t, etcdctlLine(etcdAt(2), "lease", "keep-alive", short)...)
		etcdctl(t, etcdAt(1), "put", p+"short", "yes", "--lease="+short)
		k.prints(t, strings.Repeat("lease "+short+" keepalived with TTL(8)\n", 5)) // one in a third of its time
		say(etcdctl(t, etcdAt(3), "get", p+"short", "--print-value-only"), "yes\n")
		k.stop()
		eventually(t, time.Minute, "the lease runs out and takes its key along", func() error {
			if out := etcdctl(t, etcdAt(3), "get", p+"short"); out != "" {
				return fmt.Errorf("%q", out)
			}
			return nil
		})
	})
}

// TestEtcdctlCluster: the peers as etcdctl sees them.
func TestEtcdctlCluster(t *testing.T) {
	out := etcdctl(t, etcdAt(), "member", "list", "-w", "json")
	var members struct {
		Members []struct {
			ID                   uint64
			Name                 string
			PeerURLs, ClientURLs []string
			IsLearner            bool
		}
	}
	if err := json.Unmarshal([]byte(out), &members); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	names := map[string]bool{}
	for _, m := range members.Members {
		names[m.Name] = true
		if m.ID == 0 || m.IsLearner || len(m.PeerURLs) != 1 || len(m.ClientURLs) == 0 {
			t.Errorf("member %+v", m)
		}
	}
	if len(members.Members) != hosts || !names[cluster.Host(1)] || !names[cluster.Host(2)] || !names[cluster.Host(3)] {
		t.Errorf("member list: %s", out)
	}
	for i := 1; i <= hosts; i++ {
		if out := etcdctl(t, etcdAt(i), "member", "list"); strings.Count(out, ", started, ") != hosts {
			t.Errorf("member list of host %d: %s", i, out)
		}
	}

	// An election may be on when it is asked.
	eventually(t, 3*time.Minute, "endpoint status names one leader of three", func() error { return endpointStatus(t) })
	eventually(t, 3*time.Minute, "endpoint health says that all are healthy", func() error {
		r := run(t, nil, nil, etcdctlLine(etcdAt(), "endpoint", "health", "-w", "json")...)
		var health []struct {
			Endpoint string
			Health   bool
		}
		if err := json.Unmarshal([]byte(r.out), &health); err != nil || r.code != 0 {
			return fmt.Errorf("%v", r)
		}
		for _, h := range health {
			if !h.Health || len(health) != hosts {
				return fmt.Errorf("%+v", health)
			}
		}
		return nil
	})
}

// endpointStatus says what is wrong with what etcdctl tells about the peers.
func endpointStatus(t *testing.T) error {
	r := run(t, nil, nil, etcdctlLine(etcdAt(), "endpoint", "status", "-w", "json")...)
	var status []struct {
		Endpoint string
		Status   struct {
			Header struct {
				MemberID  uint64 `json:"member_id"`
				ClusterID uint64 `json:"cluster_id"`
			}
			Version string
			DBSize  int64
			Leader  uint64
			Errors  []string
		}
	}
	if err := json.Unmarshal([]byte(r.out), &status); err != nil || r.code != 0 || len(status) != hosts {
		return fmt.Errorf("%v: %v", err, r)
	}
	leaders, ids := 0, map[uint64]bool{}
	for _, s := range status {
		ids[s.Status.Header.MemberID] = true
		if s.Status.Leader == s.Status.Header.MemberID {
			leaders++
		}
		if s.Status.Leader != status[0].Status.Leader || s.Status.Header.ClusterID != status[0].Status.Header.ClusterID ||
			s.Status.DBSize <= 0 || !strings.HasPrefix(s.Status.Version, "3.7.") || len(s.Status.Errors) > 0 {
			return fmt.Errorf("status %+v", s)
		}
	}
	if leaders != 1 || len(ids) != hosts {
		return fmt.Errorf("%d endpoints lead, %d members answer: %s", leaders, len(ids), r.out)
	}
	return nil
}

// TestEtcdRefusesStrangers: who has no client certificate of this cluster's etcd
// gets no answer, from any peer.
func TestEtcdRefusesStrangers(t *testing.T) {
	// What etcdctl says about it, and that it says it within its own time-out.
	at := []string{"etcdctl", "--endpoints", etcdAt(), "--cacert", etcdFile("ca.crt"), "--dial-timeout=3s", "--command-timeout=5s"}
	if r := run(t, nil, nil, append(at, "get", "/", "--prefix", "--keys-only")...); r.code == 0 || r.out != "" {
		t.Errorf("etcdctl without a certificate: %v", r)
	}
	a, err := pki.NewAuthority("etcd-ca", time.Now().Add(-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := a.Issue(pki.Leaf{CommonName: "root", Client: true, Lifetime: 24 * time.Hour}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, data := range map[string][]byte{"client.crt": cert, "client.key": key} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	foreign := append(at, "--cert", filepath.Join(dir, "client.crt"), "--key", filepath.Join(dir, "client.key"))
	if r := run(t, nil, nil, append(foreign, "get", "/", "--prefix", "--keys-only")...); r.code == 0 || r.out != "" {
		t.Errorf("etcdctl with a certificate of another authority: %v", r)
	}
	// An administrator of Kubernetes is none of etcd's: its API knows no roles but all or nothing.
	admin, err := adminCertificate(t)
	if err != nil {
		t.Fatal(err)
	}
	other, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	own, err := tls.LoadX509KeyPair(etcdFile("client.crt"), etcdFile("client.key"))
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= hosts; i++ {
		for who, certs := range map[string][]tls.Certificate{"nobody": nil, "a certificate of another authority": {other}, "the administrator's certificate of the Kubernetes API": {admin}} {
			if err := handshake(i, certs); err == nil {
				t.Errorf("host %d lets %s in", i, who)
			} else if !strings.Contains(err.Error(), "remote error: tls:") {
				t.Errorf("host %d refuses %s with %v, want the reason as a TLS alert", i, who, err)
			}
		}
		if err := handshake(i, []tls.Certificate{own}); err != nil {
			t.Errorf("host %d refuses the cluster's own client: %v", i, err)
		}
	}
}

func adminCertificate(t *testing.T) (tls.Certificate, error) {
	c := restConfig(t, "").TLSClientConfig
	if len(c.CertData) == 0 {
		return tls.Certificate{}, errors.New("the administrator's kubeconfig holds no certificate")
	}
	return tls.X509KeyPair(c.CertData, c.KeyData)
}

// handshake opens a TLS connection to host i's etcd API and waits for its first
// byte, which a server of HTTP/2 sends unasked: with TLS 1.3 a client learns only
// after its own end of the handshake that it is refused.
func handshake(i int, certs []tls.Certificate) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	raw, err := dial(ctx, "tcp", net.JoinHostPort(cluster.Addr(i), "2379"))
	if err != nil {
		return err
	}
	defer raw.Close()
	_ = raw.SetDeadline(time.Now().Add(20 * time.Second))
	c := tls.Client(raw, &tls.Config{
		InsecureSkipVerify: true, // the client is on trial here, not the server
		NextProtos:         []string{"h2"},
		// Shown even when the server does not name its issuer.
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if len(certs) == 0 {
				return &tls.Certificate{}, nil
			}
			return &certs[0], nil
		},
	})
	if err := c.HandshakeContext(ctx); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}
