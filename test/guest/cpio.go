package main

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// libraryDirs is where shared libraries are looked for.
var libraryDirs = []string{"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu", "/lib64", "/lib", "/usr/lib"}

// cpio writes an initramfs: an archive of format "newc" (Documentation/driver-api/early-userspace/buffer-format.rst
// of the kernel). The first error stays in err.
type cpio struct {
	w    io.Writer
	size int
	ino  int
	made map[string]bool
	err  error
}

func newCPIO(w io.Writer) *cpio { return &cpio{w: w, made: map[string]bool{"/": true}} }

func (c *cpio) write(b []byte) {
	if c.err != nil {
		return
	}
	_, c.err = c.w.Write(b)
	c.size += len(b)
}

func (c *cpio) pad(to int) { c.write(make([]byte, (to-c.size%to)%to)) }

func (c *cpio) entry(name string, mode, major, minor int, body []byte) {
	name = strings.TrimPrefix(name, "/")
	c.ino++
	c.write(fmt.Appendf(nil, "070701%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X%08X",
		c.ino, mode, 0, 0, 1, 0, len(body), 0, 0, major, minor, len(name)+1, 0))
	c.write(append([]byte(name), 0))
	c.pad(4)
	c.write(body)
	c.pad(4)
}

// fresh makes the directories above name and says whether name is not there yet.
func (c *cpio) fresh(name string) bool {
	if c.made[name] {
		return false
	}
	if dir := filepath.Dir(name); c.fresh(dir) {
		c.entry(dir, 0o040755, 0, 0, nil)
	}
	c.made[name] = true
	return true
}

func (c *cpio) data(name string, b []byte, mode int) {
	if c.fresh(name) {
		c.entry(name, 0o100000|mode, 0, 0, b)
	}
}

func (c *cpio) device(name string, major, minor int) {
	if c.fresh(name) {
		c.entry(name, 0o020600, major, minor, nil)
	}
}

func (c *cpio) file(name, host string, mode int) {
	b, err := os.ReadFile(host)
	if c.err == nil {
		c.err = err
	}
	c.data(name, b, mode)
}

// program adds a file or a directory of them and, for a dynamic executable or library, what it needs to run.
func (c *cpio) program(name, host string) {
	real, err := filepath.EvalSymlinks(host)
	if err != nil {
		c.err = err
		return
	}
	if entries, err := os.ReadDir(real); err == nil {
		for _, e := range entries {
			c.program(filepath.Join(name, e.Name()), filepath.Join(real, e.Name()))
		}
		return
	}
	c.file(name, real, 0o755)
	c.libraries(real)
}

func (c *cpio) libraries(host string) {
	f, err := elf.Open(host)
	if err != nil {
		return // no executable
	}
	defer f.Close()
	if s := f.Section(".interp"); s != nil {
		b, _ := s.Data()
		loader := string(bytes.TrimRight(b, "\x00"))
		c.file(loader, loader, 0o755)
	}
	names, _ := f.ImportedLibraries()
	for _, n := range names {
		for _, d := range libraryDirs {
			p := filepath.Join(d, n)
			if _, err := os.Stat(p); err != nil {
				continue
			}
			if !c.made[p] {
				c.file(p, p, 0o755)
				c.libraries(p)
			}
			break
		}
	}
}

func (c *cpio) end() {
	c.entry("TRAILER!!!", 0, 0, 0, nil)
	c.pad(512)
}
