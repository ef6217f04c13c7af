// Command pack makes an OCI image archive of a directory tree or of one static binary, for `ctr images import` and
// for noded's images directory. The same input gives the same bytes: entries are sorted, times are zero, and the
// layer is not compressed, so that importing costs no more than copying.
//
//	pack -o web.tar -name tripod.local/web:1 -binary web -entrypoint /web -port 8080/tcp
//	pack -o nginx.tar -name tripod.local/nginx:1 -root DIR -cmd nginx -cmd -g -cmd 'daemon off;'
//
// The archive is an OCI image layout (opencontainers/image-spec 1.0) that names the image in the two annotations
// that containerd reads; an image of several names has an entry of the index for each.
package main

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

type words []string

func (w *words) String() string     { return strings.Join(*w, " ") }
func (w *words) Set(s string) error { *w = append(*w, s); return nil }

// recipe is what an image is made of.
type recipe struct {
	Names      []string // full references, registry included
	Root       string   // directory tree that becomes the layer, or
	Binary     string   // one static binary, which becomes Entrypoint[0]
	Entrypoint []string
	Cmd        []string
	Env        []string // NAME=value
	Ports      []string // 80/tcp
	User       string   // uid, uid:gid or a name in the tree
	WorkDir    string
	StopSignal string // empty: SIGTERM
	Arch       string // GOARCH
}

func main() {
	var r recipe
	out := flag.String("o", "", "archive to write")
	flag.Var((*words)(&r.Names), "name", "image reference, such as tripod.local/web:1 (repeat for other names of the same image)")
	flag.StringVar(&r.Root, "root", "", "directory tree to pack")
	flag.StringVar(&r.Binary, "binary", "", "static binary to pack, in place of -root")
	flag.Var((*words)(&r.Entrypoint), "entrypoint", "entry point, one word (repeat)")
	flag.Var((*words)(&r.Cmd), "cmd", "default argument, one word (repeat)")
	flag.Var((*words)(&r.Env), "env", "NAME=value (repeat)")
	flag.Var((*words)(&r.Ports), "port", "port/protocol (repeat)")
	flag.StringVar(&r.User, "user", "", "user to run as")
	flag.StringVar(&r.WorkDir, "workdir", "/", "working directory")
	flag.StringVar(&r.StopSignal, "stopsignal", "", "signal that asks it to stop")
	flag.StringVar(&r.Arch, "arch", runtime.GOARCH, "architecture, as Go names it")
	flag.Parse()
	if err := run(r, *out); err != nil {
		fmt.Fprintln(os.Stderr, "pack:", err)
		os.Exit(1)
	}
}

func run(r recipe, out string) error {
	if out == "" || len(r.Names) == 0 || (r.Root == "") == (r.Binary == "") {
		return errors.New("need -o, -name and one of -root and -binary; see -help")
	}
	// Beside the target, then renamed: a watcher of the directory never sees half an archive.
	f, err := os.CreateTemp(filepath.Dir(out), ".pack-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := write(f, r); err != nil {
		return fmt.Errorf("pack %s: %w", r.Names[0], err)
	}
	if err := errors.Join(f.Chmod(0o644), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), out)
}

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int64             `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func digest(b []byte) string { s := sha256.Sum256(b); return "sha256:" + hex.EncodeToString(s[:]) }

// write writes the archive of r to w.
func write(w io.Writer, r recipe) error {
	layer, err := os.CreateTemp("", "pack-layer-*")
	if err != nil {
		return err
	}
	defer os.Remove(layer.Name())
	defer layer.Close()
	sum := sha256.New()
	if err := writeLayer(io.MultiWriter(layer, sum), r); err != nil {
		return err
	}
	size, err := layer.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := layer.Seek(0, io.SeekStart); err != nil {
		return err
	}
	layerDigest := "sha256:" + hex.EncodeToString(sum.Sum(nil))

	type dict = map[string]any
	conf := dict{"WorkingDir": r.WorkDir, "Env": append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, r.Env...)}
	for k, v := range map[string][]string{"Entrypoint": r.Entrypoint, "Cmd": r.Cmd} {
		if len(v) > 0 {
			conf[k] = v
		}
	}
	for k, v := range map[string]string{"User": r.User, "StopSignal": r.StopSignal} {
		if v != "" {
			conf[k] = v
		}
	}
	if len(r.Ports) > 0 {
		ports := dict{}
		for _, p := range r.Ports {
			ports[p] = struct{}{}
		}
		conf["ExposedPorts"] = ports
	}
	config, err := json.Marshal(dict{
		"architecture": r.Arch, "os": "linux", "created": "1970-01-01T00:00:00Z", "config": conf,
		"rootfs": dict{"type": "layers", "diff_ids": []string{layerDigest}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal(dict{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": descriptor{MediaType: "application/vnd.oci.image.config.v1+json", Digest: digest(config), Size: int64(len(config))},
		"layers": []descriptor{{MediaType: "application/vnd.oci.image.layer.v1.tar", Digest: layerDigest, Size: size}},
	})
	if err != nil {
		return err
	}
	var named []descriptor
	for _, name := range r.Names {
		named = append(named, descriptor{
			MediaType: "application/vnd.oci.image.manifest.v1+json", Digest: digest(manifest), Size: int64(len(manifest)),
			Platform:    map[string]string{"architecture": r.Arch, "os": "linux"},
			Annotations: map[string]string{"io.containerd.image.name": name, "org.opencontainers.image.ref.name": name},
		})
	}
	index, err := json.Marshal(dict{"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": named})
	if err != nil {
		return err
	}

	t := tar.NewWriter(w)
	put := func(name string, size int64, from io.Reader) error {
		if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: size, ModTime: time.Unix(0, 0)}); err != nil {
			return err
		}
		_, err := io.Copy(t, from)
		return err
	}
	blob := func(digest string) string { return "blobs/sha256/" + strings.TrimPrefix(digest, "sha256:") }
	text := func(name string, b []byte) error { return put(name, int64(len(b)), strings.NewReader(string(b))) }
	if err := text("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := text("index.json", index); err != nil {
		return err
	}
	if err := text(blob(digest(manifest)), manifest); err != nil {
		return err
	}
	if err := text(blob(digest(config)), config); err != nil {
		return err
	}
	if err := put(blob(layerDigest), size, layer); err != nil {
		return err
	}
	return t.Close()
}

// writeLayer writes the image's one layer.
func writeLayer(w io.Writer, r recipe) error {
	t := tar.NewWriter(w)
	if r.Binary != "" {
		if err := writeBinary(t, r); err != nil {
			return err
		}
		return t.Close()
	}
	err := filepath.WalkDir(r.Root, func(path string, d fs.DirEntry, err error) error { // lexical order
		if err != nil || path == r.Root {
			return err
		}
		return writeEntry(t, r.Root, path, d)
	})
	if err != nil {
		return err
	}
	return t.Close()
}

func writeBinary(t *tar.Writer, r recipe) error {
	if len(r.Entrypoint) == 0 || !filepath.IsAbs(r.Entrypoint[0]) {
		return errors.New("-binary needs -entrypoint with an absolute path")
	}
	f, err := os.Open(r.Binary)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return err
	}
	zero := time.Unix(0, 0)
	if err := t.WriteHeader(&tar.Header{Name: "tmp/", Typeflag: tar.TypeDir, Mode: 0o1777, ModTime: zero}); err != nil {
		return err
	}
	name := strings.TrimPrefix(r.Entrypoint[0], "/")
	if err := t.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: st.Size(), ModTime: zero}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

func writeEntry(t *tar.Writer, root, path string, d fs.DirEntry) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	link := ""
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		if link, err = os.Readlink(path); err != nil {
			return err
		}
	case !info.IsDir() && !info.Mode().IsRegular():
		return nil // devices and sockets have no place in an image
	}
	h, err := tar.FileInfoHeader(info, link)
	if err != nil {
		return err
	}
	rel, err := filepath.Rel(root, path)
	if err != nil {
		return err
	}
	h.Name = rel
	if info.IsDir() {
		h.Name += "/"
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok {
		h.Uid, h.Gid = int(st.Uid), int(st.Gid)
	}
	h.Uname, h.Gname, h.Format = "", "", tar.FormatUnknown
	h.ModTime, h.AccessTime, h.ChangeTime = time.Unix(0, 0), time.Time{}, time.Time{}
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = io.Copy(t, f)
	return err
}
