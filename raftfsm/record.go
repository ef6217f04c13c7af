package raftfsm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
)

// An entry of the raft log is a version byte, a CRC-32C of what follows, and records,
// each preceded by its length as uvarint. A record is
//
//	kind     1 byte
//	peer     8 bytes, the proposer
//	boot     8 bytes, the proposer's run
//	seq      uvarint, counts from 1 within the run
//	window   uvarint, seq minus the highest sequence number below which the
//	         proposer waits for nothing any more
//	term     uvarint, 0, or the only raft term in which the record may be applied
//	payload  the rest: an InternalRaftRequest, or JSON for the other kinds
//
// in big endian where it matters.
const (
	entryVersion = 1
	entryHeader  = 1 + 4
	// entryBytes is how much is coalesced into one entry.
	entryBytes = 1 << 20
	// MaxRequestBytes is the largest request that is accepted for replication. It
	// is above etcd's limit of 1.5 MiB, which etcdapi enforces.
	MaxRequestBytes = 2 << 20
)

type recordKind byte

const (
	recRequest     recordKind = iota + 1 // an InternalRaftRequest
	recMember                            // a Member was added or changed
	recMemberGone                        // a member was removed; its ID is never used again
	recClusterInit                       // the cluster's ID
	recBarrier                           // a leader's first record of its term
)

// recEssential is set in the kind of a record that is accepted while disk space runs
// out, since it frees some or the cluster cannot be managed without.
const recEssential recordKind = 0x80

type record struct {
	kind    recordKind
	vital   bool // see recEssential
	peer    PeerID
	boot    uint64
	seq     uint64
	floor   uint64 // below or equal to it the proposer waits for nothing
	term    uint64
	payload []byte
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// appendTo appends r with its length.
func (r *record) appendTo(b []byte) []byte {
	var h [1 + 8 + 8 + 3*binary.MaxVarintLen64]byte
	h[0] = byte(r.kind)
	if r.vital {
		h[0] |= byte(recEssential)
	}
	binary.BigEndian.PutUint64(h[1:], uint64(r.peer))
	binary.BigEndian.PutUint64(h[9:], r.boot)
	n := 17
	n += binary.PutUvarint(h[n:], r.seq)
	n += binary.PutUvarint(h[n:], r.seq-r.floor)
	n += binary.PutUvarint(h[n:], r.term)
	b = binary.AppendUvarint(b, uint64(n+len(r.payload)))
	b = append(b, h[:n]...)
	return append(b, r.payload...)
}

var errRecord = errors.New("malformed record")

// eachRecord calls f for the records in b, which start with their lengths. Payloads
// alias b.
func eachRecord(b []byte, f func(record) error) error {
	for len(b) > 0 {
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return fmt.Errorf("%w: length", errRecord)
		}
		r, err := parseRecord(b[n : n+int(size)])
		if err != nil {
			return err
		}
		if err := f(r); err != nil {
			return err
		}
		b = b[n+int(size):]
	}
	return nil
}

func parseRecord(b []byte) (record, error) {
	if len(b) < 17 {
		return record{}, fmt.Errorf("%w: %d bytes", errRecord, len(b))
	}
	r := record{
		kind:  recordKind(b[0]) &^ recEssential,
		vital: recordKind(b[0])&recEssential != 0,
		peer:  PeerID(binary.BigEndian.Uint64(b[1:])),
		boot:  binary.BigEndian.Uint64(b[9:]),
	}
	b = b[17:]
	var v [3]uint64
	for i := range v {
		x, n := binary.Uvarint(b)
		if n <= 0 {
			return record{}, fmt.Errorf("%w: header", errRecord)
		}
		v[i], b = x, b[n:]
	}
	if r.kind == 0 || v[0] == 0 || v[1] > v[0] {
		return record{}, fmt.Errorf("%w: kind %d, sequence %d, window %d", errRecord, r.kind, v[0], v[1])
	}
	r.seq, r.floor, r.term, r.payload = v[0], v[0]-v[1], v[2], b
	return r, nil
}

// newEntry starts an entry; records are appended to it and sealEntry ends it.
func newEntry(size int) []byte { return make([]byte, entryHeader, entryHeader+size) }

func sealEntry(b []byte) []byte {
	b[0] = entryVersion
	binary.BigEndian.PutUint32(b[1:], crc32.Checksum(b[entryHeader:], castagnoli))
	return b
}

// openEntry checks an entry and returns its records.
func openEntry(b []byte) ([]byte, error) {
	if len(b) < entryHeader {
		return nil, fmt.Errorf("entry of %d bytes", len(b))
	}
	if b[0] != entryVersion {
		return nil, fmt.Errorf("entry version %d is not known to this program (it knows %d): a newer peer wrote it; upgrade this one", b[0], entryVersion)
	}
	if got, want := crc32.Checksum(b[entryHeader:], castagnoli), binary.BigEndian.Uint32(b[1:]); got != want {
		return nil, fmt.Errorf("checksum is %08x, not %08x", got, want)
	}
	return b[entryHeader:], nil
}
