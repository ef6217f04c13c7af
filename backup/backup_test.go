package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/store"
)

// sample is a store at revision 1+n.
func sample(t *testing.T, n int) *store.Store {
	t.Helper()
	s := store.New(store.Options{})
	for i := range n {
		if res := s.Apply(&pb.InternalRaftRequest{Put: &pb.PutRequest{Key: fmt.Appendf(nil, "k%d", i), Value: []byte("v")}}); res.Err != nil {
			t.Fatal(res.Err)
		}
	}
	return s
}

func at(hour int) time.Time {
	return time.Date(2026, 11, 30, 0, 0, 0, 0, time.UTC).Add(time.Duration(hour) * time.Hour)
}

// touch makes files of these names.
func touch(t *testing.T, dir string, names ...string) {
	t.Helper()
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

func names(fs []File) (out []string) {
	for _, f := range fs {
		out = append(out, f.Name)
	}
	return out
}

func TestNames(t *testing.T) {
	name := FileName(Auto, at(5).In(time.FixedZone("x", 3600)), 42)
	if name != "auto-20261130T050000Z-r42.db" {
		t.Error(name)
	}
	if f, ok := ParseName(name); !ok || f != (File{Name: name, Kind: Auto, Taken: at(5), Revision: 42}) {
		t.Errorf("%+v", f)
	}
	for _, bad := range []string{"", "x.db", "auto-20261130T050000Z-r42.db.tmp", tmpPrefix + name, "auto-20261330T050000Z-r42.db", "auto-20261130T050000Z-r.db", "../" + name} {
		if _, ok := ParseName(bad); ok {
			t.Errorf("%q is a snapshot", bad)
		}
	}
}

// Only what the schedule took is ever deleted, the oldest first.
func TestPrune(t *testing.T) {
	dir := t.TempDir()
	manual := FileName(Manual, at(0), 1)
	touch(t, dir, manual, "notes.txt")
	for h := range 6 {
		touch(t, dir, FileName(Auto, at(h), int64(h)))
	}
	if err := prune(dir, 2); err != nil {
		t.Fatal(err)
	}
	all, err := List(dir)
	if want := []string{FileName(Auto, at(5), 5), FileName(Auto, at(4), 4), manual}; err != nil || !slices.Equal(names(all), want) {
		t.Errorf("%v, %v; want %v", names(all), err, want)
	}
	if _, err := os.Stat(filepath.Join(dir, "notes.txt")); err != nil {
		t.Error(err)
	}
}

func TestOlderOnesMakeRoom(t *testing.T) {
	dir := t.TempDir()
	for h := range 4 {
		touch(t, dir, FileName(Auto, at(h), int64(h)))
	}
	free := int64(reserve)
	if err := makeRoom(dir, 100, func(string) (int64, error) { free += 60; return free, nil }); err != nil {
		t.Fatal(err)
	}
	if all, _ := List(dir); len(all) != 3 || all[2].Revision != 1 {
		t.Errorf("left: %v", names(all))
	}
	err := makeRoom(dir, 100, func(string) (int64, error) { return 0, nil })
	if all, _ := List(dir); err == nil || !strings.Contains(err.Error(), "free some space") || len(all) != 1 || all[0].Revision != 3 {
		t.Errorf("%v, left: %v", err, names(all))
	}
}

func TestSaveIsWhole(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	s := sample(t, 3)
	f, err := Save(dir, Manual, s, etcddb.Origin{Taken: at(1), Program: "x"})
	if err != nil || f.Revision != 4 || f.Kind != Manual || f.Bytes == 0 {
		t.Fatalf("%+v, %v", f, err)
	}
	if _, info, err := etcddb.Read(filepath.Join(dir, f.Name), etcddb.Options{}); err != nil || info.Revision != 4 || info.Origin.Program != "x" {
		t.Errorf("%+v, %v", info, err)
	}
	touch(t, dir, tmpPrefix+"of an earlier run")
	if _, err := Save(dir, Manual, s, etcddb.Origin{Taken: at(2)}); err != nil {
		t.Error(err)
	}
	ents, _ := os.ReadDir(dir)
	if len(ents) != 2 {
		t.Errorf("in the directory: %v", ents)
	}
	if fi, err := os.Stat(dir); err != nil || fi.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
}

// place is a destination in memory that can fail.
type place struct {
	have map[string]bool
	err  error
}

func (p *place) Name() string { return "s3" }
func (p *place) Put(_ context.Context, path string) error {
	if p.err == nil {
		p.have[filepath.Base(path)] = true
	}
	return p.err
}
func (p *place) List(context.Context) (out []File, err error) {
	for n := range p.have {
		if f, ok := ParseName(n); ok {
			out = append(out, f)
		}
	}
	return out, p.err
}
func (p *place) Get(_ context.Context, name string, w io.Writer) error {
	_, err := io.WriteString(w, name)
	return errors.Join(err, p.err)
}
func (p *place) Delete(_ context.Context, name string) error { delete(p.have, name); return p.err }

// The schedule takes one an interval, keeps the newest at every place, copies them where
// it leads, tries again soon after a failure, and says when the newest is too old.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "snapshots")
		reg := prometheus.NewRegistry()
		far := &place{have: map[string]bool{}}
		ready, leads := false, false
		s, err := New(Config{
			Dir: dir, Interval: time.Hour, Keep: 3, Store: sample(t, 1), Origin: func() etcddb.Origin { return etcddb.Origin{} },
			Ready: func() bool { return ready }, Uploads: func() bool { return leads }, Destinations: []Destination{far}, Registerer: reg,
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error)
		go func() { done <- s.Run(ctx) }()
		count := func() int { all, _ := List(dir); return len(all) }
		pass := func(d time.Duration) { time.Sleep(d); synctest.Wait() }
		pass(time.Minute)
		if count() != 0 {
			t.Error("taken before the state has caught up")
		}
		ready = true
		pass(time.Minute)
		if count() != 1 || len(far.have) != 0 {
			t.Errorf("%d here, %d there", count(), len(far.have))
		}
		leads = true
		pass(5*time.Hour + time.Minute)
		if count() != 3 || len(far.have) != 3 {
			t.Errorf("%d here, %d there", count(), len(far.have))
		}
		for _, p := range s.Status() {
			if p.Problem() != nil || p.Newest.IsZero() || p.Late {
				t.Errorf("%+v", p)
			}
		}
		// The directory cannot be written: a file is in its place.
		if err := os.Rename(dir, dir+".away"); err != nil {
			t.Fatal(err)
		}
		touch(t, filepath.Dir(dir), "snapshots")
		far.err = errors.New("far away")
		pass(3 * time.Hour)
		st := s.Status()
		if st[0].Problem() == nil || !st[0].Late {
			t.Errorf("%+v", st)
		}
		if n := testutil.ToFloat64(s.metrics.failures.WithLabelValues(Local)); n < 10 {
			t.Errorf("%v failures are counted", n)
		}
		os.Remove(dir)
		if err := os.Rename(dir+".away", dir); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Minute)
		if st := s.Status(); st[0].Problem() != nil || st[1].Problem() == nil || st[1].Error == "" {
			t.Errorf("%+v", st)
		}
		if v := testutil.ToFloat64(s.metrics.last.WithLabelValues(Local)); time.Since(time.Unix(int64(v), 0)) > 10*time.Minute {
			t.Errorf("last success %v", v)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func TestNoneOnAScheduleThatIsOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := New(Config{Dir: filepath.Join(t.TempDir(), "x"), Keep: 1, Store: sample(t, 0), Origin: func() etcddb.Origin { return etcddb.Origin{} },
			Ready: func() bool { return true }, Uploads: func() bool { return true }})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Hour)
		defer cancel()
		if err := s.Run(ctx); err != nil {
			t.Error(err)
		}
		if st := s.Status(); st[0].Late || st[0].Count != 0 {
			t.Errorf("%+v", st)
		}
		if f, err := s.Save(Manual); err != nil || f.Kind != Manual {
			t.Errorf("%+v, %v", f, err)
		}
	})
}

func TestFetch(t *testing.T) {
	dir, tmp := t.TempDir(), t.TempDir()
	name := FileName(Auto, at(1), 7)
	touch(t, dir, name, "copy.db")
	far := &place{have: map[string]bool{}}
	all := []Destination{far}
	for ref, want := range map[string]string{name: filepath.Join(dir, name), filepath.Join(dir, "copy.db"): filepath.Join(dir, "copy.db")} {
		got, done, err := Fetch(context.Background(), ref, dir, tmp, all)
		if err != nil || got != want {
			t.Errorf("%s: %s, %v", ref, got, err)
			continue
		}
		done()
		if _, err := os.Stat(want); err != nil {
			t.Errorf("%s: the file itself was deleted", ref)
		}
	}
	got, done, err := Fetch(context.Background(), "s3:"+name, dir, tmp, all)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(got); string(b) != name {
		t.Errorf("fetched %q", b)
	}
	done()
	far.err = errors.New("far away")
	for ref, want := range map[string]string{"s3:" + name: "far away", "none:" + name: "no destination", "nothing.db": "controld snapshot list"} {
		if _, _, err := Fetch(context.Background(), ref, dir, tmp, all); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if left, _ := os.ReadDir(tmp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestSecretsAreNotReadByEverybody(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string // of the error
	}{{" word\n", 0o640, ""}, {"word", 0o644, "everybody"}, {"\n", 0o600, "is empty"}} {
		if err := errors.Join(os.WriteFile(path, []byte(c.text), 0o600), os.Chmod(path, c.mode)); err != nil {
			t.Fatal(err)
		}
		got, err := secret("x", path)
		if c.want == "" && (err != nil || got != "word") || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q, %o: %q, %v", c.text, c.mode, got, err)
		}
	}
}
