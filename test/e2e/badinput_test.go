package e2e

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tripod-cluster/tripod/pki"
)

// spare is a host with the packages installed that belongs to no cluster.
const spare = hosts + 1

// bootSpare boots the spare host, installs the packages there by apt, and
// switches it off afterwards.
func bootSpare(t *testing.T) {
	t.Helper()
	ctx := context.Background()
	if err := cluster.Up(ctx, spare); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Stop(ctx, spare); err != nil {
			t.Error(err)
		}
	})
	in(t, spare, `dpkg -s controld noded >/dev/null 2>&1 && exit 0
		echo "deb [trusted=yes] file:/srv/repo ./" >/etc/apt/sources.list.d/tripod.list
		apt-get update -qq
		DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 controld noded kubectl >/var/log/install.log 2>&1 || { tail -n 20 /var/log/install.log >&2; exit 1; }`)
	in(t, spare, `test "$(systemctl is-enabled controld noded | sort -u)" = disabled`) // installing starts nothing
}

// refuse runs a command on the spare host that must fail, and say all of words.
func refuse(t *testing.T, command string, words ...string) {
	t.Helper()
	out, err := tryIn(spare, command+" 2>&1 && exit 99 || test $? != 99; true")
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s: %q is not in what it said:\n%s", command, w, out)
		}
	}
}

// untouched says that no half-made state is on the spare host. Snapshots of a
// cluster that it was in may stay.
func untouched(t *testing.T) {
	t.Helper()
	if out := in(t, spare, `ls -A /var/lib/controld /var/lib/noded/pki 2>/dev/null | grep -vE '^(|/.*:|pki|audit|snapshots)$' || true
		systemctl is-active controld noded | grep -v inactive || true`); strings.TrimSpace(out) != "" {
		t.Errorf("left behind:\n%s", out)
	}
}

func token(t *testing.T, role string, more ...string) string {
	t.Helper()
	return strings.TrimSpace(in(t, 1, "controld token -o token --role "+role+" "+strings.Join(more, " ")))
}

// wrong damages the secret of a join line, and nothing else.
func wrong(line string) string {
	f := strings.Split(line, ".")
	f[3] = strings.Repeat("x", len(f[3]))
	return strings.Join(f, ".")
}

// TestBadInput: each mistake gets an error that says what and what to do next,
// nothing is left half made, and the same host then joins as if nothing had been.
func TestBadInput(t *testing.T) {
	whole(t)
	bootSpare(t)
	t.Run("wrong token", func(t *testing.T) {
		refuse(t, "controld join "+wrong(token(t, "peer")), "does not know the token", "controld token --role peer")
		refuse(t, "noded join "+wrong(token(t, "node")), "wrong, has expired or was revoked", "controld token")
		refuse(t, "controld join "+token(t, "node"), "token for nodes", "controld token --role peer")
		refuse(t, "controld join hello", "TOKEN@HOST", "controld token")
		untouched(t)
	})
	t.Run("expired token", func(t *testing.T) {
		p, n := token(t, "peer", "--ttl 1s"), token(t, "node", "--ttl 1s")
		made := time.Now() // a join before they expire would be one
		eventually(t, time.Minute, "the tokens expire", func() error {
			if left := time.Second - time.Since(made); left > 0 {
				return fmt.Errorf("they live for %v more", left)
			}
			return nil
		})
		refuse(t, "controld join "+p, "has expired", "controld token --role peer")
		refuse(t, "noded join "+n, "has expired", "controld token")
		untouched(t)
	})
	t.Run("name taken", func(t *testing.T) {
		refuse(t, "controld join --name "+cluster.Host(2)+" "+token(t, "peer"), "name "+cluster.Host(2)+" is taken by", cluster.Addr(2), "controld member remove")
		refuse(t, "noded join --node-name "+cluster.Host(2)+" "+token(t, "node"), "NodeNameTaken", cluster.Host(2)+" is in the cluster", "kubectl delete node "+cluster.Host(2))
		untouched(t)
	})
	t.Run("clock off by an hour", func(t *testing.T) {
		for _, skew := range []time.Duration{time.Hour, -time.Hour} {
			for _, role := range []pki.Role{pki.RolePeer, pki.RoleNode} {
				program := map[pki.Role]string{pki.RolePeer: "controld", pki.RoleNode: "noded"}[role]
				refuse(t, program+" join "+otherClock(t, role, skew), "clock", "timedatectl")
			}
		}
		untouched(t)
	})
	t.Run("port in use", func(t *testing.T) {
		for port, try := range map[int]string{6443: "controld init", 2380: "controld join " + token(t, "peer"), 10250: "noded join " + token(t, "node")} {
			in(t, spare, fmt.Sprintf(`systemd-run -q --unit squatter-%d perl -MIO::Socket::INET -e 'sleep 1000 for IO::Socket::INET->new(LocalAddr=>"0.0.0.0",LocalPort=>%d,Listen=>1,ReuseAddr=>1)'
				for i in $(seq 100); do ss -Hltn | grep -q ':%d ' && exit 0; sleep 0.1; done; exit 1`, port, port, port))
			refuse(t, try, strconv.Itoa(port))
			in(t, spare, fmt.Sprintf("systemctl stop squatter-%d", port))
		}
		untouched(t)
	})
	t.Run("no containerd", func(t *testing.T) {
		in(t, spare, "systemctl mask -q --now containerd")
		refuse(t, "noded join "+token(t, "node"), "containerd does not answer", "journalctl -u containerd")
		untouched(t)
		in(t, spare, "systemctl unmask -q containerd")
	})
	t.Run("disk full", testDiskFull)
	t.Run("after all that it joins", func(t *testing.T) {
		in(t, spare, "controld join "+token(t, "peer"))
		in(t, spare, "noded join "+token(t, "node"))
		eventually(t, 2*time.Minute, "four nodes are ready", func() error {
			s, err := status(spare)
			if err != nil {
				return err
			}
			ready := 0
			for _, n := range s.Nodes {
				if n.Ready == "True" {
					ready++
				}
			}
			if len(s.Peers) != hosts+1 || ready != hosts+1 {
				return fmt.Errorf("%d peers, %d ready nodes", len(s.Peers), ready)
			}
			return nil
		})
		refuse(t, "controld join "+token(t, "peer"), "already", "controld reset")
		// and leaves, for the tests that follow
		in(t, spare, "noded reset --yes")
		kubectl(t, "delete", "node", cluster.Host(spare))
		in(t, 1, "controld member remove "+cluster.Host(spare))
		in(t, spare, "controld reset --yes")
		untouched(t)
	})
	whole(t)
}

// testDiskFull: a store on a disk that is too small is not started; one whose disk
// fills up refuses writes clearly, answers reads, and goes on when there is room.
func testDiskFull(t *testing.T) {
	const kubectl = "kubectl --kubeconfig /etc/controld/admin.kubeconfig --request-timeout=20s "
	in(t, spare, "mount -t tmpfs -o size=300m,mode=700 tmpfs /var/lib/controld")
	defer func() {
		in(t, spare, "controld reset --yes; umount /var/lib/controld")
	}()
	refuse(t, "controld init", "MiB free", "free some space")
	in(t, spare, "mount -o remount,size=900m /var/lib/controld")
	in(t, spare, "controld init")
	in(t, spare, kubectl+"create configmap before")
	in(t, spare, `fallocate -l $(($(df --output=avail -B1 /var/lib/controld | tail -n 1) - 8000000)) /var/lib/controld/filler`)
	eventually(t, time.Minute, "writes are refused with a reason", func() error {
		out, err := tryIn(spare, kubectl+"create configmap w$(date +%s%N) 2>&1 && exit 1 || true")
		if err != nil {
			return err
		}
		if !strings.Contains(out, "space") {
			return fmt.Errorf("kubectl said %q", out)
		}
		return nil
	})
	in(t, spare, kubectl+"get configmap before")
	if out := in(t, spare, "controld status 2>&1 || true"); !strings.Contains(out, "free some space") {
		t.Errorf("controld status says nothing of the disk:\n%s", out)
	}
	in(t, spare, "rm /var/lib/controld/filler")
	eventually(t, 2*time.Minute, "writes go on when there is room", func() error {
		_, err := tryIn(spare, kubectl+"create configmap w$(date +%s%N)")
		return err
	})
	in(t, spare, kubectl+"get configmap before")
}

// otherClock is a join line for a cluster of its own, served beside the hosts,
// whose clock is off by skew against theirs.
func otherClock(t *testing.T, role pki.Role, skew time.Duration) string {
	t.Helper()
	now := time.Now().Add(skew)
	ca, err := pki.NewAuthority("other", now)
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := ca.Issue(pki.Leaf{CommonName: "kube-apiserver", Server: true, DNSNames: []string{pki.ServerName}}, now)
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	l, err := there.Listen()
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{
		TLSConfig: &tls.Config{Certificates: []tls.Certificate{pair}},
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Date", time.Now().Add(skew).UTC().Format(http.TimeFormat))
			w.WriteHeader(http.StatusOK)
		}),
	}
	go srv.ServeTLS(l, "", "")
	t.Cleanup(func() { srv.Close() })
	tok, err := pki.NewToken(role, pki.HashCA(ca.Cert))
	if err != nil {
		t.Fatal(err)
	}
	return tok.Word() + "@" + l.Addr().String()
}
