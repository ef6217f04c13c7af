package raftfsm

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/types"
)

// fileSystem is every change that this package makes to the disk: segments of the log
// through raft-wal's own seam, and what the other files need beside it. Tests put one
// under it that knows what a power cut would have left.
type fileSystem interface {
	types.VFS
	MkdirAll(dir string) error
	Rename(from, to string) error
	RemoveAll(path string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
}

// osFiles is the real one.
type osFiles struct{ *walfs.FS }

func newOSFiles() fileSystem { return osFiles{walfs.New()} }

func (osFiles) MkdirAll(dir string) error    { return os.MkdirAll(dir, 0o700) }
func (osFiles) Rename(from, to string) error { return os.Rename(from, to) }
func (osFiles) RemoveAll(path string) error  { return os.RemoveAll(path) }
func (osFiles) SyncDir(dir string) error     { return syncDir(dir) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// makeDir makes dir and makes it durable, whether or not it is new: an earlier process may
// have been killed in between.
func makeDir(files fileSystem, dir string) error {
	if err := files.MkdirAll(dir); err != nil {
		return err
	}
	return files.SyncDir(filepath.Dir(dir))
}

// A sealed value is JSON on the first line, and on the second a number that grows with each
// version, and the CRC-32C of what is before it.
//
// The small files that a peer lives by are kept so, twice: PATH and PATH.2 are written in
// place, one after the other, each with its fsync. A value was acknowledged only when both
// had it, so that the newer whole copy is never older than what was acknowledged,
// whichever of them a power cut tore or a disk damaged. Written in place, they need no
// space on a full disk. A key-value file (bbolt) gives none of this: its pages carry no
// checksum, and with its newest root damaged it goes back to the one before in silence,
// which is an older vote, or a log without its newest segment.
const (
	secondCopy = ".2"
	sealLine   = "version %d crc32c %08x\n"
	sealedPad  = 512
)

// errDamaged is wrapped by the errors about content that is not what was written.
var errDamaged = errors.New("damaged")

func seal(v any, version uint64) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	b = append(b, '\n')
	return fmt.Appendf(b, sealLine, version, sealSum(b, version)), nil
}

func sealSum(line []byte, version uint64) uint32 {
	return crc32.Update(crc32.Checksum(line, castagnoli), castagnoli, binary.BigEndian.AppendUint64(nil, version))
}

// unseal reads what seal gave into v. Its version is 0 for a file without a second line,
// which older versions of this program wrote.
func unseal(b []byte, v any) (version uint64, err error) {
	b = bytes.TrimRight(b, "\n")
	at := bytes.IndexByte(b, '\n') + 1
	line, rest := b[:at], string(b[at:])
	if at == 0 {
		line, rest = b, ""
	}
	if rest != "" {
		var sum uint32
		_, err := fmt.Sscanf(rest, sealLine, &version, &sum)
		if err != nil || fmt.Sprintf(sealLine, version, sum) != rest+"\n" || sum != sealSum(line, version) {
			return 0, fmt.Errorf("%w: its checksum does not fit its content", errDamaged)
		}
	}
	if err := json.Unmarshal(line, v); err != nil {
		return 0, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return version, nil
}

// sealedFile is a value in two copies, one of which is whole at any time.
type sealedFile struct {
	files   fileSystem
	path    string
	version uint64
	torn    string // the copy that may not be whole, or is older: the next to be written
}

// readSealed reads the newer whole copy at path into v, and says which copies do not hold
// it. The error is fs.ErrNotExist when there is no copy at all.
func readSealed(path string, v any) (version uint64, stale map[string]error, err error) {
	var best json.RawMessage
	versions := map[string]uint64{}
	stale = map[string]error{}
	missing := 0
	for _, p := range []string{path, path + secondCopy} {
		b, err := os.ReadFile(p)
		if errors.Is(err, fs.ErrNotExist) {
			missing++
			stale[p] = err
			continue
		}
		if err != nil {
			return 0, nil, err
		}
		var raw json.RawMessage
		n, err := unseal(b, &raw)
		if err != nil {
			stale[p] = err
			continue
		}
		versions[p] = n
		if best == nil || n > version {
			best, version = raw, n
		}
	}
	for p, n := range versions {
		if n < version {
			stale[p] = fmt.Errorf("it is of version %d, not %d", n, version)
		}
	}
	switch {
	case missing == 2:
		return 0, nil, fmt.Errorf("read %s: %w", path, fs.ErrNotExist)
	case best == nil:
		return 0, nil, fmt.Errorf("%s and its second copy are %w", path, errDamaged)
	}
	if err := json.Unmarshal(best, v); err != nil {
		return 0, nil, fmt.Errorf("%s: %w: %w", path, errDamaged, err)
	}
	return version, stale, nil
}

// load reads the value into v, and makes sure that both copies hold it, durably: what was
// read may be in the kernel's memory only, and will be answered for. log hears of a copy
// that was damaged.
func (f *sealedFile) load(v any, log *slog.Logger) error {
	version, stale, err := readSealed(f.path, v)
	if err != nil {
		return err
	}
	f.version = version
	for p, why := range stale {
		f.torn = p
		if errors.Is(why, errDamaged) {
			log.Error("one of two copies of a file is damaged, and is written anew from the other: check the disk", "path", p, "error", why)
		}
	}
	b, err := seal(v, version)
	if err != nil {
		return err
	}
	return f.write(b)
}

// store replaces the value. When it fails, either may be read later.
func (f *sealedFile) store(v any) error {
	f.version++ // also of a value that is not written: what is tried later is newer
	b, err := seal(v, f.version)
	if err != nil {
		return err
	}
	return f.write(b)
}

// write writes both copies. What failed to be written before comes first, while the other one is whole.
func (f *sealedFile) write(b []byte) error {
	copies := []string{f.path, f.path + secondCopy}
	if f.torn == copies[1] {
		slices.Reverse(copies)
	}
	for _, p := range copies {
		f.torn = p
		if err := overwrite(f.files, p, b); err != nil {
			return fmt.Errorf("write %s: %w", p, err)
		}
	}
	f.torn = ""
	return nil
}

// overwrite puts b, and line ends up to what was there before, at the start of the file at
// path; a new file is there as a whole or not at all.
func overwrite(files fileSystem, path string, b []byte) error {
	dir, name := filepath.Split(path)
	st, err := os.Stat(path)
	size := (len(b) + sealedPad - 1) / sealedPad * sealedPad
	if err == nil {
		size = max(size, int(st.Size()))
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	b = append(b[:len(b):len(b)], bytes.Repeat([]byte{'\n'}, size-len(b))...)
	if err != nil {
		return replaceFile(files, path, b)
	}
	f, err := files.OpenWriter(dir, name)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

// replaceFile makes b the content of the file at path.
func replaceFile(files fileSystem, path string, b []byte) error {
	dir, name := filepath.Split(path)
	tmp := name + ".tmp"
	if err := files.Delete(dir, tmp); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err // left by a crash
	}
	f, err := files.Create(dir, tmp, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(b, 0)
	if err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = files.Rename(filepath.Join(dir, tmp), path)
	}
	if err == nil {
		err = files.SyncDir(dir)
	}
	return err
}
