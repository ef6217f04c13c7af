package main

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// read returns the files of a tar by name, and its headers.
func read(t *testing.T, b []byte) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, heads := map[string][]byte{}, map[string]*tar.Header{}
	r := tar.NewReader(bytes.NewReader(b))
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, heads
		}
		if err != nil {
			t.Fatal(err)
		}
		c, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		files[h.Name], heads[h.Name] = c, h
	}
}

// image follows the archive's own references down to config and layer, checking every digest and size.
func image(t *testing.T, archive []byte) (name string, config map[string]any, layer []byte) {
	t.Helper()
	files, _ := read(t, archive)
	follow := func(d descriptor) []byte {
		b, ok := files["blobs/sha256/"+strings.TrimPrefix(d.Digest, "sha256:")]
		if !ok || digest(b) != d.Digest || int64(len(b)) != d.Size {
			t.Fatalf("blob %s: present %v, %d bytes, digest %s, want %d bytes", d.Digest, ok, len(b), digest(b), d.Size)
		}
		return b
	}
	decode := func(b []byte, v any) {
		if err := json.Unmarshal(b, v); err != nil {
			t.Fatal(err)
		}
	}
	var index struct{ Manifests []descriptor }
	decode(files["index.json"], &index)
	var manifest struct {
		Config descriptor
		Layers []descriptor
	}
	decode(follow(index.Manifests[0]), &manifest)
	decode(follow(manifest.Config), &config)
	layer = follow(manifest.Layers[0])
	if ids := config["rootfs"].(map[string]any)["diff_ids"].([]any); len(ids) != 1 || ids[0] != digest(layer) {
		t.Errorf("diff_ids %v, want the digest of the layer %s", ids, digest(layer))
	}
	return index.Manifests[0].Annotations["io.containerd.image.name"], config, layer
}

func pack(t *testing.T, r recipe) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "image.tar")
	if err := run(r, out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestTree(t *testing.T) {
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "usr/bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, mode := range map[string]os.FileMode{"usr/bin/tool": 0o755, "usr/bin/data": 0o640} {
		if err := os.WriteFile(filepath.Join(root, name), []byte(name), mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("usr/bin", filepath.Join(root, "bin")); err != nil {
		t.Fatal(err)
	}
	r := recipe{Names: []string{"tripod.local/x:1"}, Root: root, Cmd: []string{"tool", "-v"}, Env: []string{"A=b"}, Ports: []string{"80/tcp"},
		User: "33", WorkDir: "/srv", StopSignal: "SIGQUIT", Arch: "amd64"}
	first := pack(t, r)
	name, config, layer := image(t, first)
	if name != r.Names[0] {
		t.Errorf("image is named %q, want %q", name, r.Names[0])
	}
	c := config["config"].(map[string]any)
	if c["User"] != "33" || c["WorkingDir"] != "/srv" || c["StopSignal"] != "SIGQUIT" || c["Entrypoint"] != nil {
		t.Errorf("config %v", c)
	}
	if _, ok := c["ExposedPorts"].(map[string]any)["80/tcp"]; !ok {
		t.Errorf("port 80/tcp is not exposed: %v", c)
	}
	files, heads := read(t, layer)
	if string(files["usr/bin/tool"]) != "usr/bin/tool" || heads["usr/bin/tool"].Mode&0o777 != 0o755 || heads["usr/bin/data"].Mode&0o777 != 0o640 {
		t.Errorf("files lost content or mode: %v", heads)
	}
	if h := heads["bin"]; h == nil || h.Typeflag != tar.TypeSymlink || h.Linkname != "usr/bin" {
		t.Errorf("symbolic link became %v", h)
	}

	// another time, the same content
	later := time.Now().Add(time.Hour)
	if err := os.Chtimes(filepath.Join(root, "usr/bin/tool"), later, later); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, pack(t, r)) {
		t.Error("the same tree gave another archive")
	}
}

func TestBinary(t *testing.T) {
	bin := filepath.Join(t.TempDir(), "b")
	if err := os.WriteFile(bin, []byte("elf"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, config, layer := image(t, pack(t, recipe{Names: []string{"n"}, Binary: bin, Entrypoint: []string{"/pause"}, Arch: "arm64"}))
	files, heads := read(t, layer)
	if string(files["pause"]) != "elf" || heads["pause"].Mode&0o111 != 0o111 {
		t.Errorf("binary is not executable at its entry point: %v", heads["pause"])
	}
	if config["architecture"] != "arm64" {
		t.Errorf("architecture %v", config["architecture"])
	}
}

func TestRefusals(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "o.tar")
	for what, r := range map[string]recipe{
		"no source":           {Names: []string{"n"}},
		"two sources":         {Names: []string{"n"}, Root: dir, Binary: "b"},
		"no name":             {Root: dir},
		"missing tree":        {Names: []string{"n"}, Root: filepath.Join(dir, "none")},
		"relative entrypoint": {Names: []string{"n"}, Binary: "/proc/self/exe", Entrypoint: []string{"x"}},
	} {
		if err := run(r, out); err == nil {
			t.Errorf("%s was accepted", what)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) != 0 {
		t.Errorf("a refused image left %v", left)
	}
}

func TestEveryNameHasAnEntryOfTheIndex(t *testing.T) {
	files, _ := read(t, pack(t, recipe{Names: []string{"a:1", "b:2"}, Root: t.TempDir()}))
	var index struct{ Manifests []descriptor }
	if err := json.Unmarshal(files["index.json"], &index); err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, m := range index.Manifests {
		if m.Digest != index.Manifests[0].Digest {
			t.Errorf("%v is another image", m.Annotations)
		}
		names = append(names, m.Annotations["io.containerd.image.name"])
	}
	if got := strings.Join(names, " "); got != "a:1 b:2" {
		t.Errorf("names are %q, want both", got)
	}
}
