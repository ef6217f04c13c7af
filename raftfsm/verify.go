package raftfsm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
)

// What raft-wal 0.4.0 writes (segment/format.go, little endian): a file header of 32
// bytes, then frames of 8 bytes of head and a payload padded to 8. A batch, which is one
// write and one fsync, ends with a commit frame that carries the CRC-32C of the whole
// batch; the first batch includes the file header. A sealed segment ends with an index
// frame, within its last batch.
//
// raft-wal checks the last batch of the tail only, and takes whatever it cannot read for
// the end of the log: a changed byte in the head of a frame would cut off, in silence,
// acknowledged entries behind it. So every batch of every segment is checked here before
// raft-wal sees them.
const (
	segHeader   = 32
	frameHead   = 8
	frameEntry  = 1
	frameIndex  = 2
	frameCommit = 3
	segMagic    = 0x58eb6b0d
	sector      = 512 // what a disk writes whole
)

// segmentScan is what the bytes of a segment hold.
type segmentScan struct {
	end     int // behind the last whole batch; 0 for none
	entries int // in whole batches
	index   int // offset of the index within them, 0 without one
	rest    int // behind the last byte that is not zero
}

// scanSegment walks the whole batches of b.
func scanSegment(b []byte) segmentScan {
	var s segmentScan
	s.rest = len(bytes.TrimRight(b, "\x00"))
	entries, index := 0, 0
	start, at := 0, segHeader
	for at+frameHead <= len(b) {
		head := b[at : at+frameHead]
		if head[1] != 0 || head[2] != 0 || head[3] != 0 {
			break
		}
		n := int(binary.LittleEndian.Uint32(head[4:]))
		switch head[0] {
		case frameCommit:
			if crc32.Checksum(b[start:at], castagnoli) != uint32(n) {
				return s
			}
			at += frameHead
			start = at
			s.end, s.entries, s.index = at, entries, index
			continue
		case frameEntry:
			entries++
		case frameIndex:
			index = at + frameHead
		default:
			return s
		}
		if n > len(b)-at-frameHead {
			return s
		}
		at += frameHead + (n+7)&^7
	}
	return s
}

// tailEnd decides what follows the whole batches of a tail. It may be the remains of one
// write that was cut off, which was then never acknowledged: end is where the log goes on,
// and all behind it is to be zeroed. Else it is damage to a write that may have been
// acknowledged. Nothing of a write that reached the disk is changed by a power cut, so one
// whose end is there and that misses no sector was whole once, and so was one that has
// another whole one behind it. sum is not nil when all but the end of the last checksum is
// there: it completes the batch that ends at end.
func tailEnd(b []byte, s segmentScan) (end int, sum []byte, err error) {
	if s.rest <= s.end {
		return s.end, nil, nil
	}
	damage := fmt.Errorf("%w: the write at byte %d", errDamaged, s.end)
	if followed(b, s) {
		return 0, nil, damage
	}
	// Is the end of the last write there?
	last := (s.rest + 7) &^ 7
	if last-frameHead < max(s.end+frameHead, segHeader) || last > len(b) {
		return s.end, nil, nil
	}
	foot := b[last-frameHead : last]
	want := binary.LittleEndian.AppendUint32(nil, crc32.Checksum(b[s.end:last-frameHead], castagnoli))
	switch cut := bytes.TrimRight(foot[4:], "\x00"); {
	case bytes.Equal(foot[4:], want): // its head is what does not fit
		return 0, nil, damage
	case commitLike(foot) < 4, len(cut) == 0, missesSector(b[:last], s.end):
		return s.end, nil, nil
	case bytes.HasPrefix(want, cut):
		return last, want, nil
	}
	return 0, nil, damage
}

// commitLike counts the bytes of a frame's head that are those of a commit frame.
func commitLike(head []byte) (n int) {
	for i, c := range [4]byte{frameCommit} {
		if head[i] == c {
			n++
		}
	}
	return n
}

// followed tells whether behind the first batch that is not whole there was another write.
func followed(b []byte, s segmentScan) bool {
	var commits []int
	sum, summed := uint32(0), s.end
	for off := max(s.end, segHeader-frameHead) + frameHead; off < s.rest && off+frameHead <= len(b); off += 8 {
		like := commitLike(b[off:])
		if like < 3 {
			continue
		}
		sum = crc32.Update(sum, castagnoli, b[summed:off])
		summed = off
		switch {
		case like == 4:
			commits = append(commits, off)
		case sum == binary.LittleEndian.Uint32(b[off+4:]) && off+frameHead < s.rest:
			return true // this one is whole but for the head of its last frame
		}
	}
	for i, from := range commits {
		sum, summed := uint32(0), from+frameHead
		for _, to := range commits[i+1 : min(i+1+maxCommitsTried, len(commits))] {
			sum = crc32.Update(sum, castagnoli, b[summed:to])
			summed = to
			if sum == binary.LittleEndian.Uint32(b[to+4:]) {
				return true
			}
		}
	}
	return false
}

// maxCommitsTried bounds the search for a whole batch: values may look like commit frames.
const maxCommitsTried = 64

// missesSector tells whether a sector of b from off on holds nothing but zeros, as it did
// when the file was made.
func missesSector(b []byte, off int) bool {
	for from := off; from < len(b); {
		to := min((from/sector+1)*sector, len(b))
		if to-from >= frameHead && len(bytes.TrimRight(b[from:to], "\x00")) == 0 {
			return true
		}
		from = to
	}
	return false
}

// verifySegments checks the list of segments against the files, and every byte of them
// that counts. What a cut-off write left behind the end of the log is removed, and the
// tail is made durable: a process that was killed may have left it in the kernel's memory
// only, and raft will answer for it.
func verifySegments(files fileSystem, dir string, st types.PersistentState) (err error) {
	var buf []byte
	listed := map[string]bool{}
	for i, s := range st.Segments {
		name := segment.FileName(s)
		path := filepath.Join(dir, name)
		listed[name] = true
		tail := s.SealTime.IsZero()
		if i > 0 {
			if prev := st.Segments[i-1]; s.BaseIndex != prev.MaxIndex+1 || s.MinIndex != s.BaseIndex {
				return fmt.Errorf("%s does not follow the segment before it: %w", path, errDamaged)
			}
		}
		if buf, err = readInto(buf[:0], path); errors.Is(err, fs.ErrNotExist) && tail {
			continue // raft-wal makes it after it was listed
		}
		if err != nil {
			return err
		}
		b := buf
		scan := scanSegment(b)
		if !tail {
			if err := checkSealed(b, scan, s); err != nil {
				return fmt.Errorf("%s: %w", path, err)
			}
			continue
		}
		end, sum, err := tailEnd(b, scan)
		if err == nil && end > 0 {
			err = checkHeader(b, s)
		}
		if err == nil {
			err = settleTail(files, dir, name, end, scan.rest, sum)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	// raft-wal lists a segment before it makes the file, so a file with a number that was
	// not given out yet means that the list is an old one; what is not listed is deleted.
	names, err := files.ListDir(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		var base, id uint64
		if n, err := fmt.Sscanf(name, "%020d-%016x.wal", &base, &id); err == nil && n == 2 && !listed[name] && id >= st.NextSegmentID {
			return fmt.Errorf("%s is not in %s, which is older than the file: %w", filepath.Join(dir, name), segmentsFile, errDamaged)
		}
	}
	return nil
}

// readInto reads a file into buf, which grows as it must.
func readInto(buf []byte, path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return buf, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return buf, err
	}
	if n := int(st.Size()); cap(buf) < n {
		buf = make([]byte, n)
	} else {
		buf = buf[:n]
	}
	_, err = io.ReadFull(f, buf)
	return buf, err
}

func checkHeader(b []byte, s types.SegmentInfo) error {
	le := binary.LittleEndian
	if len(b) < segHeader || le.Uint64(b) != segMagic || le.Uint64(b[8:]) != s.BaseIndex || le.Uint64(b[16:]) != s.ID || le.Uint64(b[24:]) != s.Codec {
		return fmt.Errorf("%w: it is another segment by its header", errDamaged)
	}
	return nil
}

func checkSealed(b []byte, scan segmentScan, s types.SegmentInfo) error {
	if err := checkHeader(b, s); err != nil {
		return err
	}
	// A segment whose end was removed from the log may have no index, and its last batches
	// count no more, see mendSegments.
	if s.MinIndex < s.BaseIndex || s.MaxIndex < s.MinIndex || s.MaxIndex-s.BaseIndex >= uint64(scan.entries) {
		return fmt.Errorf("%w: entry %d is not readable, behind byte %d", errDamaged, s.BaseIndex+uint64(scan.entries), scan.end)
	}
	if s.IndexStart != 0 && s.IndexStart != uint64(scan.index) {
		return fmt.Errorf("%w: its index is not at byte %d", errDamaged, s.IndexStart)
	}
	return nil
}

// settleTail completes the last batch with sum, zeroes what is behind it up to rest, and
// makes the file and its name durable.
func settleTail(files fileSystem, dir, name string, end, rest int, sum []byte) error {
	f, err := files.OpenWriter(dir, name)
	if err != nil {
		return err
	}
	defer f.Close()
	if sum != nil {
		if _, err := f.WriteAt(sum, int64(end-len(sum))); err != nil {
			return err
		}
	}
	zeros := make([]byte, min(max(rest-end, 0), 1<<20))
	for off := end; off < rest; off += len(zeros) {
		if _, err := f.WriteAt(zeros[:min(len(zeros), rest-off)], int64(off)); err != nil {
			return err
		}
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return files.SyncDir(dir)
}
