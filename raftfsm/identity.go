package raftfsm

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strconv"
	"time"
)

// PeerID names a peer for all time. It is random, never zero and never used
// again once its peer was removed.
type PeerID uint64

// String gives the form used as raft server ID and in peer certificates: 16 hex digits.
func (id PeerID) String() string { return fmt.Sprintf("%016x", uint64(id)) }

// ParsePeerID reads what String gave.
func ParsePeerID(s string) (PeerID, error) {
	v, err := strconv.ParseUint(s, 16, 64)
	if err != nil || v == 0 {
		return 0, fmt.Errorf("peer ID %q is not a non-zero number of up to 16 hex digits", s)
	}
	return PeerID(v), nil
}

func randomID() uint64 {
	for {
		var b [8]byte
		if _, err := rand.Read(b[:]); err != nil {
			panic(err) // crypto/rand does not fail on Linux
		}
		// etcd clients print and parse IDs as unsigned, but some tools go through
		// JSON numbers: keep the top bit free.
		if id := binary.BigEndian.Uint64(b[:]) >> 1; id != 0 {
			return id
		}
	}
}

// identity is what a peer knows about itself before raft starts.
type identity struct {
	ID PeerID `json:"id"`
	// Boot numbers the runs of this peer: it grows with every start, so that
	// records of an earlier run are told apart from those of this one.
	Boot uint64 `json:"boot"`
	// Left are the clusters that were replaced while this peer belonged to them. Those
	// of their members that have not heard of it yet must not take it in again.
	Left []uint64 `json:"left,omitempty"`
}

const identityFile = "peer.json"

// EnsureID returns the identity of the peer whose raft directory is dir, and makes
// and persists a random one on first use. The peer's certificate must carry it.
func EnsureID(dir string) (PeerID, error) {
	id, err := readIdentity(dir)
	if err != nil {
		return 0, err
	}
	if id.ID == 0 {
		id.ID = PeerID(randomID())
		if err := writeIdentity(newOSFiles(), dir, id); err != nil {
			return 0, err
		}
	}
	return id.ID, nil
}

func readIdentity(dir string) (identity, error) {
	var id identity
	_, _, err := readSealed(filepath.Join(dir, identityFile), &id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return identity{}, nil
	case err == nil && id.ID == 0:
		err = errDamaged
	case err != nil && !errors.Is(err, errDamaged):
		return identity{}, fmt.Errorf("read the identity of this peer: %w", err)
	}
	if err != nil {
		return identity{}, fmt.Errorf("the identity of this peer in %s is damaged (%w): restore the file from a backup, or remove this peer from the cluster, empty %s and join again", filepath.Join(dir, identityFile), err, dir)
	}
	return id, nil
}

func writeIdentity(files fileSystem, dir string, id identity) error {
	if err := makeDir(files, dir); err != nil {
		return fmt.Errorf("make the raft directory: %w", err)
	}
	f := sealedFile{files: files, path: filepath.Join(dir, identityFile)}
	var old identity
	version, _, err := readSealed(f.path, &old)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("write the identity of this peer: %w", err)
	}
	f.version = version
	if err := f.store(id); err != nil {
		return fmt.Errorf("write the identity of this peer: %w", err)
	}
	return nil
}

// nextBoot starts a new run: its number is above that of every earlier run even
// if the file came from an old backup, provided the clock did not go back as well.
func (id identity) nextBoot(now time.Time) identity {
	boot := uint64(max(now.UnixNano(), 0))
	if boot <= id.Boot {
		boot = id.Boot + 1
	}
	id.Boot = boot
	return id
}
