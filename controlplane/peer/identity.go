package peer

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tripod-cluster/tripod/pki"
)

// Phase is how far a peer's membership has come.
type Phase string

// The phases of a peer, in order. A command that was interrupted goes on from
// the phase that it had reached.
const (
	PhaseInit    Phase = "init"    // the first peer, its service not yet seen ready
	PhaseJoining Phase = "joining" // certificates and authorities are here, the cluster may not know this peer
	PhaseMember  Phase = "member"
)

// Identity is what this host is in its cluster. It is written by `controld init`
// and `join`, and is the mark by which a host counts as a peer.
type Identity struct {
	ID      string  `json:"id"` // raft ID, random, never reused
	Name    string  `json:"name"`
	Address string  `json:"address"`
	First   bool    `json:"first,omitempty"` // bootstraps raft when there is no state
	Phase   Phase   `json:"phase"`
	Cluster Cluster `json:"cluster"`
}

func identityPath(stateDir string) string { return filepath.Join(stateDir, "peer.json") }

// NoIdentity says that the host is not a peer.
var NoIdentity = errors.New("this host is not a peer of any cluster: run `controld init` or `controld join TOKEN@HOST`")

// ReadIdentity returns NoIdentity where the host is not a peer.
func ReadIdentity(stateDir string) (Identity, error) {
	var id Identity
	b, err := os.ReadFile(identityPath(stateDir))
	if errors.Is(err, fs.ErrNotExist) {
		return id, NoIdentity
	}
	if err != nil {
		return id, fmt.Errorf("read identity: %w", err)
	}
	if err := json.Unmarshal(b, &id); err != nil {
		return id, fmt.Errorf("%s is damaged: %w", identityPath(stateDir), err)
	}
	return id, nil
}

// WriteIdentity stores it durably.
func WriteIdentity(stateDir string, id Identity) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode identity: %w", err)
	}
	return pki.WriteFile(identityPath(stateDir), append(b, '\n'), 0o600)
}

// NewID makes a raft ID: 16 hex digits of a positive number that is not zero.
func NewID() (string, error) {
	var b [8]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("read random bytes: %w", err)
	}
	b[0] &= 0x7f // some etcd tools read member IDs as signed numbers
	b[7] |= 1
	return fmt.Sprintf("%x", b), nil
}
