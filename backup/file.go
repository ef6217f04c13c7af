package backup

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/store"
)

// Kind says why a snapshot was taken. Only those of the schedule are ever deleted.
type Kind string

const (
	// Auto was taken by the schedule.
	Auto Kind = "auto"
	// Manual was asked for.
	Manual Kind = "manual"
)

// File is a snapshot by its name: KIND-TIME-rREVISION.db.
type File struct {
	Name     string    `json:"name"`
	Kind     Kind      `json:"kind"`
	Taken    time.Time `json:"taken"` // to the second, UTC
	Revision int64     `json:"revision"`
	Bytes    int64     `json:"bytes"`
}

const (
	timeFormat = "20060102T150405Z"
	tmpPrefix  = ".unfinished-"
)

var namePattern = regexp.MustCompile(`^(auto|manual)-(\d{8}T\d{6}Z)-r(\d{1,18})\.db$`)

// FileName names a snapshot.
func FileName(kind Kind, taken time.Time, revision int64) string {
	return fmt.Sprintf("%s-%s-r%d.db", kind, taken.UTC().Format(timeFormat), revision)
}

// ParseName reads what FileName gave; false for any other name.
func ParseName(name string) (File, bool) {
	m := namePattern.FindStringSubmatch(name)
	if m == nil {
		return File{}, false
	}
	taken, err := time.Parse(timeFormat, m[2])
	rev, rerr := strconv.ParseInt(m[3], 10, 64)
	return File{Name: name, Kind: Kind(m[1]), Taken: taken, Revision: rev}, err == nil && rerr == nil
}

// newestFirst orders snapshots.
func newestFirst(a, b File) int {
	return cmp.Or(b.Taken.Compare(a.Taken), cmp.Compare(b.Revision, a.Revision), cmp.Compare(a.Name, b.Name))
}

// List returns the snapshots in dir, newest first; none when it does not exist.
func List(dir string) ([]File, error) {
	ents, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the snapshots: %w", err)
	}
	var out []File
	for _, e := range ents {
		f, ok := ParseName(e.Name())
		if !ok || !e.Type().IsRegular() {
			continue
		}
		fi, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // pruned meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("list the snapshots: %w", err)
		}
		f.Bytes = fi.Size()
		out = append(out, f)
	}
	slices.SortFunc(out, newestFirst)
	return out, nil
}

// surplus returns the snapshots of the schedule beyond the newest keep.
func surplus(all []File, keep int) []File {
	autos := slices.DeleteFunc(slices.Clone(all), func(f File) bool { return f.Kind != Auto })
	slices.SortFunc(autos, newestFirst)
	return autos[min(max(keep, 1), len(autos)):]
}

// reserve is what stays free on the file system, in bytes, for the store itself.
const reserve = 1 << 30

// Save writes a snapshot of s into dir, which it makes, and returns its name and size.
// Older snapshots of the schedule make room for it where the disk is full, but for the
// newest of them.
func Save(dir string, kind Kind, s *store.Store, o etcddb.Origin) (File, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return File{}, fmt.Errorf("make the directory of the snapshots: %w", err)
	}
	left, _ := filepath.Glob(filepath.Join(dir, tmpPrefix+"*"))
	for _, p := range left { // of a run that was cut off
		if err := os.RemoveAll(p); err != nil {
			return File{}, fmt.Errorf("remove an unfinished snapshot: %w", err)
		}
	}
	sn := s.Snapshot()
	defer sn.Close()
	if err := makeRoom(dir, sn.Size()+sn.Size()/4, freeBytes); err != nil {
		return File{}, err
	}
	name := FileName(kind, o.Taken, sn.Revision())
	tmp, path := filepath.Join(dir, tmpPrefix+name), filepath.Join(dir, name)
	if err := etcddb.Write(tmp, sn, o); err != nil {
		return File{}, err
	}
	err := os.Rename(tmp, path)
	if err == nil {
		err = syncDir(dir)
	}
	if err != nil {
		return File{}, fmt.Errorf("finish the snapshot: %w", err)
	}
	f, _ := ParseName(name)
	fi, err := os.Stat(path)
	if err != nil {
		return File{}, fmt.Errorf("finish the snapshot: %w", err)
	}
	f.Bytes = fi.Size()
	return f, nil
}

// makeRoom deletes old snapshots of the schedule until need bytes can be written beside
// the reserve. The newest one stays.
func makeRoom(dir string, need int64, free func(string) (int64, error)) error {
	for {
		have, err := free(dir)
		if err != nil {
			return err
		}
		if have >= need+reserve {
			return nil
		}
		all, err := List(dir)
		if err != nil {
			return err
		}
		old := surplus(all, 1)
		if len(old) == 0 {
			return fmt.Errorf("the file system of %s has %d MiB free; a snapshot needs about %d MiB, and %d MiB stay free for the store: free some space, or set snapshotDirectory to another file system", dir, have>>20, need>>20, int64(reserve)>>20)
		}
		if err := os.Remove(filepath.Join(dir, old[len(old)-1].Name)); err != nil {
			return fmt.Errorf("make room for a snapshot: %w", err)
		}
	}
}

func freeBytes(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("look at the file system of %s: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

// prune deletes the snapshots of the schedule beyond the newest keep.
func prune(dir string, keep int) error {
	all, err := List(dir)
	if err != nil {
		return err
	}
	for _, f := range surplus(all, keep) {
		if err := os.Remove(filepath.Join(dir, f.Name)); err != nil {
			return fmt.Errorf("delete an old snapshot: %w", err)
		}
	}
	return nil
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
