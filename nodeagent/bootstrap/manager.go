package bootstrap

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// requestTimeout bounds one certificate request; after it a new one is made.
	requestTimeout = 5 * time.Minute
	minBackoff     = 5 * time.Second
	maxBackoff     = 5 * time.Minute
)

// Manager keeps one certificate valid.
type Manager struct {
	path   string
	node   string
	signer string
	names  func() ([]string, []netip.Addr) // of a serving certificate; nil for a client's
	ready  func(context.Context) error     // blocks until a request makes sense; may be nil
	change func()                          // called after a new certificate is in use; may be nil
	log    *slog.Logger
	now    func() time.Time

	mu  sync.Mutex
	cur *tls.Certificate
}

// ManagerConfig is what NewManager needs.
type ManagerConfig struct {
	Path string // file with certificate and key; written by the Manager
	Node string
	// Names gives the DNS names and addresses of a serving certificate; a
	// Manager without it keeps a client certificate.
	Names func() ([]string, []netip.Addr)
	// Ready blocks until the cluster can decide about a request, for example
	// until the Node has its addresses.
	Ready func(context.Context) error
	// Changed is called when a new certificate is in use.
	Changed func()
	Logger  *slog.Logger
}

// NewManager makes a Manager of what Path holds. A client certificate must be
// there; a serving certificate is asked for by Run.
func NewManager(c ManagerConfig) (*Manager, error) {
	m := &Manager{path: c.Path, node: c.Node, signer: certificatesv1.KubeAPIServerClientKubeletSignerName,
		names: c.Names, ready: c.Ready, change: c.Changed, log: c.Logger, now: time.Now}
	if m.log == nil {
		m.log = slog.Default()
	}
	if c.Names != nil {
		m.signer = certificatesv1.KubeletServingSignerName
	}
	pair, err := LoadPair(c.Path)
	switch {
	case err == nil:
		m.cur = pair
	case c.Names == nil:
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%w: this host has not joined a cluster: run `noded join TOKEN@HOST`", err)
		}
		return nil, err
	case !errors.Is(err, fs.ErrNotExist):
		m.log.Warn("serving certificate is unreadable, a new one is asked for", "err", err)
	}
	return m, nil
}

// Certificate is the certificate in use. Its errors say what is missing.
func (m *Manager) Certificate() (*tls.Certificate, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cur == nil {
		return nil, fmt.Errorf("the node's serving certificate has not been issued yet: see `kubectl get csr`")
	}
	return m.cur, nil
}

// Expiry is when the certificate in use ends; the zero time if there is none.
func (m *Manager) Expiry() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cur == nil {
		return time.Time{}
	}
	return m.cur.Leaf.NotAfter
}

// renewAt is when a certificate is to be replaced: at 70 to 80 % of its life,
// not at the same moment on every node.
func renewAt(notBefore, notAfter time.Time, jitter float64) time.Time {
	life := notAfter.Sub(notBefore)
	return notBefore.Add(time.Duration(float64(life) * (0.7 + 0.1*jitter)))
}

// covers tells whether the certificate names all that it should.
func (m *Manager) covers(c *tls.Certificate) bool {
	if m.names == nil {
		return true
	}
	dns, ips := m.names()
	for _, d := range dns {
		if !slices.Contains(c.Leaf.DNSNames, d) {
			return false
		}
	}
	for _, ip := range ips {
		if !slices.ContainsFunc(c.Leaf.IPAddresses, func(h net.IP) bool { return h.Equal(ip.AsSlice()) }) {
			return false
		}
	}
	return true
}

// Run renews the certificate until ctx ends. client is asked to sign.
func (m *Manager) Run(ctx context.Context, client kubernetes.Interface) {
	jitter := rand.Float64()
	backoff := minBackoff
	for {
		wait := m.untilDue(jitter)
		if wait > 0 {
			backoff = minBackoff
			// Addresses may change meanwhile, and the clock may be set.
			if !sleep(ctx, min(wait, time.Minute)) {
				return
			}
			continue
		}
		err := m.renew(ctx, client)
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			jitter = rand.Float64()
			continue
		}
		level := slog.LevelWarn
		if exp := m.Expiry(); !exp.IsZero() && m.now().After(exp) {
			level = slog.LevelError
			if m.names == nil {
				err = fmt.Errorf("%w: the certificate has expired, so the node can no longer ask by itself: run `noded join TOKEN@HOST --force` with a new token", err)
			}
		}
		m.log.Log(ctx, level, "certificate not renewed", "signer", m.signer, "expires", m.Expiry(), "retryIn", backoff, "err", err)
		if !sleep(ctx, backoff) {
			return
		}
		backoff = min(2*backoff, maxBackoff)
	}
}

func (m *Manager) untilDue(jitter float64) time.Duration {
	m.mu.Lock()
	cur := m.cur
	m.mu.Unlock()
	if cur == nil || !m.covers(cur) {
		return 0
	}
	return renewAt(cur.Leaf.NotBefore, cur.Leaf.NotAfter, jitter).Sub(m.now())
}

func (m *Manager) renew(ctx context.Context, client kubernetes.Interface) error {
	if m.ready != nil {
		if err := m.ready(ctx); err != nil {
			return err
		}
	}
	r := certificateRequest{signer: m.signer, node: m.node}
	if m.names != nil {
		dns, ips := m.names()
		r.dns = dns
		for _, ip := range ips {
			r.ips = append(r.ips, ip.AsSlice())
		}
	}
	rctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	pair, err := request(rctx, client, r, func(s string) { m.log.Info(s) })
	if err != nil {
		return err
	}
	c, err := ParsePair(pair)
	if err != nil {
		return err
	}
	if err := writePair(m.path, pair); err != nil {
		return err
	}
	m.mu.Lock()
	m.cur = c
	m.mu.Unlock()
	m.log.Info("certificate renewed", "signer", m.signer, "expires", c.Leaf.NotAfter)
	if m.change != nil {
		m.change()
	}
	return nil
}

func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
