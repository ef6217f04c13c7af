package enroll

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// maxSkew is how far this host's clock may be from the cluster's: certificates
// and tokens are judged by it.
const maxSkew = time.Minute

// JoinOptions are the flags of `controld join`.
type JoinOptions struct {
	Config    peer.Config
	Line      string // TOKEN@HOST
	Name      string
	Advertise string
	Out       io.Writer
}

// Join makes this host a peer of an existing cluster and returns when it votes
// and serves.
func Join(ctx context.Context, o JoinOptions) error {
	c := o.Config
	tok, host, err := pki.ParseToken(o.Line)
	if err != nil {
		return err
	}
	if tok.Role != pki.RolePeer {
		return fmt.Errorf("this is a token for nodes: `noded join` takes it; `controld token --role peer` on a peer makes one for peers")
	}
	svc, err := openService(ctx)
	if err != nil {
		return err
	}
	defer svc.close()
	id, err := peer.ReadIdentity(c.StateDir)
	fresh := errors.Is(err, peer.NoIdentity)
	switch {
	case err == nil && id.Phase == peer.PhaseJoining:
		fmt.Fprintf(o.Out, "going on with a join of %s that did not finish\n", id.Name)
	case err == nil:
		return fmt.Errorf("this host is the peer %s of a cluster already: `controld status` shows it, `controld reset` removes it", id.Name)
	case !fresh:
		return err
	}
	if err := preflight(c, svc.active(ctx)); err != nil {
		return err
	}
	if fresh {
		addr, err := chooseAddress(first(o.Advertise, c.AdvertiseAddress), "", host)
		if err != nil {
			return err
		}
		rid, err := peer.NewID()
		if err != nil {
			return err
		}
		id = peer.Identity{ID: rid, Name: first(o.Name, c.Name), Address: addr.String(), Phase: peer.PhaseJoining}
	}
	cl := newJoinClient(tok, host)
	req := peer.JoinRequest{ID: id.ID, Name: id.Name, Address: id.Address, PeerPort: c.PeerPort, APIPort: c.APIPort, EtcdPort: c.EtcdPort}
	fmt.Fprintf(o.Out, "asking %s to admit %s (%s)\n", host, id.Name, id.Address)
	resp, err := cl.ask(ctx, req)
	if err != nil {
		return err
	}
	if fresh {
		if resp.Bundle == nil {
			return fmt.Errorf("%s answered without the cluster's authorities", host)
		}
		id.Cluster = resp.Cluster
		if err := resp.Bundle.Write(pki.Dir(filepath.Join(c.StateDir, "pki"))); err != nil {
			return err
		}
		if err := peer.WriteIdentity(c.StateDir, id); err != nil {
			return err
		}
	}
	if err := WriteAdminKubeconfig(c, id); err != nil {
		return err
	}
	if err := grantVIP(id.Cluster.VIP != ""); err != nil {
		return err
	}
	if err := own(c.StateDir); err != nil {
		return err
	}
	if err := svc.start(ctx, o.Out); err != nil {
		return err
	}
	req.Ready = true
	err = wait(ctx, o.Out, "the cluster to promote this peer to a voter", func(ctx context.Context) (bool, string, error) {
		resp, err := cl.ask(ctx, req)
		var refused refusedError
		if errors.As(err, &refused) {
			return false, "", err
		}
		if err != nil { // the peer asked may be going down, or the leadership moving
			return false, err.Error(), nil
		}
		return resp.Voter, "it catches up", nil
	})
	if err != nil {
		return err
	}
	if err := waitReady(ctx, o.Out, svc); err != nil {
		return err
	}
	return markMember(c, id)
}

// refusedError is a refusal that asking again does not change.
type refusedError struct{ error }

type joinClient struct {
	http http.Client
	url  string
	tok  pki.Token
	host string
}

func newJoinClient(tok pki.Token, host string) *joinClient {
	return &joinClient{
		tok: tok, host: host, url: "https://" + host + peer.JoinPath,
		http: http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{TLSClientConfig: pki.PinnedTLS(tok.CAHash, nil), ForceAttemptHTTP2: true}},
	}
}

func (j *joinClient) ask(ctx context.Context, r peer.JoinRequest) (*peer.JoinResponse, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("encode request: %w", err)
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.url, bytes.NewReader(b))
	if err != nil {
		return nil, fmt.Errorf("make request: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+j.tok.Bearer())
	req.Header.Set("Content-Type", "application/json")
	resp, err := j.http.Do(req)
	if err != nil {
		return nil, j.explain(err)
	}
	defer resp.Body.Close()
	if err := checkClock(resp.Header.Get("Date"), time.Now(), j.host); err != nil {
		return nil, refusedError{err}
	}
	switch resp.StatusCode {
	case http.StatusUnauthorized:
		return nil, refusedError{fmt.Errorf("%s does not know the token %s: it is mistyped, has expired, or belongs to another cluster; `controld token --role peer` on a peer makes a new one", j.host, j.tok.ID)}
	case http.StatusForbidden:
		return nil, refusedError{fmt.Errorf("%s knows the token %s, but not for a peer; `controld token --role peer` on a peer makes one", j.host, j.tok.ID)}
	case http.StatusConflict, http.StatusBadRequest:
		return nil, refusedError{peer.DecodeAnswer(resp, nil)}
	}
	out := &peer.JoinResponse{}
	if err := peer.DecodeAnswer(resp, out); err != nil {
		return nil, fmt.Errorf("%s: %w", j.host, err)
	}
	return out, nil
}

// explain turns a failed connection into its likely cause and the next step.
func (j *joinClient) explain(err error) error {
	var invalid x509.CertificateInvalidError
	switch {
	case errors.Is(err, pki.ErrWrongCluster):
		return refusedError{fmt.Errorf("%s: %w: take a new line from `controld token` on a peer of the right cluster", j.host, pki.ErrWrongCluster)}
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return refusedError{fmt.Errorf("the certificate of %s is valid from %s to %s, but the clock of this host says %s: set the clocks (timedatectl; chrony or systemd-timesyncd keep them), then run this again",
			j.host, invalid.Cert.NotBefore.Format(time.RFC3339), invalid.Cert.NotAfter.Format(time.RFC3339), time.Now().UTC().Format(time.RFC3339))}
	}
	return fmt.Errorf("reach %s: %w", j.host, err)
}

// checkClock compares this host's clock with the Date header of an answer, which
// is exact to the second.
func checkClock(date string, now time.Time, host string) error {
	t, err := http.ParseTime(date)
	if err != nil {
		return nil // no Date: nothing to compare with
	}
	d := now.Sub(t)
	if d.Abs() <= maxSkew {
		return nil
	}
	dir := "ahead of"
	if d < 0 {
		dir = "behind"
	}
	return fmt.Errorf("the clock of this host is %v %s that of %s (%s here, %s there): set the clocks (timedatectl; chrony or systemd-timesyncd keep them), then run this again",
		d.Abs().Round(time.Second), dir, host, now.UTC().Format(time.RFC3339), t.UTC().Format(time.RFC3339))
}
