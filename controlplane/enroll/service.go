package enroll

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

const (
	unit       = "controld.service"
	daemonUser = "controld"
	vipDropIn  = "/etc/systemd/system/controld.service.d/10-vip.conf"
)

// vipGrant is what the service may do more where it holds a virtual address.
const vipGrant = `# Written by controld: the leader holds a virtual address and announces it.
[Service]
AmbientCapabilities=CAP_NET_ADMIN CAP_NET_RAW
CapabilityBoundingSet=CAP_NET_ADMIN CAP_NET_RAW
RestrictAddressFamilies=AF_PACKET
`

// own gives the state to the service's user.
func own(dir string) error {
	u, err := user.Lookup(daemonUser)
	if err != nil {
		return fmt.Errorf("the system user %s is missing (%w): install the controld package again", daemonUser, err)
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		return fmt.Errorf("user %s: %w", daemonUser, err)
	}
	gid, err := strconv.Atoi(u.Gid)
	if err != nil {
		return fmt.Errorf("user %s: %w", daemonUser, err)
	}
	return filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = os.Lchown(p, uid, gid)
		}
		if err != nil {
			return fmt.Errorf("give %s to %s: %w", p, daemonUser, err)
		}
		return nil
	})
}

// service drives the systemd unit.
type service struct {
	conn *dbus.Conn
}

func openService(ctx context.Context) (*service, error) {
	c, err := dbus.NewSystemdConnectionContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("talk to systemd: %w (controld is managed by systemd, on a host that runs it)", err)
	}
	return &service{conn: c}, nil
}

func (s *service) close() { s.conn.Close() }

func (s *service) active(ctx context.Context) bool {
	p, err := s.conn.GetUnitPropertyContext(ctx, unit, "ActiveState")
	if err != nil {
		return false
	}
	v, _ := p.Value.Value().(string)
	return v == "active" || v == "activating" || v == "reloading"
}

// grantVIP gives or takes the capabilities that a virtual address needs.
func grantVIP(on bool) error {
	if !on {
		if err := os.Remove(vipDropIn); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove %s: %w", vipDropIn, err)
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(vipDropIn), 0o755); err != nil {
		return fmt.Errorf("make drop-in directory: %w", err)
	}
	return pki.WriteFile(vipDropIn, []byte(vipGrant), 0o644)
}

// start enables and (re)starts the unit, and waits until systemd calls it active.
func (s *service) start(ctx context.Context, out io.Writer) error {
	if err := s.conn.ReloadContext(ctx); err != nil {
		return fmt.Errorf("systemctl daemon-reload: %w", err)
	}
	if _, _, err := s.conn.EnableUnitFilesContext(ctx, []string{unit}, false, false); err != nil {
		return fmt.Errorf("systemctl enable %s: %w (is the controld package installed?)", unit, err)
	}
	// A unit that failed too often would be refused; one that never ran has nothing
	// to reset, which is an error here and of no interest.
	_ = s.conn.ResetFailedUnitContext(ctx, unit)
	done := make(chan string, 1)
	if _, err := s.conn.RestartUnitContext(ctx, unit, "replace", done); err != nil {
		return fmt.Errorf("systemctl start %s: %w", unit, err)
	}
	return wait(ctx, out, "systemd to start "+unit, func(ctx context.Context) (bool, string, error) {
		select {
		case r := <-done:
			if r != "done" {
				return false, "", fmt.Errorf("%s did not start (%s):\n%s\nmend the cause, then run this again", unit, r, journal())
			}
			return true, "", nil
		default:
			return false, "", nil
		}
	})
}

// journal is the service's last words.
func journal() string {
	b, err := exec.Command("journalctl", "-u", unit, "-n", "400", "-o", "cat", "--no-pager").CombinedOutput()
	if err != nil {
		return "  see `journalctl -u controld`"
	}
	return lastWords(string(b), 12)
}

// lastWords is the end of a log, without the dump of goroutines that a killed Go
// program leaves.
func lastWords(log string, most int) string {
	var kept []string
	for _, l := range strings.Split(log, "\n") {
		said := strings.HasPrefix(l, "level=") || strings.HasPrefix(l, "controld") || strings.HasPrefix(l, "panic:") || strings.HasPrefix(l, "SIG") || strings.HasPrefix(l, "fatal error:")
		if said {
			kept = append(kept, "  "+l)
		}
	}
	return strings.Join(kept[max(0, len(kept)-most):], "\n")
}

// wait calls f until it is done or fails or ctx ends, and after 5 s says for
// what, and again each 5 s, with what f says of the present state.
func wait(ctx context.Context, out io.Writer, what string, f func(context.Context) (done bool, state string, err error)) error {
	start, said := time.Now(), time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		done, state, err := f(ctx)
		if done || err != nil {
			return err
		}
		if state != "" {
			state = " (" + state + ")"
		}
		if time.Since(said) >= 5*time.Second {
			said = time.Now()
			fmt.Fprintf(out, "waiting for %s%s, %ds\n", what, state, int(time.Since(start).Seconds()))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting for %s%s after %ds: see `journalctl -u controld`; this command can be run again",
				what, state, int(time.Since(start).Seconds()))
		}
	}
}

// waitReady waits until the peer on this host serves.
func waitReady(ctx context.Context, out io.Writer, svc *service) error {
	admin := peer.NewAdmin(peer.AdminSocket)
	return wait(ctx, out, "this peer to serve", func(ctx context.Context) (bool, string, error) {
		cctx, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		st, err := admin.Status(cctx)
		if err != nil {
			if !svc.active(ctx) {
				return false, "", fmt.Errorf("controld stopped:\n%s\nmend the cause, then run this again", journal())
			}
			return false, err.Error(), nil
		}
		return st.Ready, st.Waiting, nil
	})
}
