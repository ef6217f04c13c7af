package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"time"

	"github.com/tripod-cluster/tripod/backup"
	"github.com/tripod-cluster/tripod/pki"
)

// Status is what `controld status -o json` prints, and what the admin socket
// answers to GET /v1/status.
type Status struct {
	Name    string  `json:"name"`
	ID      string  `json:"id"`
	Address string  `json:"address"`
	Version string  `json:"version"`
	Cluster Cluster `json:"cluster"`
	// Ready: this peer serves both APIs and sees a leader.
	Ready bool `json:"ready"`
	// Waiting says what a peer that is not ready waits for.
	Waiting string `json:"waiting,omitempty"`
	Leader  string `json:"leader,omitempty"` // name of the leader, empty where none is known
	Term    uint64 `json:"term"`
	// Revision is the store revision that this peer has applied.
	Revision int64        `json:"revision"`
	Peers    []PeerStatus `json:"peers"`
	Nodes    []NodeStatus `json:"nodes"`
	// NodesError says why the nodes could not be listed.
	NodesError string `json:"nodesError,omitempty"`
	// Duties is what the leader runs; empty on the others.
	Duties []DutyStatus `json:"duties,omitempty"`
	// CertificatesExpire is when the first certificate of this peer ends; they are
	// renewed when a third of their life is left.
	CertificatesExpire time.Time `json:"certificatesExpire"`
	// Snapshots is how those are that this peer takes, a place each.
	Snapshots []backup.PlaceStatus `json:"snapshots,omitempty"`
	// Encryption is what this peer encrypts in the store; nil for nothing.
	Encryption *EncryptionStatus `json:"encryption,omitempty"`
}

// EncryptionStatus is encryption at rest as this peer does it.
type EncryptionStatus struct {
	// Rules are, one each, the resources and by which keys they are written and
	// read. Keys have their names here and nothing else.
	Rules []string `json:"rules"`
	// Problem says why the rules do not hold, or not yet.
	Problem string `json:"problem,omitempty"`
}

// PeerStatus is one raft peer as the answering one sees it.
type PeerStatus struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Address   string `json:"address"`
	Voter     bool   `json:"voter"`
	Leader    bool   `json:"leader"`
	Reachable bool   `json:"reachable"`
	// Expected: it was a member of the cluster that this one has replaced, and has not
	// come back as a voter yet.
	Expected bool   `json:"expected,omitempty"`
	Applied  uint64 `json:"applied"`
	Lag      uint64 `json:"lag"` // raft entries behind the leader
	Version  string `json:"version,omitempty"`
}

// NodeStatus is one node.
type NodeStatus struct {
	Name    string `json:"name"`
	Address string `json:"address"`
	Ready   string `json:"ready"` // True, False, Unknown
	Reason  string `json:"reason,omitempty"`
}

// DutyStatus is one task of the leader: a controller, the scheduler, the vip.
type DutyStatus struct {
	Name      string `json:"name"`
	Healthy   bool   `json:"healthy"`
	Message   string `json:"message,omitempty"`
	Restarts  int    `json:"restarts"`
	LastError string `json:"lastError,omitempty"`
}

// Why is what an object waits for.
type Why struct {
	// Kind is as asked for; Namespace is empty for what has none.
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	// By is who answers: a controller or the scheduler.
	By    string    `json:"by"`
	Waits []WhyWait `json:"waits"` // empty: it has all that it asks for
}

// WhyWait is one thing that is waited for, and who decided it or has to act.
type WhyWait struct {
	For string `json:"for"`
	By  string `json:"by"`
}

// TokenRequest asks for a new join token.
type TokenRequest struct {
	Role pki.Role      `json:"role"`
	TTL  time.Duration `json:"ttl"`
}

// TokenResponse carries a join token: a secret.
type TokenResponse struct {
	Word    string    `json:"word"`
	Host    string    `json:"host"` // the address of the answering peer
	Expires time.Time `json:"expires"`
}

// JoinPath is where a host asks any peer's API server to become a peer.
const JoinPath = "/tripod/v1/join"

// JoinRequest is posted twice by a joining host. First without Ready, for the
// authorities; then with Ready, when it listens, to be added to raft.
type JoinRequest struct {
	ID       string `json:"id"`
	Name     string `json:"name"`
	Address  string `json:"address"`
	PeerPort int    `json:"peerPort"`
	APIPort  int    `json:"apiPort"`
	EtcdPort int    `json:"etcdPort"`
	Ready    bool   `json:"ready,omitempty"`
}

// JoinResponse answers it.
type JoinResponse struct {
	Bundle  *pki.Bundle `json:"bundle,omitempty"` // first call only
	Cluster Cluster     `json:"cluster"`
	Peers   []string    `json:"peers"` // host:port of the peers' APIs
	Voter   bool        `json:"voter"` // second call: it votes already
}

// Refusal is the body of an error answer: what and what to do about it.
type Refusal struct {
	Error string `json:"error"`
}

// WriteRefusal answers an HTTP request with an error.
func WriteRefusal(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(Refusal{Error: err.Error()})
}

// Admin talks to the peer on this host through its admin socket, which only root
// and the daemon's own user may open.
type Admin struct {
	client http.Client
	socket string
}

// ErrNotRunning says that no daemon listens on the admin socket.
var ErrNotRunning = errors.New("controld is not running on this host: see `systemctl status controld` and `journalctl -u controld`")

// NewAdmin makes a client of the socket.
func NewAdmin(socket string) *Admin {
	return &Admin{socket: socket, client: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}}
}

// Status asks for the peer's view of the cluster.
func (a *Admin) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, a.call(ctx, http.MethodGet, "/v1/status", nil, &s)
}

// Why asks what an object waits for; only the leader can tell.
func (a *Admin) Why(ctx context.Context, kind, namespace, name string) (Why, error) {
	var w Why
	q := url.Values{"kind": {kind}, "namespace": {namespace}, "name": {name}}
	return w, a.call(ctx, http.MethodGet, "/v1/why?"+q.Encode(), nil, &w)
}

// Token asks for a new join token.
func (a *Admin) Token(ctx context.Context, r TokenRequest) (TokenResponse, error) {
	var t TokenResponse
	return t, a.call(ctx, http.MethodPost, "/v1/token", r, &t)
}

// RemovePeer removes a peer by name or ID from the cluster, for good.
func (a *Admin) RemovePeer(ctx context.Context, nameOrID string) error {
	return a.call(ctx, http.MethodPost, "/v1/peers/remove", map[string]string{"peer": nameOrID}, nil)
}

// SaveSnapshot takes a snapshot of the store in the configured directory.
func (a *Admin) SaveSnapshot(ctx context.Context) (backup.File, error) {
	var f backup.File
	return f, a.call(ctx, http.MethodPost, "/v1/snapshots", struct{}{}, &f)
}

// StepDown hands the leadership to another peer.
func (a *Admin) StepDown(ctx context.Context) error {
	return a.call(ctx, http.MethodPost, "/v1/step-down", nil, nil)
}

func (a *Admin) call(ctx context.Context, method, path string, in, out any) error {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode request: %w", err)
		}
		body = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, "http://controld"+path, body)
	if err != nil {
		return fmt.Errorf("make request: %w", err)
	}
	resp, err := a.client.Do(req)
	if err != nil {
		var op *net.OpError
		if errors.As(err, &op) && op.Op == "dial" {
			if errors.Is(err, fs.ErrPermission) {
				return fmt.Errorf("open %s: permission denied: run this as root", a.socket)
			}
			return ErrNotRunning
		}
		return fmt.Errorf("ask controld: %w", err)
	}
	defer resp.Body.Close()
	return DecodeAnswer(resp, out)
}

// DecodeAnswer reads a JSON answer into out, or the refusal as an error.
func DecodeAnswer(resp *http.Response, out any) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 8<<20))
	if err != nil {
		return fmt.Errorf("read answer: %w", err)
	}
	if resp.StatusCode/100 != 2 {
		var r Refusal
		if json.Unmarshal(b, &r) == nil && r.Error != "" {
			return errors.New(r.Error)
		}
		return fmt.Errorf("answer %s: %.200s", resp.Status, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("decode answer: %w", err)
	}
	return nil
}
