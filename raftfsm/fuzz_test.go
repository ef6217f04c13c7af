package raftfsm

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"testing"
	"time"

	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// Entries and records of any bytes: no panic, and what is taken encodes to something that is taken again. A
// right checksum is made for every second input, or hardly any would get beyond it.
func FuzzEntry(f *testing.F) {
	r := record{kind: recRequest, peer: 3, boot: 4, seq: 300, floor: 2, payload: []byte("x")}
	f.Add(sealEntry(r.appendTo(newEntry(0))), false)
	f.Add(r.appendTo(newEntry(0)), true)
	f.Fuzz(func(t *testing.T, b []byte, reseal bool) {
		if reseal && len(b) >= entryHeader {
			b = sealEntry(bytes.Clone(b))
		}
		records, err := openEntry(b)
		if err != nil {
			return
		}
		again, n := newEntry(0), 0
		if eachRecord(records, func(r record) error { n++; again = r.appendTo(again); return nil }) != nil {
			return
		}
		records, err = openEntry(sealEntry(again))
		if err != nil {
			t.Fatal(err)
		}
		if err := eachRecord(records, func(record) error { n--; return nil }); err != nil || n != 0 {
			t.Fatalf("what was decoded does not decode again: %d records, %v", n, err)
		}
	})
}

// Sessions of any bytes: no panic, and what is taken has one encoding.
func FuzzSessions(f *testing.F) {
	ss := sessions{}
	for _, seq := range []uint64{1, 2, 7, 9} {
		ss.admit(&record{peer: 4, boot: 2, seq: seq})
	}
	f.Add(ss.encode(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		ss, err := decodeSessions(b)
		if err != nil {
			return
		}
		again, err := decodeSessions(ss.encode(nil))
		if err != nil || string(again.encode(nil)) != string(ss.encode(nil)) {
			t.Fatalf("sessions change over their encoding: %v", err)
		}
	})
}

// memFile is a segment in memory.
type memFile struct{ b []byte }

func (m *memFile) ReadAt(b []byte, off int64) (int, error) {
	return bytes.NewReader(m.b).ReadAt(b, off)
}

func (m *memFile) WriteAt(b []byte, off int64) (int, error) {
	if need := int(off) + len(b); need > len(m.b) {
		m.b = append(m.b, make([]byte, need-len(m.b))...)
	}
	return copy(m.b[off:], b), nil
}

func (m *memFile) Sync() error  { return nil }
func (m *memFile) Close() error { return nil }

// memFiles is a directory with that one segment.
type memFiles struct {
	fileSystem
	f *memFile
}

func (m memFiles) OpenWriter(string, string) (types.WritableFile, error) { return m.f, nil }
func (m memFiles) SyncDir(string) error                                  { return nil }

// withSums gives the commit frames of a segment their right checksums, where its frames can be followed.
func withSums(b []byte) {
	start, at := 0, segHeader
	for at+frameHead <= len(b) {
		if b[at] == frameCommit {
			binary.LittleEndian.PutUint32(b[at+4:], crc32.Checksum(b[start:at], castagnoli))
			at += frameHead
			start = at
			continue
		}
		n := int(binary.LittleEndian.Uint32(b[at+4:]))
		if b[at] == 0 || n > len(b) {
			return
		}
		at += frameHead + (n+7)&^7
	}
}

// A tail of any bytes: no panic, and it is damage, or put in an order in which raft-wal finds exactly the entries
// of whole batches and can read them and append.
func FuzzSegment(f *testing.F) {
	info := types.SegmentInfo{ID: 3, BaseIndex: 1, MinIndex: 1, SizeLimit: 1 << 20, Codec: wal.CodecBinaryV1, CreateTime: time.Unix(0, 0)}
	dir := f.TempDir()
	for _, limit := range []uint32{1 << 20, 300} {
		i := info
		i.SizeLimit = limit
		w, err := segment.NewFiler(dir, newOSFiles()).Create(i)
		if err != nil {
			f.Fatal(err)
		}
		for n := uint64(1); n < 4; n++ {
			if err := w.Append([]types.LogEntry{{Index: n, Data: noise(n, 70)}}); err != nil {
				f.Fatal(err)
			}
		}
		w.Close()
		path := dir + "/" + segment.FileName(i)
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		os.Remove(path)
		f.Add(b[:min(len(b), 600)], false)
		f.Add(b[:300], true)
	}
	f.Fuzz(func(t *testing.T, b []byte, sums bool) {
		b = bytes.Clone(b)
		if sums {
			withSums(b)
		}
		scan := scanSegment(b)
		if scan.end > len(b) || scan.rest > len(b) {
			t.Fatalf("%+v of %d bytes", scan, len(b))
		}
		end, sum, err := tailEnd(b, scan)
		if err != nil || end > 0 && checkHeader(b, info) != nil {
			return
		}
		m := &memFile{b: b}
		if err := settleTail(memFiles{newOSFiles(), m}, "", "", end, scan.rest, sum); err != nil {
			t.Fatal(err)
		}
		again := scanSegment(m.b)
		if again.end != end || again.rest > again.end && len(bytes.TrimRight(m.b[again.end:], "\x00")) > 0 || again.entries < scan.entries {
			t.Fatalf("%+v is settled to end at %d, and then %+v", scan, end, again)
		}
		w, err := segment.NewFiler("", memFiles{newOSFiles(), m}).RecoverTail(info)
		if err != nil {
			t.Fatal(err)
		}
		if got := int(w.LastIndex()); got != again.entries {
			t.Fatalf("raft-wal sees %d entries, %d were checked", got, again.entries)
		}
		for n := range again.entries {
			p, err := w.GetLog(uint64(n + 1))
			if err != nil {
				t.Fatalf("entry %d: %v", n+1, err)
			}
			p.Close()
		}
		if sealed, _, err := w.Sealed(); err != nil || sealed {
			return // raft-wal appends to the next one
		}
		if err := w.Append([]types.LogEntry{{Index: uint64(again.entries + 1), Data: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	})
}

// A snapshot of any bytes: no panic, and nothing has changed when it is refused.
func FuzzSnapshot(f *testing.F) {
	src := bareFSM()
	for i := uint64(1); i < 4; i++ {
		payload, err := pbMarshal(putReq(fmt.Sprint("k", i), "v"))
		if err != nil {
			f.Fatal(err)
		}
		src.Apply(command(f, i, record{kind: recRequest, peer: 9, boot: 1, seq: i * 2, payload: payload}))
	}
	f.Add(fsmSnapshotBytes(f, src))
	f.Add(fsmSnapshotBytes(f, bareFSM()))
	f.Fuzz(func(t *testing.T, b []byte) {
		const sumAt = len(snapshotMagic) + 4
		if len(b) > sumAt+4 { // the header's checksum, or hardly any would get beyond it
			b = bytes.Clone(b)
			n := int(min(binary.BigEndian.Uint32(b[len(snapshotMagic):]), uint32(len(b)-sumAt-4)))
			binary.BigEndian.PutUint32(b[sumAt:], crc32.Checksum(b[sumAt+4:][:n], castagnoli))
		}
		dst := bareFSM()
		before := fsmSnapshotBytes(t, dst)
		if err := dst.Restore(io.NopCloser(bytes.NewReader(b))); err != nil {
			if !bytes.Equal(fsmSnapshotBytes(t, dst), before) {
				t.Fatal("a failed restore changed the state")
			}
			return
		}
		again := bareFSM()
		if err := again.Restore(io.NopCloser(bytes.NewReader(fsmSnapshotBytes(t, dst)))); err != nil {
			t.Fatalf("what was restored cannot be restored again: %v", err)
		}
	})
}
