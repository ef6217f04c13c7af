package images

import (
	"context"
	"encoding/binary"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// watch sends the paths of files in dirs whose writer is done: closed after
// writing, or renamed into place. Without inotify the channel is closed.
func watch(ctx context.Context, dirs []string, log *slog.Logger) <-chan string {
	ch := make(chan string)
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		log.Warn("no inotify: image archives are found by scanning", "err", err)
		close(ch)
		return ch
	}
	where := map[int32]string{}
	for _, d := range dirs {
		wd, err := unix.InotifyAddWatch(fd, d, unix.IN_CLOSE_WRITE|unix.IN_MOVED_TO)
		if err == nil {
			where[int32(wd)] = d
		}
	}
	// As an os.File the descriptor is polled, and Close wakes its reader.
	f := os.NewFile(uintptr(fd), "inotify")
	stop := context.AfterFunc(ctx, func() { f.Close() })
	go func() {
		defer close(ch)
		defer stop()
		defer f.Close()
		buf := make([]byte, 64<<10)
		for {
			n, err := f.Read(buf)
			if err != nil {
				return
			}
			for off := 0; off+unix.SizeofInotifyEvent <= n; {
				wd := int32(binary.NativeEndian.Uint32(buf[off:]))
				length := int(binary.NativeEndian.Uint32(buf[off+12:]))
				name := strings.TrimRight(string(buf[off+unix.SizeofInotifyEvent:off+unix.SizeofInotifyEvent+length]), "\x00")
				off += unix.SizeofInotifyEvent + length
				select {
				case ch <- filepath.Join(where[wd], name):
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return ch
}
