package images

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// store is an image service with the images in have; pulling makes an image
// appear, or fails.
type store struct {
	internalapi.ImageManagerService
	mu     sync.Mutex
	have   map[string]bool
	pulled []*runtimeapi.AuthConfig
	fail   error
}

func (s *store) ImageStatus(_ context.Context, i *runtimeapi.ImageSpec, _ bool) (*runtimeapi.ImageStatusResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.have[i.Image] {
		return &runtimeapi.ImageStatusResponse{}, nil
	}
	return &runtimeapi.ImageStatusResponse{Image: &runtimeapi.Image{Id: "sha256:" + i.Image}}, nil
}

func (s *store) PullImage(_ context.Context, i *runtimeapi.ImageSpec, a *runtimeapi.AuthConfig, _ *runtimeapi.PodSandboxConfig) (string, error) {
	s.pulled = append(s.pulled, a)
	if s.fail != nil {
		return "", s.fail
	}
	s.have[i.Image] = true
	return i.Image, nil
}

func TestPullPolicies(t *testing.T) {
	for _, c := range []struct {
		image  string
		policy v1.PullPolicy
		have   bool
		pulls  int
		err    error
	}{
		{"r/x:1", v1.PullIfNotPresent, true, 0, nil},
		{"r/x:1", v1.PullIfNotPresent, false, 1, nil},
		{"r/x:1", v1.PullNever, true, 0, nil},
		{"r/x:1", v1.PullNever, false, 0, ErrNeverPull},
		{"r/x:1", v1.PullAlways, true, 1, nil},
		{"r/x", "", true, 1, nil},
		{"r/x:latest", "", true, 1, nil},
		{"r:5000/x:1", "", true, 0, nil},
		{"r:5000/x", "", true, 1, nil},
		{"r/x@sha256:00", "", true, 0, nil},
	} {
		s := &store{have: map[string]bool{c.image: c.have}}
		_, err := Ensure(context.Background(), s, &v1.Container{Image: c.image, ImagePullPolicy: c.policy}, nil, nil, nil)
		if !errors.Is(err, c.err) || len(s.pulled) != c.pulls {
			t.Errorf("%s %q, present %v: %d pulls, %v", c.image, c.policy, c.have, len(s.pulled), err)
		}
	}
	s := &store{have: map[string]bool{}, fail: errors.New("no route")}
	if _, err := Ensure(context.Background(), s, &v1.Container{Image: "r/x:1"}, nil, nil, nil); !errors.Is(err, ErrPull) {
		t.Errorf("a failed pull: %v", err)
	}
}

func TestPullSecretsGoToTheirRegistryOnly(t *testing.T) {
	secret := &v1.Secret{Data: map[string][]byte{v1.DockerConfigJsonKey: []byte(`{"auths":{"https://a.example/v1/":{"auth":"dTpw"},"b.example":{"username":"x","password":"y"}}}`)}}
	s := &store{have: map[string]bool{}}
	if _, err := Ensure(context.Background(), s, &v1.Container{Image: "a.example/team/x:1"}, []*v1.Secret{secret}, nil, nil); err != nil {
		t.Fatal(err)
	}
	if len(s.pulled) != 1 || s.pulled[0].GetUsername() != "u" || s.pulled[0].GetPassword() != "p" {
		t.Errorf("pulled with %v", s.pulled)
	}
	s = &store{have: map[string]bool{}}
	if _, err := Ensure(context.Background(), s, &v1.Container{Image: "c.example/x:1"}, []*v1.Secret{secret}, nil, nil); err != nil || s.pulled[0] != nil {
		t.Errorf("credentials of another registry were used: %v %v", s.pulled, err)
	}
}

// rig is an importer whose imports the test sees.
type rig struct {
	*Importer
	dir   string
	calls chan string
	store *store
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir := t.TempDir()
	r := &rig{dir: filepath.Join(dir, "images"), calls: make(chan string, 100), store: &store{have: map[string]bool{}}}
	if err := os.MkdirAll(r.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	r.Importer = &Importer{Dirs: []string{r.dir}, StateFile: filepath.Join(dir, "state"), Images: r.store, Log: slog.New(slog.DiscardHandler),
		Import: func(_ context.Context, p string) ([]string, error) {
			b, err := os.ReadFile(p)
			if err != nil {
				return nil, err
			}
			r.calls <- filepath.Base(p) + ":" + string(b)
			if string(b) != "good" {
				return nil, fmt.Errorf("bad archive")
			}
			r.store.mu.Lock()
			r.store.have[filepath.Base(p)] = true
			r.store.mu.Unlock()
			return []string{filepath.Base(p)}, nil
		}}
	return r
}

func (r *rig) run(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { r.Run(ctx); close(done) }()
	t.Cleanup(func() { cancel(); <-done })
	select {
	case <-r.FirstScan():
	case <-time.After(time.Minute):
		t.Fatal("no first scan")
	}
}

func (r *rig) expect(t *testing.T, want string) {
	t.Helper()
	select {
	case got := <-r.calls:
		if got != want {
			t.Fatalf("imported %s, want %s", got, want)
		}
	case <-time.After(time.Minute):
		t.Fatalf("%s was not imported", want)
	}
}

func (r *rig) nothing(t *testing.T) {
	t.Helper()
	select {
	case got := <-r.calls:
		t.Fatalf("imported %s", got)
	default:
	}
}

func old(t *testing.T, p string) {
	t.Helper()
	at := time.Now().Add(-time.Hour)
	if err := os.Chtimes(p, at, at); err != nil {
		t.Fatal(err)
	}
}

func (r *rig) write(t *testing.T, name, data string) string {
	t.Helper()
	p := filepath.Join(r.dir, name)
	if err := os.WriteFile(p, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestArchivesAreImportedOnce(t *testing.T) {
	r := newRig(t)
	old(t, r.write(t, "a.tar", "good"))
	old(t, r.write(t, "notes.txt", "good"))
	old(t, r.write(t, ".hidden.tar", "good"))
	r.run(t)
	r.expect(t, "a.tar:good")
	r.nothing(t)
	again := newRig(t)
	again.Dirs, again.StateFile, again.dir, again.store = r.Dirs, r.StateFile, r.dir, r.store
	again.Images = r.store
	again.run(t)
	again.nothing(t)
	r.store.mu.Lock()
	r.store.have["a.tar"] = false // someone removed the image
	r.store.mu.Unlock()
	third := newRig(t)
	third.Dirs, third.StateFile, third.store, third.Images = r.Dirs, r.StateFile, r.store, r.store
	third.run(t)
	third.expect(t, "a.tar:good")
}

func TestDroppedInArchives(t *testing.T) {
	r := newRig(t)
	r.run(t)
	f, err := os.Create(filepath.Join(r.dir, "slow.tar"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("go"); err != nil {
		t.Fatal(err)
	}
	// While it is being written, another one comes and is imported first.
	tmp := filepath.Join(filepath.Dir(r.dir), "moved.tar")
	if err := os.WriteFile(tmp, []byte("good"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(r.dir, "moved.tar")); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "moved.tar:good")
	if _, err := f.WriteString("od"); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	r.expect(t, "slow.tar:good")
}

func TestABadArchiveIsTriedAgainWhenItChanges(t *testing.T) {
	r := newRig(t)
	failed := make(chan string, 10)
	r.Failed = func(p string, _ error) { failed <- p }
	p := r.write(t, "a.tar", "bad")
	old(t, p)
	r.run(t)
	r.expect(t, "a.tar:bad")
	select {
	case <-failed:
	case <-time.After(time.Minute):
		t.Fatal("the failure was not told")
	}
	r.consider(context.Background(), p, true)
	r.nothing(t)
	r.write(t, "a.tar", "good")
	r.expect(t, "a.tar:good")
	deadline := time.Now().Add(time.Minute)
	for !r.Names()["a.tar"] {
		if time.Now().After(deadline) {
			t.Fatal("a good archive's image is not kept")
		}
		<-time.After(5 * time.Millisecond)
	}
}

func TestGarbage(t *testing.T) {
	im := func(id string, size uint64, tags ...string) *runtimeapi.Image {
		return &runtimeapi.Image{Id: id, Size: size, RepoTags: tags}
	}
	pinned := im("pinned", 100)
	pinned.Pinned = true
	list := []*runtimeapi.Image{im("small", 1), im("big", 9), im("used", 50, "u:1"), im("kept", 60, "k:1"), pinned}
	var got []string
	for _, g := range garbage(list, []*runtimeapi.Container{{ImageRef: "used"}}, map[string]bool{"k:1": true}) {
		got = append(got, g.Id)
	}
	if !slices.Equal(got, []string{"big", "small"}) {
		t.Errorf("garbage: %v", got)
	}
}
