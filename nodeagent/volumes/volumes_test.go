package volumes

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"

	"github.com/tripod-cluster/tripod/nodeagent/env"
)

type objects struct {
	mu  sync.Mutex
	cms map[string]map[string]string
	sec map[string]map[string][]byte
	err error
}

func (o *objects) ConfigMap(_ context.Context, _, name string) (*v1.ConfigMap, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err != nil {
		return nil, o.err
	}
	if d, ok := o.cms[name]; ok {
		return &v1.ConfigMap{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "configmaps"}, name)
}

func (o *objects) Secret(_ context.Context, _, name string) (*v1.Secret, error) {
	if d, ok := o.sec[name]; ok {
		return &v1.Secret{Data: d}, nil
	}
	return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "secrets"}, name)
}

type rig struct {
	*Manager
	objects *objects
	client  *fake.Clientset
	life    time.Duration // of tokens
	issued  int
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{objects: &objects{cms: map[string]map[string]string{}, sec: map[string]map[string][]byte{}}, client: fake.NewClientset(), life: time.Hour}
	r.client.PrependReactor("create", "serviceaccounts", func(a ktesting.Action) (bool, runtime.Object, error) {
		r.issued++
		return true, &authenticationv1.TokenRequest{Status: authenticationv1.TokenRequestStatus{
			Token: "token-" + string(rune('0'+r.issued)), ExpirationTimestamp: metav1.NewTime(time.Now().Add(r.life))}}, nil
	})
	r.Manager = New(filepath.Join(t.TempDir(), "pods"), r.client, func(*v1.Pod) env.Facts { return env.Facts{Objects: r.objects} }, slog.New(slog.DiscardHandler))
	t.Cleanup(func() {
		for _, uid := range r.Pods() {
			if err := r.Teardown(uid); err != nil {
				t.Error(err)
			}
		}
	})
	return r
}

// pod has one container that mounts each volume at /NAME.
func pod(vs ...v1.Volume) *v1.Pod {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "uid-1", Labels: map[string]string{"a": "1"}}, Spec: v1.PodSpec{Volumes: vs, Containers: []v1.Container{{Name: "c"}}}}
	for _, v := range vs {
		p.Spec.Containers[0].VolumeMounts = append(p.Spec.Containers[0].VolumeMounts, v1.VolumeMount{Name: v.Name, MountPath: "/" + v.Name})
	}
	return p
}

func configMap(name string, items ...v1.KeyToPath) v1.Volume {
	return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: v1.LocalObjectReference{Name: name}, Items: items}}}
}

func read(t *testing.T, p string) string {
	t.Helper()
	b, err := os.ReadFile(p)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestConfigMapIsShownAndFollows(t *testing.T) {
	r := newRig(t)
	r.objects.cms["cm"] = map[string]string{"a": "one", "b": "two"}
	p := pod(configMap("cm", v1.KeyToPath{Key: "a", Path: "deep/er/a"}, v1.KeyToPath{Key: "b", Path: "b", Mode: new(int32)}))
	*p.Spec.Volumes[0].ConfigMap.Items[1].Mode = 0o400
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	dir := r.volumeDir(p.UID, "v")
	if got := read(t, dir+"/deep/er/a"); got != "one" {
		t.Fatalf("got %q", got)
	}
	if fi, err := os.Stat(dir + "/b"); err != nil || fi.Mode().Perm() != 0o400 {
		t.Fatalf("mode of b: %v %v", fi.Mode(), err)
	}
	before, err := os.Readlink(dir + "/..data")
	if err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if now, _ := os.Readlink(dir + "/..data"); now != before {
		t.Error("an unchanged volume was written anew")
	}
	r.objects.cms["cm"]["a"] = "uno"
	if err := r.Refresh(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir+"/deep/er/a"); got != "uno" {
		t.Errorf("after the update: %q", got)
	}
	if _, err := os.Stat(filepath.Join(dir, before)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the old version was left behind")
	}
}

func TestRemovedKeysDisappear(t *testing.T) {
	r := newRig(t)
	r.objects.cms["cm"] = map[string]string{"a": "1", "b": "2"}
	p := pod(configMap("cm"))
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	r.objects.cms["cm"] = map[string]string{"b": "2", "c": "3"}
	if err := r.Refresh(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(r.volumeDir(p.UID, "v"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), "..v") {
			names = append(names, e.Name())
		}
	}
	if !slices.Equal(names, []string{"..data", "b", "c"}) {
		t.Errorf("shown: %v", names)
	}
}

func TestMissingObjectFailsUnlessOptional(t *testing.T) {
	r := newRig(t)
	p := pod(configMap("none"))
	err := r.Prepare(context.Background(), p)
	if err == nil || !strings.Contains(err.Error(), `MountVolume.SetUp failed for volume "v"`) || !strings.Contains(err.Error(), `configmap "none" not found`) {
		t.Fatalf("got %v", err)
	}
	yes := true
	p.Spec.Volumes[0].ConfigMap.Optional = &yes
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
}

func TestContentIsKeptWhileTheAPIIsAway(t *testing.T) {
	r := newRig(t)
	r.objects.cms["cm"] = map[string]string{"a": "one"}
	p := pod(configMap("cm"))
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	r.objects.err = errors.New("connection refused")
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatalf("a pod that was prepared before must start again without the API: %v", err)
	}
	if got := read(t, r.volumeDir(p.UID, "v")+"/a"); got != "one" {
		t.Errorf("got %q", got)
	}
}

func TestEmptyDirSurvivesAndMemoryIsBounded(t *testing.T) {
	r := newRig(t)
	size := resource.MustParse("1Mi")
	group := int64(4321)
	p := pod(v1.Volume{Name: "disk", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
		v1.Volume{Name: "mem", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory, SizeLimit: &size}}})
	p.Spec.SecurityContext = &v1.PodSecurityContext{FSGroup: &group}
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"disk", "mem"} {
		dir := r.volumeDir(p.UID, n)
		fi, err := os.Stat(dir)
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir, &st); err != nil || st.Gid != 4321 || fi.Mode().Perm() != 0o777 || fi.Mode()&os.ModeSetgid == 0 {
			t.Errorf("%s: group %d, mode %v", n, st.Gid, fi.Mode())
		}
		if err := os.WriteFile(dir+"/f", []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.volumeDir(p.UID, "mem")+"/big", make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 MiB in a memory volume of 1 MiB: %v", err)
	}
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"disk", "mem"} {
		read(t, r.volumeDir(p.UID, n)+"/f")
	}
	if n := len(must(mountsBelow(r.PodDir(p.UID)))); n != 1 {
		t.Errorf("%d mounts after preparing twice, want 1", n)
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func TestTokenIsRenewed(t *testing.T) {
	r := newRig(t)
	p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Projected: &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{
		{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "token"}},
		{DownwardAPI: &v1.DownwardAPIProjection{Items: []v1.DownwardAPIVolumeFile{{Path: "labels", FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.labels"}}}}},
	}}}})
	user := int64(1234)
	p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsUser: &user}
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	dir := r.volumeDir(p.UID, "v")
	if a, b := read(t, dir+"/token"), read(t, dir+"/labels"); a != "token-1" || b != `a="1"` {
		t.Fatalf("got %q and %q", a, b)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir+"/token", &st); err != nil || st.Uid != 1234 || st.Mode&0o777 != 0o600 {
		t.Errorf("token of user 1234 has owner %d, mode %o", st.Uid, st.Mode)
	}
	if err := r.Refresh(context.Background(), p); err != nil || r.issued != 1 {
		t.Fatalf("a fresh token was asked for again (%d times): %v", r.issued, err)
	}
	r.tokens.mu.Lock()
	for k, v := range r.tokens.have {
		v.issued, v.expires = v.issued.Add(-50*time.Minute), v.expires.Add(-50*time.Minute)
		r.tokens.have[k] = v
	}
	r.tokens.mu.Unlock()
	if err := r.Refresh(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir+"/token"); got != "token-2" {
		t.Errorf("after four fifths of its life the token is still %q", got)
	}
}

func TestSecretsNeverTouchTheDisk(t *testing.T) {
	r := newRig(t)
	r.objects.sec["s"] = map[string][]byte{"k": []byte("x")}
	p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{Secret: &v1.SecretVolumeSource{SecretName: "s"}}})
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(r.volumeDir(p.UID, "v"), &st); err != nil || st.Type != unix.TMPFS_MAGIC {
		t.Errorf("file system of a secret is %x, want tmpfs", st.Type)
	}
}

func TestSubPathStaysInTheVolume(t *testing.T) {
	r := newRig(t)
	p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}})
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	dir := r.volumeDir(p.UID, "v")
	outside := t.TempDir()
	for _, l := range [][2]string{{outside, "abs"}, {"../../../../..", "up"}, {"real", "inside"}} {
		if err := os.Symlink(l[0], filepath.Join(dir, l[1])); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(dir+"/real", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(dir+"/real/f", []byte("in"), 0o644); err != nil {
		t.Fatal(err)
	}
	mount := func(sub string) (string, error) {
		p.Spec.Containers[0].VolumeMounts[0].SubPath = sub
		ms, err := r.Mounts(p, &p.Spec.Containers[0], func(string) (string, bool) { return "", false })
		if err != nil {
			return "", err
		}
		return ms[0].HostPath, nil
	}
	for _, bad := range []string{"abs", "abs/x", "up", "up/etc", "../x", "/etc"} {
		if _, err := mount(bad); err == nil {
			t.Errorf("subPath %q leads out of the volume and was mounted", bad)
		}
	}
	for _, good := range []string{"real", "inside"} {
		h, err := mount(good)
		if err != nil {
			t.Fatalf("%s: %v", good, err)
		}
		if read(t, h+"/f") != "in" {
			t.Errorf("%s is not what was mounted", good)
		}
	}
	h, err := mount("real/f")
	if err != nil || read(t, h) != "in" {
		t.Errorf("a file: %v", err)
	}
	if h, err = mount("new/er"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(h+"/w", []byte("made"), 0o644); err != nil {
		t.Fatal(err)
	}
	if read(t, dir+"/new/er/w") != "made" {
		t.Error("a directory that was missing is not the volume's")
	}
}

func TestTeardownLeavesNothingAndSparesWhatIsMounted(t *testing.T) {
	r := newRig(t)
	host := t.TempDir()
	if err := os.WriteFile(host+"/precious", []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := pod(v1.Volume{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: host}}},
		v1.Volume{Name: "mem", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{Medium: v1.StorageMediumMemory}}})
	p.Spec.Containers[0].VolumeMounts[0].SubPath = "sub"
	if err := r.Prepare(context.Background(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := r.Mounts(p, &p.Spec.Containers[0], func(string) (string, bool) { return "", false }); err != nil {
		t.Fatal(err)
	}
	// Another manager, as after a crash, knows nothing of what was mounted.
	again := New(r.root, r.client, nil, slog.New(slog.DiscardHandler))
	if uids := again.Pods(); !slices.Equal(uids, r.Pods()) || len(uids) != 1 {
		t.Fatalf("pods found: %v", uids)
	}
	if err := again.Teardown(p.UID); err != nil {
		t.Fatal(err)
	}
	if err := again.Teardown(p.UID); err != nil {
		t.Fatalf("the second time: %v", err)
	}
	if _, err := os.Stat(r.PodDir(p.UID)); !errors.Is(err, os.ErrNotExist) {
		t.Error("the pod's directory is left")
	}
	if l := must(mountsBelow(r.PodDir(p.UID))); len(l) > 0 {
		t.Errorf("mounts left: %v", l)
	}
	read(t, host+"/precious")
	if _, err := os.Stat(host + "/sub"); err != nil {
		t.Error("what the pod wrote to the host's directory is gone")
	}
}

func TestHostPathTypes(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		kind v1.HostPathType
		path string
		ok   bool
	}{
		{v1.HostPathUnset, dir + "/none", true},
		{v1.HostPathDirectory, dir, true}, {v1.HostPathDirectory, file, false}, {v1.HostPathDirectory, dir + "/none", false},
		{v1.HostPathFile, file, true}, {v1.HostPathFile, dir, false},
		{v1.HostPathDirectoryOrCreate, dir + "/made/deep", true}, {v1.HostPathDirectoryOrCreate, file, false},
		{v1.HostPathFileOrCreate, dir + "/made-file", true}, {v1.HostPathFileOrCreate, dir, false},
		{v1.HostPathSocket, file, false}, {v1.HostPathCharDev, "/dev/null", true}, {v1.HostPathCharDev, file, false}, {v1.HostPathBlockDev, "/dev/null", false},
	} {
		err := hostPath(&v1.HostPathVolumeSource{Path: c.path, Type: &c.kind})
		if (err == nil) != c.ok {
			t.Errorf("%s as %q: %v", c.path, c.kind, err)
		}
	}
}

func TestPathsThatLeaveTheVolumeAreRefused(t *testing.T) {
	for _, p := range []string{"", "/abs", "../x", "a/../../x", "..data", "..x/y"} {
		if checkPath(p) == nil {
			t.Errorf("%q is accepted", p)
		}
	}
	for _, p := range []string{"a", "a/b", "a/..b", ".hidden"} {
		if err := checkPath(p); err != nil {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func TestUnsupportedVolumeSaysSo(t *testing.T) {
	r := newRig(t)
	p := pod(v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "c"}}})
	if err := r.Prepare(context.Background(), p); err == nil || !strings.Contains(err.Error(), "does not mount persistent volumes") {
		t.Errorf("got %v", err)
	}
}
