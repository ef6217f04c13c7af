package raftfsm

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"

	"github.com/tripod-cluster/tripod/store"
)

// A snapshot is the magic, the length of a header and its CRC-32C (4 bytes each, big
// endian), the header as JSON, and then the store's own stream, which carries its own checksum.
const (
	snapshotMagic  = "TRIPODSNAP\x01"
	maxHeaderBytes = 64 << 20
)

type snapshotHeader struct {
	Cluster  uint64   `json:"cluster"`
	Index    uint64   `json:"index"`
	Term     uint64   `json:"term"`
	Members  []Member `json:"members"`
	Removed  []PeerID `json:"removed"`
	Sessions []byte   `json:"sessions"`
	// See replace.go.
	Replaced []uint64 `json:"replaced,omitempty"`
	Expected []Member `json:"expected,omitempty"`
}

// snapshot is a raft.FSMSnapshot: taking it is O(1) in the size of the store; writing it
// happens beside Apply.
type snapshot struct {
	header []byte
	store  *store.Snapshot
}

// Snapshot notes the state as it is now.
func (f *fsm) Snapshot() (raft.FSMSnapshot, error) {
	h := snapshotHeader{Members: f.memberList(), Sessions: f.sessions.encode(nil)}
	f.mu.RLock()
	h.Cluster, h.Index, h.Term = f.cluster, f.index, f.term
	h.Removed = slices.Sorted(maps.Keys(f.removed))
	h.Replaced, h.Expected = f.replaced, f.expects
	f.mu.RUnlock()
	b, err := json.Marshal(h)
	if err != nil {
		return nil, fmt.Errorf("encode the snapshot header: %w", err)
	}
	return &snapshot{header: b, store: f.store.Snapshot()}, nil
}

// Persist writes the snapshot; raft calls it beside Apply.
func (s *snapshot) Persist(sink raft.SnapshotSink) error {
	if err := s.write(sink); err != nil {
		sink.Cancel()
		return fmt.Errorf("write snapshot %s: %w", sink.ID(), err)
	}
	if err := sink.Close(); err != nil {
		return fmt.Errorf("finish snapshot %s: %w", sink.ID(), err)
	}
	return nil
}

func (s *snapshot) write(w io.Writer) error {
	bw := bufio.NewWriterSize(w, 256<<10)
	b := append([]byte(nil), snapshotMagic...)
	b = binary.BigEndian.AppendUint32(b, uint32(len(s.header)))
	b = binary.BigEndian.AppendUint32(b, crc32.Checksum(s.header, castagnoli))
	if _, err := bw.Write(append(b, s.header...)); err != nil {
		return err
	}
	if _, err := s.store.WriteTo(bw); err != nil {
		return err
	}
	return bw.Flush()
}

// Release lets go of the state.
func (s *snapshot) Release() { s.store.Close() }

// Restore replaces the state. Nothing has changed when it fails: the header is checked and
// the store stages the whole stream before anything is swapped.
func (f *fsm) Restore(r io.ReadCloser) error {
	defer r.Close()
	br := bufio.NewReaderSize(r, 256<<10)
	h, ss, err := readSnapshotHeader(br)
	if err != nil {
		return fmt.Errorf("restore a raft snapshot: %w", err)
	}
	if err := f.store.RestoreBeside(br, sideBySide); err != nil {
		return fmt.Errorf("restore a raft snapshot: %w", err)
	}
	f.sessions = ss
	f.mu.Lock()
	f.cluster = h.Cluster
	f.members = map[PeerID]Member{}
	for _, m := range h.Members {
		f.members[m.ID] = m
	}
	f.removed = map[PeerID]struct{}{}
	for _, id := range h.Removed {
		f.removed[id] = struct{}{}
	}
	f.replaced, f.expects = h.Replaced, h.Expected
	f.mu.Unlock()
	f.advance(h.Index, h.Term)
	f.lease(store.LeaseChange{Kind: store.LeasesReset})
	own := ss[f.self]
	if own != nil && own.boot != f.boot {
		own = nil
	}
	f.restored(own)
	return nil
}

// sideBySide runs functions on goroutines of their own, and the first on this one.
func sideBySide(fs ...func()) {
	var wg sync.WaitGroup
	for _, f := range fs[1:] {
		wg.Go(f)
	}
	fs[0]()
	wg.Wait()
}

func readSnapshotHeader(r io.Reader) (h snapshotHeader, ss sessions, err error) {
	var b [len(snapshotMagic) + 8]byte
	if _, err := io.ReadFull(r, b[:]); err != nil {
		return h, nil, fmt.Errorf("read its header: %w", err)
	}
	if string(b[:len(snapshotMagic)]) != snapshotMagic {
		return h, nil, fmt.Errorf("it does not start as a snapshot of this version: %q", b[:len(snapshotMagic)])
	}
	n, sum := binary.BigEndian.Uint32(b[len(snapshotMagic):]), binary.BigEndian.Uint32(b[len(snapshotMagic)+4:])
	if n > maxHeaderBytes {
		return h, nil, fmt.Errorf("its header claims %d bytes", n)
	}
	hb, err := io.ReadAll(io.LimitReader(r, int64(n))) // memory for what is there, not for what is claimed
	if err == nil && len(hb) < int(n) {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		return h, nil, fmt.Errorf("read its header: %w", err)
	}
	if got := crc32.Checksum(hb, castagnoli); got != sum {
		return h, nil, fmt.Errorf("its header is damaged (checksum %08x, not %08x)", got, sum)
	}
	if err := json.Unmarshal(hb, &h); err != nil {
		return h, nil, fmt.Errorf("decode its header: %w", err)
	}
	ss, err = decodeSessions(h.Sessions)
	if err != nil {
		return h, nil, fmt.Errorf("decode its header: %w", err)
	}
	return h, ss, nil
}
