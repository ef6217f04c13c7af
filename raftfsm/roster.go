package raftfsm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// protoRoster is the protocol of a connection that asks who the members are.
const protoRoster = "tripod-roster/1"

// maxRoster bounds what Roster reads, in bytes.
const maxRoster = 1 << 20

type roster struct {
	Cluster uint64   `json:"cluster"`
	Members []Member `json:"members"`
}

// Roster asks the peer that listens at addr (host:port) for its cluster's ID and members; 0 and none where it
// waits for a cluster itself. Who asks need not be a member, but must hold a certificate of the peers' authority:
// client is as in Config.TLS. With it a peer that was made by Create finds its ID.
func Roster(ctx context.Context, addr string, client *tls.Config) (cluster uint64, members []Member, err error) {
	fail := func(err error) (uint64, []Member, error) {
		return 0, nil, fmt.Errorf("ask %s for the members of its cluster: %w", addr, err)
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	client = client.Clone()
	client.MinVersion = tls.VersionTLS13
	client.NextProtos = []string{protoRoster}
	// Which peer answers is not known before, so the name is not verified; the chain is.
	client.InsecureSkipVerify = true
	roots := client.RootCAs
	client.VerifyConnection = func(s tls.ConnectionState) error {
		_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
		return err
	}
	d := tls.Dialer{Config: client}
	c, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return fail(err)
	}
	defer c.Close()
	deadline, _ := ctx.Deadline()
	c.SetDeadline(deadline)
	b, err := io.ReadAll(io.LimitReader(c, maxRoster))
	if err != nil {
		return fail(err)
	}
	if len(b) == 0 {
		return fail(errors.New("no answer"))
	}
	var r roster
	if err := json.Unmarshal(b, &r); err != nil {
		return fail(err)
	}
	return r.Cluster, r.Members, nil
}

// serveRoster answers Roster.
func (n *Node) serveRoster(c net.Conn) {
	defer c.Close()
	b, err := json.Marshal(roster{Cluster: n.ClusterID(), Members: n.Members()})
	if err == nil {
		c.SetDeadline(time.Now().Add(handshakeTimeout))
		_, err = c.Write(b)
	}
	if err != nil {
		n.log.Warn("the members could not be told to one who asked", "remote", c.RemoteAddr().String(), "error", err)
	}
}
