package images

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	rescan  = 30 * time.Second // in case the kernel's word of a change was lost
	settle  = 2 * time.Second  // a file found by a scan must be this old
	oneTake = 10 * time.Minute // for one archive
)

// Importer imports image archives (tar, plain or compressed) from directories
// into the runtime: all at the start, and each that is dropped in. It does not
// import a file twice unless it changed or its images are gone, nor one that
// is still being written, and a bad one is reported and left alone until it
// changes.
type Importer struct {
	Dirs      []string // the last is made if it is missing
	StateFile string
	Images    internalapi.ImageManagerService
	Import    func(ctx context.Context, path string) (names []string, err error) // nil: ctr
	Imported  func(path string, names []string)
	Failed    func(path string, err error)
	Log       *slog.Logger

	mu    sync.Mutex
	state map[string]record
	first chan struct{}
	once  sync.Once
}

// record is what is remembered of a file.
type record struct {
	Size  int64     `json:"size"`
	MTime time.Time `json:"mtime"`
	Names []string  `json:"names,omitempty"`
	Error string    `json:"error,omitempty"`
}

// Run imports until ctx ends.
func (im *Importer) Run(ctx context.Context) {
	im.load()
	if err := os.MkdirAll(im.Dirs[len(im.Dirs)-1], 0o755); err != nil {
		im.Log.Error("image directory cannot be made", "err", err)
	}
	w := watch(ctx, im.Dirs, im.Log)
	tick := time.NewTicker(rescan)
	defer tick.Stop()
	im.scan(ctx, true)
	im.signalFirst()
	for {
		select {
		case <-ctx.Done():
			return
		case path, ok := <-w:
			if !ok {
				w = nil // the scans go on
				continue
			}
			im.consider(ctx, path, false)
		case <-tick.C:
			im.scan(ctx, true)
		}
	}
}

// FirstScan is closed when the archives that were there at the start have
// been looked at.
func (im *Importer) FirstScan() <-chan struct{} { return im.firstScan() }

func (im *Importer) firstScan() chan struct{} {
	im.mu.Lock()
	defer im.mu.Unlock()
	if im.first == nil {
		im.first = make(chan struct{})
	}
	return im.first
}

func (im *Importer) signalFirst() {
	ch := im.firstScan()
	im.once.Do(func() { close(ch) })
}

// Names returns the images that archives still present brought; they are not
// garbage, since nothing but their archive could bring them back.
func (im *Importer) Names() map[string]bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	out := map[string]bool{}
	for _, r := range im.state {
		for _, n := range r.Names {
			out[n] = true
		}
	}
	return out
}

func archive(name string) bool {
	if strings.HasPrefix(name, ".") {
		return false
	}
	for _, s := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if strings.HasSuffix(name, s) {
			return true
		}
	}
	return false
}

func (im *Importer) scan(ctx context.Context, settled bool) {
	seen := map[string]bool{}
	for _, d := range im.Dirs {
		entries, err := os.ReadDir(d)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			im.Log.Warn("image directory not readable", "dir", d, "err", err)
		}
		for _, e := range entries {
			p := filepath.Join(d, e.Name())
			seen[p] = true
			im.consider(ctx, p, settled)
		}
	}
	im.mu.Lock()
	n := len(im.state)
	maps.DeleteFunc(im.state, func(p string, _ record) bool { return !seen[p] })
	changed := len(im.state) != n
	im.mu.Unlock()
	if changed {
		im.save()
	}
}

// consider imports path if it is new, changed, or its images are gone.
// settled: nothing says that its writer is done, so it must be old enough.
func (im *Importer) consider(ctx context.Context, path string, settled bool) {
	fi, err := os.Stat(path)
	if ctx.Err() != nil || err != nil || !fi.Mode().IsRegular() || !archive(filepath.Base(path)) {
		return
	}
	im.mu.Lock()
	r, known := im.state[path]
	im.mu.Unlock()
	if known && r.Size == fi.Size() && r.MTime.Equal(fi.ModTime()) {
		if r.Error != "" || im.present(ctx, r.Names) {
			return
		}
	} else if settled && time.Since(fi.ModTime()) < settle && time.Since(fi.ModTime()) >= 0 {
		return // the next scan, or its writer's close
	}
	take := im.Import
	if take == nil {
		take = ctrImport
	}
	tctx, cancel := context.WithTimeout(ctx, oneTake)
	names, err := take(tctx, path)
	cancel()
	if ctx.Err() != nil {
		return
	}
	n := record{Size: fi.Size(), MTime: fi.ModTime(), Names: names}
	if err != nil {
		if runtimeDown(err) {
			im.Log.Warn("image archive waits for the runtime", "path", path, "err", err)
			return
		}
		n.Error = err.Error()
		im.Log.Error("image archive not imported: replace the file to try again", "path", path, "err", err)
	} else {
		im.Log.Info("image archive imported", "path", path, "images", names)
	}
	im.mu.Lock()
	im.state[path] = n
	im.mu.Unlock()
	im.save()
	if err != nil {
		if im.Failed != nil {
			im.Failed(path, err)
		}
		return
	}
	if im.Imported != nil {
		im.Imported(path, names)
	}
}

// present says whether the runtime holds all the images; unknown counts as yes.
func (im *Importer) present(ctx context.Context, names []string) bool {
	if im.Images == nil {
		return true
	}
	for _, n := range names {
		st, err := im.Images.ImageStatus(ctx, &runtimeapi.ImageSpec{Image: n}, false)
		if err == nil && st.GetImage() == nil {
			return false
		}
	}
	return true
}

func (im *Importer) load() {
	im.mu.Lock()
	defer im.mu.Unlock()
	im.state = map[string]record{}
	b, err := os.ReadFile(im.StateFile)
	if err == nil {
		err = json.Unmarshal(b, &im.state)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		im.Log.Warn("record of imported images not readable, importing again", "err", err)
		im.state = map[string]record{}
	}
}

func (im *Importer) save() {
	im.mu.Lock()
	b, err := json.MarshalIndent(im.state, "", " ")
	im.mu.Unlock()
	if err == nil {
		tmp := im.StateFile + ".tmp"
		if err = os.WriteFile(tmp, b, 0o600); err == nil {
			err = os.Rename(tmp, im.StateFile)
		}
	}
	if err != nil {
		im.Log.Warn("record of imported images not written", "err", err)
	}
}

var unpacking = regexp.MustCompile(`(?m)^unpacking (\S+) \(`)

// ctrImport imports with containerd's own tool, which ships with every
// version of it and reads every archive it writes.
func ctrImport(ctx context.Context, path string) ([]string, error) {
	cmd := exec.CommandContext(ctx, "ctr", "-n", "k8s.io", "images", "import", path)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("import %s: %w: %s", path, err, strings.TrimSpace(stderr.String()))
	}
	var names []string
	for _, m := range unpacking.FindAllStringSubmatch(string(out), -1) {
		if !slices.Contains(names, m[1]) {
			names = append(names, m[1])
		}
	}
	return names, nil
}

func runtimeDown(err error) bool {
	s := err.Error()
	return strings.Contains(s, "failed to dial") || strings.Contains(s, "connection refused") || strings.Contains(s, "cannot access containerd socket") || strings.Contains(s, "Unavailable")
}
