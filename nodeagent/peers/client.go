package peers

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"k8s.io/client-go/rest"
)

const (
	// ServerName is the name every peer's certificate carries.
	ServerName = "kubernetes"
	// PingAfter is how long a connection may be quiet before it is pinged.
	PingAfter = 2 * time.Second
	// PingTimeout is how long the answer to a ping may take: longer than a busy
	// peer stalls, since a cut connection is noticed sooner, by its kernel.
	PingTimeout = 10 * time.Second
	// probeTimeout bounds one look at a peer's /readyz.
	probeTimeout = 3 * time.Second
	// probeEvery bounds how often failing requests make the Set look.
	probeEvery = 2 * time.Second
)

// Client is HTTP over a Set. It owns the connections; Config gives the
// Kubernetes clients made of it their transport.
type Client struct {
	set       *Set
	log       *slog.Logger
	transport *http.Transport
	tls       *tls.Config

	mu      sync.Mutex
	probing bool
	probed  time.Time
}

// ClientConfig is what NewClient needs.
type ClientConfig struct {
	Set *Set
	// Roots verifies the peers' certificates, which must name ServerName.
	Roots *x509.CertPool
	// Certificate gives the client certificate for a new connection; nil for none.
	Certificate func() (*tls.Certificate, error)
	Logger      *slog.Logger
}

// NewClient makes a Client. It opens no connection.
func NewClient(c ClientConfig) *Client {
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	tc := &tls.Config{RootCAs: c.Roots, ServerName: ServerName, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}
	if c.Certificate != nil {
		tc.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			crt, err := c.Certificate()
			if err != nil || crt == nil {
				return &tls.Certificate{}, err
			}
			return crt, nil
		}
	}
	return &Client{
		set: c.Set, log: c.Logger, tls: tc,
		transport: &http.Transport{
			DialContext: c.Set.DialContext,
			// The handshake is part of finding a peer that answers.
			DialTLSContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return c.Set.dial(ctx, func(ctx context.Context, raw net.Conn) (net.Conn, error) {
					t := tls.Client(raw, tc)
					return t, t.HandshakeContext(ctx)
				})
			},
			TLSClientConfig:       tc,
			ForceAttemptHTTP2:     true,
			MaxIdleConnsPerHost:   4,
			IdleConnTimeout:       90 * time.Second,
			ExpectContinueTimeout: time.Second,
			HTTP2:                 &http.HTTP2Config{SendPingTimeout: PingAfter, PingTimeout: PingTimeout},
		},
	}
}

// Config is a client configuration that goes to whichever peer answers. Set
// BearerToken on a copy to authenticate by token.
func (c *Client) Config(userAgent string) *rest.Config {
	return &rest.Config{
		Host:          "https://" + ServerName,
		UserAgent:     userAgent,
		Transport:     c,
		QPS:           50,
		Burst:         100,
		ContentConfig: rest.ContentConfig{ContentType: "application/vnd.kubernetes.protobuf", AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json"},
	}
}

// RoundTrip sends one request. An answer or error that speaks for a peer that
// cannot serve makes the Set look at its health.
func (c *Client) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := c.transport.RoundTrip(r)
	switch {
	case err != nil && r.Context().Err() == nil:
		c.suspect()
		return nil, err // unwrapped: client-go looks for its causes by value
	case err == nil && (resp.StatusCode == http.StatusInternalServerError || resp.StatusCode == http.StatusServiceUnavailable || resp.StatusCode == http.StatusGatewayTimeout):
		c.suspect()
	}
	return resp, err
}

// suspect starts at most one look at the current peer's health at a time.
func (c *Client) suspect() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.probing || time.Since(c.probed) < probeEvery {
		return
	}
	c.probing = true
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*probeTimeout)
		defer cancel()
		c.Check(ctx)
		c.mu.Lock()
		c.probing, c.probed = false, time.Now()
		c.mu.Unlock()
	}()
}

// Check looks at /readyz of the current peer over a connection of its own. If
// the peer is not ready and another one is, the Set leaves it. Where none is
// ready nothing changes: moving about would not help.
func (c *Client) Check(ctx context.Context) {
	cur := c.set.Current()
	if cur == "" {
		return
	}
	err := c.ready(ctx, cur)
	if err == nil {
		return
	}
	for _, other := range c.set.Candidates() {
		if other == cur || c.ready(ctx, other) != nil {
			continue
		}
		c.log.Warn("leaving an API peer that cannot serve", "peer", cur, "err", err)
		c.set.Leave(cur)
		c.transport.CloseIdleConnections()
		return
	}
}

// ready asks one peer whether it can serve.
func (c *Client) ready(ctx context.Context, peer string) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	tc := c.tls.Clone()
	tc.NextProtos = []string{"http/1.1"}
	t := &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{Timeout: dialTimeout}).DialContext(ctx, "tcp", peer)
		},
		TLSClientConfig:   tc,
		DisableKeepAlives: true,
	}
	defer t.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+ServerName+"/readyz", nil)
	if err != nil {
		return err
	}
	resp, err := t.RoundTrip(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 64<<10))
	if resp.StatusCode != http.StatusOK {
		return errors.New("/readyz says " + resp.Status)
	}
	return nil
}

// Run looks at the current peer's health every period until ctx ends, beside the
// looks that failing requests cause. A period of 15 s costs a peer one small
// request per node in that time.
func (c *Client) Run(ctx context.Context, period time.Duration) {
	t := time.NewTicker(period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
			c.Check(ctx)
		}
	}
}

// CloseConnections closes every connection, so that the next request makes a new
// handshake.
func (c *Client) CloseConnections() {
	c.transport.CloseIdleConnections()
	c.set.CloseConnections()
}
