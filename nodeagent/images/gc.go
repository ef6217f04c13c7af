package images

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"
	internalapi "k8s.io/cri-api/pkg/apis"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	gcAbove = 85 // percent of the image file system in use at which removal begins
	gcBelow = 80 // percent it is brought down to
)

// Collect removes images that no container uses and keep does not name, the
// largest first, when the image file system is fuller than 85 %, until it is
// below 80 %. It returns how many it removed.
func Collect(ctx context.Context, svc internalapi.ImageManagerService, containers []*runtimeapi.Container, keep map[string]bool) (int, error) {
	info, err := svc.ImageFsInfo(ctx)
	if err != nil {
		return 0, fmt.Errorf("image file system: %w", err)
	}
	if len(info.ImageFilesystems) == 0 {
		return 0, nil
	}
	mount := info.ImageFilesystems[0].GetFsId().GetMountpoint()
	capacity, used, err := usage(mount)
	if err != nil {
		return 0, fmt.Errorf("image file system %s: %w", mount, err)
	}
	if capacity == 0 || used*100 < capacity*gcAbove {
		return 0, nil
	}
	list, err := svc.ListImages(ctx, nil)
	if err != nil {
		return 0, fmt.Errorf("list images: %w", err)
	}
	removed := 0
	for _, im := range garbage(list, containers, keep) {
		if used*100 < capacity*gcBelow {
			break
		}
		if err := svc.RemoveImage(ctx, &runtimeapi.ImageSpec{Image: im.Id}); err != nil {
			return removed, fmt.Errorf("remove image %s: %w", im.Id, err)
		}
		removed++
		used -= min(used, im.Size)
	}
	return removed, nil
}

// garbage are the images that may go, the largest first.
func garbage(list []*runtimeapi.Image, containers []*runtimeapi.Container, keep map[string]bool) []*runtimeapi.Image {
	used := map[string]bool{}
	for _, c := range containers {
		used[c.ImageRef], used[c.ImageId], used[c.GetImage().GetImage()] = true, true, true
	}
	var out []*runtimeapi.Image
	for _, im := range list {
		if im.Pinned || used[im.Id] || slices.ContainsFunc(im.RepoTags, func(t string) bool { return keep[t] || used[t] }) ||
			slices.ContainsFunc(im.RepoDigests, func(d string) bool { return used[d] }) {
			continue
		}
		out = append(out, im)
	}
	slices.SortFunc(out, func(a, b *runtimeapi.Image) int { return cmp.Compare(b.Size, a.Size) })
	return out
}

func usage(path string) (capacity, used uint64, err error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, 0, err
	}
	bs := uint64(st.Bsize)
	return st.Blocks * bs, (st.Blocks - st.Bavail) * bs, nil
}
