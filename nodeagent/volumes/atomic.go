package volumes

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// The layout readers of such volumes rely on: each visible name is a link
// through ..data, and ..data is a link to the directory with one consistent
// version, replaced by rename.
const (
	dataLink    = "..data"
	dataLinkNew = "..data_tmp"
)

// file is one file of a volume that shows API objects.
type file struct {
	data  []byte
	mode  os.FileMode
	owner *int64 // user ID, nil: root
}

// writeAtomically makes dir show exactly files (by relative path): readers see
// either all of the old or all of the new content.
func writeAtomically(dir string, files map[string]file, group *int64) error {
	for p := range files {
		if err := checkPath(p); err != nil {
			return err
		}
	}
	old, err := os.Readlink(filepath.Join(dir, dataLink))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err == nil && same(filepath.Join(dir, old), files, group) {
		return link(dir, files) // a crash may have come between ..data and the names
	}
	version, err := os.MkdirTemp(dir, "..v")
	if err != nil {
		return err
	}
	if err := fill(version, files, group); err != nil {
		return errors.Join(err, os.RemoveAll(version))
	}
	tmp := filepath.Join(dir, dataLinkNew)
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if err := os.Symlink(filepath.Base(version), tmp); err != nil {
		return err
	}
	if err := os.Rename(tmp, filepath.Join(dir, dataLink)); err != nil {
		return err
	}
	if err := link(dir, files); err != nil {
		return err
	}
	return sweep(dir, filepath.Base(version), files)
}

// checkPath refuses paths that would leave the volume or hide among its own
// names.
func checkPath(p string) error {
	if p == "" || filepath.IsAbs(p) || len(p) > 4096 {
		return fmt.Errorf("invalid path %q in a volume: it must be relative and not empty", p)
	}
	for i, part := range strings.Split(p, "/") {
		if part == ".." || (i == 0 && strings.HasPrefix(part, "..")) {
			return fmt.Errorf("invalid path %q in a volume: it must not contain or begin with '..'", p)
		}
	}
	return nil
}

func perm(f file, group *int64) os.FileMode {
	if group != nil {
		return f.mode | 0o440
	}
	return f.mode
}

func same(version string, files map[string]file, group *int64) bool {
	n := 0
	err := filepath.WalkDir(version, func(p string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(version, p)
		if err != nil {
			return err
		}
		f, ok := files[rel]
		if !ok {
			return errDiffers
		}
		fi, err := d.Info()
		if err != nil || fi.Mode().Perm() != perm(f, group) {
			return errDiffers
		}
		b, err := os.ReadFile(p)
		if err != nil || !bytes.Equal(b, f.data) {
			return errDiffers
		}
		n++
		return nil
	})
	return err == nil && n == len(files)
}

var errDiffers = errors.New("differs")

func fill(version string, files map[string]file, group *int64) error {
	// The volume's own modes decide who reads; what is above must let through.
	if err := chmodDir(version, group); err != nil {
		return err
	}
	for p, f := range files {
		full := filepath.Join(version, p)
		for d := filepath.Dir(p); d != "."; d = filepath.Dir(d) {
			if err := os.MkdirAll(filepath.Join(version, d), 0o755); err != nil {
				return err
			}
			if err := chmodDir(filepath.Join(version, d), group); err != nil {
				return err
			}
		}
		if err := os.WriteFile(full, f.data, 0o600); err != nil {
			return err
		}
		uid, gid := -1, -1
		if f.owner != nil {
			uid = int(*f.owner)
		}
		if group != nil {
			gid = int(*group)
		}
		if uid >= 0 || gid >= 0 {
			if err := os.Chown(full, uid, gid); err != nil {
				return err
			}
		}
		if err := os.Chmod(full, perm(f, group)); err != nil { // after chown, which drops set-id bits
			return err
		}
	}
	return nil
}

func chmodDir(d string, group *int64) error {
	mode := os.FileMode(0o755)
	if group != nil {
		if err := os.Chown(d, -1, int(*group)); err != nil {
			return err
		}
		mode |= os.ModeSetgid
	}
	return os.Chmod(d, mode)
}

// tops are the visible names: the first element of each path.
func tops(files map[string]file) []string {
	var out []string
	for p := range files {
		top, _, _ := strings.Cut(p, "/")
		if !slices.Contains(out, top) {
			out = append(out, top)
		}
	}
	return out
}

func link(dir string, files map[string]file) error {
	for _, top := range tops(files) {
		target := filepath.Join(dataLink, top)
		name := filepath.Join(dir, top)
		if cur, err := os.Readlink(name); err == nil && cur == target {
			continue
		}
		if err := os.RemoveAll(name); err != nil {
			return err
		}
		if err := os.Symlink(target, name); err != nil {
			return err
		}
	}
	return nil
}

// sweep removes names and versions that are not shown any more.
func sweep(dir, version string, files map[string]file) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	keep := append(tops(files), dataLink, version)
	for _, e := range entries {
		if !slices.Contains(keep, e.Name()) {
			if err := os.RemoveAll(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}
