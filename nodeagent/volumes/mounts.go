package volumes

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/env"
)

// Mounts returns what the runtime is to mount into a container for its volume
// mounts; bind mounts for subPath are made here. lookup gives the container's
// environment for subPathExpr.
func (m *Manager) Mounts(pod *v1.Pod, c *v1.Container, lookup func(string) (string, bool)) ([]*runtimeapi.Mount, error) {
	var out []*runtimeapi.Mount
	for i := range c.VolumeMounts {
		vm := &c.VolumeMounts[i]
		var vol *v1.Volume
		for j := range pod.Spec.Volumes {
			if pod.Spec.Volumes[j].Name == vm.Name {
				vol = &pod.Spec.Volumes[j]
			}
		}
		if vol == nil {
			return nil, fmt.Errorf("volume %q of the mount at %s is not in the pod", vm.Name, vm.MountPath)
		}
		host := m.volumeDir(pod.UID, vol.Name)
		if vol.HostPath != nil {
			host = vol.HostPath.Path
		}
		sub := vm.SubPath
		if vm.SubPathExpr != "" {
			missing := ""
			sub = env.Expand(vm.SubPathExpr, func(n string) (string, bool) {
				v, ok := lookup(n)
				if !ok {
					missing = n
				}
				return v, ok
			})
			if missing != "" {
				return nil, fmt.Errorf("subPathExpr %q of volume %q: no variable %s in the container", vm.SubPathExpr, vm.Name, missing)
			}
		}
		if sub != "" {
			target := filepath.Join(m.PodDir(pod.UID), "subpaths", vol.Name, c.Name, strconv.Itoa(i))
			if err := bindSubPath(host, sub, target, fsGroup(pod)); err != nil {
				return nil, fmt.Errorf("failed to prepare subPath for volumeMount %q of container %q: %w", vm.Name, c.Name, err)
			}
			host = target
		}
		path := vm.MountPath
		if !filepath.IsAbs(path) {
			path = "/" + path
		}
		mt := &runtimeapi.Mount{ContainerPath: path, HostPath: host, Readonly: vm.ReadOnly || mirrors(vol), SelinuxRelabel: vol.HostPath == nil}
		if vm.RecursiveReadOnly != nil && *vm.RecursiveReadOnly == v1.RecursiveReadOnlyEnabled {
			mt.RecursiveReadOnly = true
		}
		if vm.MountPropagation != nil {
			switch *vm.MountPropagation {
			case v1.MountPropagationHostToContainer:
				mt.Propagation = runtimeapi.MountPropagation_PROPAGATION_HOST_TO_CONTAINER
			case v1.MountPropagationBidirectional:
				mt.Propagation = runtimeapi.MountPropagation_PROPAGATION_BIDIRECTIONAL
			}
		}
		// A hostPath that is not there is made a directory, as other runtimes do.
		if vol.HostPath != nil && sub == "" {
			if _, err := os.Stat(host); errors.Is(err, os.ErrNotExist) {
				if err := os.MkdirAll(host, 0o755); err != nil {
					return nil, fmt.Errorf("hostPath %s: %w", host, err)
				}
			}
		}
		out = append(out, mt)
	}
	return out, nil
}

// bindSubPath binds the file or directory sub of the volume at root to target.
// The path is walked by descriptor and never out of the volume, however the
// pod's own processes change links in it meanwhile; a missing end is made a
// directory.
func bindSubPath(root, sub, target string, group *int64) error {
	if filepath.IsAbs(sub) || strings.HasPrefix(filepath.Clean(sub), "..") {
		return fmt.Errorf("subPath %q must stay within the volume", sub)
	}
	fd, err := openBeneath(root, filepath.Clean(sub), group)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(target), 0o750); err != nil {
		return err
	}
	// What an earlier instance of the container had there.
	for unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
	}
	if err := os.Remove(target); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if st.Mode&unix.S_IFMT == unix.S_IFDIR {
		err = os.Mkdir(target, 0o750)
	} else {
		var f *os.File
		if f, err = os.OpenFile(target, os.O_CREATE|os.O_EXCL, 0o640); err == nil {
			err = f.Close()
		}
	}
	if err != nil {
		return err
	}
	if err := unix.Mount("/proc/self/fd/"+strconv.Itoa(fd), target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("bind %s of %s: %w", sub, root, err)
	}
	return nil
}

// openBeneath opens sub below root without leaving root, making directories
// that are missing.
func openBeneath(root, sub string, group *int64) (int, error) {
	rootFD, err := unix.Open(root, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("open volume %s: %w", root, err)
	}
	defer unix.Close(rootFD)
	how := &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS}
	open := func(p string) (int, error) {
		for {
			fd, err := unix.Openat2(rootFD, p, how)
			if !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR) { // a rename raced with the walk
				return fd, err
			}
		}
	}
	fd, err := open(sub)
	if err == nil {
		return fd, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return -1, fmt.Errorf("subPath %q: %w", sub, err)
	}
	made := "."
	for _, part := range strings.Split(sub, "/") {
		parent, err := open(made)
		if err != nil {
			return -1, fmt.Errorf("subPath %q: %w", sub, err)
		}
		err = unix.Mkdirat(parent, part, 0o755)
		if err == nil {
			err = likeVolume(rootFD, parent, part, group)
		} else if errors.Is(err, unix.EEXIST) {
			err = nil
		}
		unix.Close(parent)
		if err != nil {
			return -1, fmt.Errorf("make %s of subPath %q: %w", part, sub, err)
		}
		made = filepath.Join(made, part)
	}
	fd, err = open(sub)
	if err != nil {
		return -1, fmt.Errorf("subPath %q: %w", sub, err)
	}
	return fd, nil
}

// likeVolume gives a directory just made the volume's own mode and group, so
// that who may write to the volume may write there.
func likeVolume(rootFD, parent int, name string, group *int64) error {
	var st unix.Stat_t
	if err := unix.Fstat(rootFD, &st); err != nil {
		return err
	}
	if group != nil {
		if err := unix.Fchownat(parent, name, -1, int(*group), unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
	}
	return unix.Fchmodat(parent, name, st.Mode&0o7777, 0)
}
