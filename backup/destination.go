package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Destination is a place on another machine that keeps copies of snapshots. Errors
// say what failed and name the place.
type Destination interface {
	// Name is short and unique: "s3", "ssh".
	Name() string
	// Put copies a file there. A copy that is listed is whole.
	Put(ctx context.Context, path string) error
	// List returns the snapshots there, in no order; what is not a snapshot is left out.
	List(ctx context.Context) ([]File, error)
	// Get writes one to w.
	Get(ctx context.Context, name string, w io.Writer) error
	// Delete removes one.
	Delete(ctx context.Context, name string) error
}

// pruneAt deletes the snapshots of the schedule at d beyond the newest keep.
func pruneAt(ctx context.Context, d Destination, keep int) error {
	all, err := d.List(ctx)
	if err != nil {
		return err
	}
	for _, f := range surplus(all, keep) {
		if err := d.Delete(ctx, f.Name); err != nil {
			return err
		}
	}
	return nil
}

// Fetch makes a snapshot available as a file: ref is a path, the name of one in dir, or
// DESTINATION:NAME, which is copied to a directory of its own below tmp. Call done when
// the file is not needed any more.
func Fetch(ctx context.Context, ref, dir, tmp string, all []Destination) (path string, done func(), err error) {
	where, name, remote := strings.Cut(ref, ":")
	if _, ok := ParseName(name); !remote || !ok || strings.ContainsRune(where, filepath.Separator) {
		if _, ok := ParseName(ref); ok {
			if _, err := os.Stat(ref); errors.Is(err, os.ErrNotExist) {
				ref = filepath.Join(dir, ref)
			}
		}
		if _, err := os.Stat(ref); err != nil {
			return "", nil, fmt.Errorf("there is no snapshot %s (%w): `controld snapshot list` shows them", ref, err)
		}
		return ref, func() {}, nil
	}
	var known []string
	for _, d := range all {
		known = append(known, d.Name())
		if d.Name() != where {
			continue
		}
		into, err := os.MkdirTemp(tmp, tmpPrefix+"*")
		if err != nil {
			return "", nil, fmt.Errorf("make a place for the snapshot: %w", err)
		}
		done = func() { os.RemoveAll(into) }
		path = filepath.Join(into, name)
		if err := fetch(ctx, d, name, path); err != nil {
			done()
			return "", nil, err
		}
		return path, done, nil
	}
	return "", nil, fmt.Errorf("%s is no destination of the configuration (there are: %s)", where, strings.Join(known, ", "))
}

func fetch(ctx context.Context, d Destination, name, path string) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("make a file for the snapshot: %w", err)
	}
	return errors.Join(d.Get(ctx, name, f), f.Close())
}

// secret reads a secret from a file that others may not read.
func secret(what, path string) (string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if fi.Mode().Perm()&0o007 != 0 {
		return "", fmt.Errorf("%s: everybody may read %s: chmod o= it", what, path)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	s := strings.TrimSpace(string(b))
	if s == "" {
		return "", fmt.Errorf("%s: %s is empty", what, path)
	}
	return s, nil
}
