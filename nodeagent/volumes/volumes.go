// Package volumes makes a pod's volumes on the host, keeps the ones that
// mirror API objects up to date, and takes everything down again.
//
// A pod's files are in ROOT/UID: volumes/NAME holds each volume, subpaths/ the
// bind mounts of subPath, containers/ the termination messages, etc-hosts the
// hosts file. What a pod has is found from the file system and the mount table
// alone, so what a crash left is taken down like anything else.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	mountutils "k8s.io/mount-utils"

	"github.com/tripod-cluster/tripod/nodeagent/env"
)

// Manager makes and removes the volumes of one node's pods. It is safe for
// concurrent use on different pods.
type Manager struct {
	root         string
	client       kubernetes.Interface
	facts        func(*v1.Pod) env.Facts
	tokens       *tokens
	certificates *certificates
	log          *slog.Logger

	mu     sync.Mutex
	mounts map[types.UID]bool // pods that were prepared here
}

// New makes a Manager with the pods' files below root. facts gives what
// downward API fields and object volumes are read from.
func New(root string, client kubernetes.Interface, facts func(*v1.Pod) env.Facts, log *slog.Logger) *Manager {
	return &Manager{root: root, client: client, facts: facts, tokens: newTokens(client), certificates: newCertificates(client), log: log, mounts: map[types.UID]bool{}}
}

// PodDir is the directory with a pod's files.
func (m *Manager) PodDir(uid types.UID) string { return filepath.Join(m.root, string(uid)) }

func (m *Manager) volumeDir(uid types.UID, name string) string {
	return filepath.Join(m.PodDir(uid), "volumes", name)
}

// Prepare makes every volume of the pod; it may be called again and goes on
// from what is there. A volume of an API object that was made before keeps its
// content when the API cannot be reached now.
func (m *Manager) Prepare(ctx context.Context, pod *v1.Pod) error {
	for _, d := range []string{"volumes", "containers"} {
		if err := os.MkdirAll(filepath.Join(m.PodDir(pod.UID), d), 0o750); err != nil {
			return fmt.Errorf("directory of pod %s: %w", pod.UID, err)
		}
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if !used(pod, v.Name) {
			continue
		}
		if err := m.prepare(ctx, pod, v); err != nil {
			return fmt.Errorf("MountVolume.SetUp failed for volume %q: %w", v.Name, err)
		}
	}
	return nil
}

// used says whether any container mounts the volume; kubelet too leaves alone
// what nobody mounts.
func used(pod *v1.Pod, name string) bool {
	has := func(ms []v1.VolumeMount, ds []v1.VolumeDevice) bool {
		return slices.ContainsFunc(ms, func(m v1.VolumeMount) bool { return m.Name == name }) ||
			slices.ContainsFunc(ds, func(d v1.VolumeDevice) bool { return d.Name == name })
	}
	for _, c := range pod.Spec.InitContainers {
		if has(c.VolumeMounts, c.VolumeDevices) {
			return true
		}
	}
	for _, c := range pod.Spec.Containers {
		if has(c.VolumeMounts, c.VolumeDevices) {
			return true
		}
	}
	for _, c := range pod.Spec.EphemeralContainers {
		if has(c.VolumeMounts, c.VolumeDevices) {
			return true
		}
	}
	return false
}

func (m *Manager) prepare(ctx context.Context, pod *v1.Pod, v *v1.Volume) error {
	dir := m.volumeDir(pod.UID, v.Name)
	switch {
	case v.EmptyDir != nil:
		return emptyDir(dir, v.EmptyDir, pod)
	case v.HostPath != nil:
		return hostPath(v.HostPath)
	case mirrors(v):
		return m.mirror(ctx, pod, v)
	case v.PersistentVolumeClaim != nil:
		return fmt.Errorf("persistentVolumeClaim %q: this node does not mount persistent volumes", v.PersistentVolumeClaim.ClaimName)
	}
	return errors.New("this kind of volume is not supported by this node: use emptyDir, hostPath, configMap, secret, downwardAPI or projected")
}

// mirrors says whether the volume shows API objects as files.
func mirrors(v *v1.Volume) bool {
	return v.ConfigMap != nil || v.Secret != nil || v.DownwardAPI != nil || v.Projected != nil
}

// Refresh brings the volumes that show API objects up to date. It goes on past
// one that fails and returns all failures.
func (m *Manager) Refresh(ctx context.Context, pod *v1.Pod) error {
	var errs []error
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if mirrors(v) && used(pod, v.Name) {
			if err := m.mirror(ctx, pod, v); err != nil {
				errs = append(errs, fmt.Errorf("volume %q: %w", v.Name, err))
			}
		}
	}
	return errors.Join(errs...)
}

// Refreshable says whether the pod has volumes that Refresh would look at.
func Refreshable(pod *v1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(v v1.Volume) bool { return mirrors(&v) })
}

func (m *Manager) mirror(ctx context.Context, pod *v1.Pod, v *v1.Volume) error {
	dir := m.volumeDir(pod.UID, v.Name)
	secret := v.Secret != nil || v.Projected != nil
	files, err := m.payload(ctx, pod, v)
	if err != nil {
		if made(dir) && !isDefinite(err) {
			m.log.Warn("volume keeps its old content", "pod", pod.Namespace+"/"+pod.Name, "volume", v.Name, "err", err)
			return nil
		}
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	if secret {
		if err := ensureTmpfs(dir, 0); err != nil {
			return err
		}
	}
	return writeAtomically(dir, files, fsGroup(pod))
}

func made(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, dataLink))
	return err == nil
}

func fsGroup(pod *v1.Pod) *int64 {
	if pod.Spec.SecurityContext == nil {
		return nil
	}
	return pod.Spec.SecurityContext.FSGroup
}

func emptyDir(dir string, src *v1.EmptyDirVolumeSource, pod *v1.Pod) error {
	_, err := os.Stat(dir)
	fresh := errors.Is(err, os.ErrNotExist)
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	switch {
	case src.Medium == v1.StorageMediumMemory:
		var size int64
		if src.SizeLimit != nil {
			size = src.SizeLimit.Value()
		}
		mounted, err := isMount(dir)
		if err != nil {
			return err
		}
		fresh = !mounted
		if err := ensureTmpfs(dir, size); err != nil {
			return err
		}
	case src.Medium != v1.StorageMediumDefault:
		return fmt.Errorf("emptyDir medium %q is not supported by this node", src.Medium)
	}
	if !fresh {
		return nil
	}
	if err := os.Chmod(dir, 0o777); err != nil { // mkdir's mode went through the umask
		return err
	}
	if g := fsGroup(pod); g != nil {
		if err := os.Chown(dir, -1, int(*g)); err != nil {
			return err
		}
		return os.Chmod(dir, 0o777|os.ModeSetgid)
	}
	return nil
}

func hostPath(src *v1.HostPathVolumeSource) error {
	kind := v1.HostPathUnset
	if src.Type != nil {
		kind = *src.Type
	}
	fi, err := os.Stat(src.Path)
	missing := errors.Is(err, os.ErrNotExist)
	if err != nil && !missing {
		return fmt.Errorf("hostPath type check failed: %w", err)
	}
	fail := func(what string) error { return fmt.Errorf("hostPath type check failed: %s is not %s", src.Path, what) }
	switch kind {
	case v1.HostPathUnset:
		return nil
	case v1.HostPathDirectoryOrCreate:
		if missing {
			return os.MkdirAll(src.Path, 0o755)
		}
		if !fi.IsDir() {
			return fail("a directory")
		}
	case v1.HostPathFileOrCreate:
		if missing {
			f, err := os.OpenFile(src.Path, os.O_CREATE|os.O_WRONLY, 0o644)
			if err != nil {
				return err
			}
			return f.Close()
		}
		if !fi.Mode().IsRegular() {
			return fail("a file")
		}
	case v1.HostPathDirectory:
		if missing || !fi.IsDir() {
			return fail("a directory")
		}
	case v1.HostPathFile:
		if missing || !fi.Mode().IsRegular() {
			return fail("a file")
		}
	case v1.HostPathSocket:
		if missing || fi.Mode()&os.ModeSocket == 0 {
			return fail("a socket file")
		}
	case v1.HostPathCharDev:
		if missing || fi.Mode()&os.ModeCharDevice == 0 {
			return fail("a character device")
		}
	case v1.HostPathBlockDev:
		if missing || fi.Mode()&os.ModeDevice == 0 || fi.Mode()&os.ModeCharDevice != 0 {
			return fail("a block device")
		}
	default:
		return fmt.Errorf("hostPath type %q is not known", kind)
	}
	return nil
}

func ensureTmpfs(dir string, size int64) error {
	mounted, err := isMount(dir)
	if err != nil || mounted {
		return err
	}
	opts := "mode=0777"
	if size > 0 {
		opts += ",size=" + strconv.FormatInt(size, 10)
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, opts); err != nil {
		return fmt.Errorf("mount tmpfs on %s: %w", dir, err)
	}
	return nil
}

// mountsBelow returns the mount points at and below dir, the newest last.
func mountsBelow(dir string) ([]string, error) {
	infos, err := mountutils.ParseMountInfo("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("read the mount table: %w", err)
	}
	var out []string
	for _, i := range infos {
		// The kernel marks a mount whose directory is gone.
		p := strings.TrimSuffix(i.MountPoint, "\\040(deleted)")
		if p == dir || strings.HasPrefix(p, dir+"/") {
			out = append(out, p)
		}
	}
	return out, nil
}

func isMount(dir string) (bool, error) {
	list, err := mountsBelow(dir)
	return slices.Contains(list, dir), err
}

// Teardown unmounts and removes everything of a pod. No process of the pod may
// be left. It is idempotent.
func (m *Manager) Teardown(uid types.UID) error {
	dir := m.PodDir(uid)
	m.tokens.drop(uid)
	m.certificates.drop(uid)
	if _, err := os.Stat(dir); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	list, err := mountsBelow(dir)
	if err != nil {
		return err
	}
	slices.Reverse(list)
	for _, p := range list {
		if err := unix.Unmount(p, unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			// Something on the host looks into it: out of the tree now, gone when it lets go.
			if err := unix.Unmount(p, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil {
				return fmt.Errorf("unmount %s: %w", p, err)
			}
		}
	}
	if list, err = mountsBelow(dir); err != nil {
		return err
	}
	if len(list) > 0 { // never delete through a mount
		return fmt.Errorf("%s is still mounted: unmount it, the pod's files are removed after", list[0])
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove files of pod %s: %w", uid, err)
	}
	return nil
}

// Pods returns the UIDs that have files here.
func (m *Manager) Pods() []types.UID {
	entries, _ := os.ReadDir(m.root)
	var out []types.UID
	for _, e := range entries {
		if e.IsDir() {
			out = append(out, types.UID(e.Name()))
		}
	}
	return out
}
