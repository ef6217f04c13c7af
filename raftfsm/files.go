package raftfsm

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"

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

// A sealed file is one value as JSON on the first line, and on the second the CRC-32C of
// the first. It is replaced as a whole, so that it holds the old value or the new one,
// and a changed byte is seen. A key-value file (bbolt) can do neither: its pages carry no
// checksum, and when its newest root is damaged it silently goes back to the one before,
// which would be an older vote, or a log without its newest segment.
const sealMark = "crc32c "

// errDamaged is wrapped by the errors about content that is not what was written.
var errDamaged = errors.New("damaged")

func seal(v any) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(append(b, '\n'), "%s%08x\n", sealMark, crc32.Checksum(b, castagnoli)), nil
}

// unseal reads what seal gave into v. sealed is false for a file without a second line,
// which older versions wrote.
func unseal(b []byte, v any) (sealed bool, err error) {
	line, rest, ok := bytes.Cut(b, []byte{'\n'})
	sealed = ok && len(rest) > 0
	if want := fmt.Sprintf("%s%08x\n", sealMark, crc32.Checksum(line, castagnoli)); sealed && string(rest) != want {
		return true, fmt.Errorf("%w: its checksum does not fit its content", errDamaged)
	}
	if err := json.Unmarshal(line, v); err != nil {
		return sealed, fmt.Errorf("%w: %w", errDamaged, err)
	}
	return sealed, nil
}

// readSealed reads the file at path into v; an error that is fs.ErrNotExist when there is none.
func readSealed(path string, v any) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sealed, err := unseal(b, v)
	if err == nil && !sealed {
		err = fmt.Errorf("%w: it is cut off", errDamaged)
	}
	return err
}

// writeSealed replaces the file at path durably.
func writeSealed(files fileSystem, path string, v any) error {
	b, err := seal(v)
	if err != nil {
		return err
	}
	return replaceFile(files, path, b)
}

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
