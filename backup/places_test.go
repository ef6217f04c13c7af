package backup

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/tripod-cluster/tripod/backup/etcddb"
)

// exercise holds a destination to what Destination says.
func exercise(t *testing.T, d Destination) {
	t.Helper()
	ctx := context.Background()
	dir := t.TempDir()
	s := sample(t, 20000)
	var paths []string
	for h := range 3 {
		f, err := Save(dir, Auto, s, etcddb.Origin{Taken: at(h)})
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, filepath.Join(dir, f.Name))
		if err := d.Put(ctx, filepath.Join(dir, f.Name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := d.Put(ctx, paths[2]); err != nil {
		t.Errorf("once more: %v", err)
	}
	if err := pruneAt(ctx, d, 2); err != nil {
		t.Fatal(err)
	}
	all, err := d.List(ctx)
	if err != nil || len(all) != 2 {
		t.Fatalf("%v, %v", names(all), err)
	}
	want, err := os.ReadFile(paths[2])
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Base(paths[2])
	for _, f := range all {
		if f.Name == name && f.Bytes != int64(len(want)) {
			t.Errorf("%+v, want %d bytes", f, len(want))
		}
	}
	var got bytes.Buffer
	if err := d.Get(ctx, name, &got); err != nil || !bytes.Equal(got.Bytes(), want) {
		t.Errorf("%d bytes, %v", got.Len(), err)
	}
	if err := d.Get(ctx, FileName(Auto, at(9), 9), &got); err == nil {
		t.Error("one that is not there was read")
	}
	if err := d.Put(ctx, filepath.Join(dir, "none")); err == nil {
		t.Error("a file that is not there was stored")
	}
}

func write(t *testing.T, name string, content []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestS3(t *testing.T) {
	backend := s3mem.New()
	if err := backend.CreateBucket("snapshots"); err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewTLSServer(gofakes3.New(backend).Server())
	defer srv.Close()
	ca := write(t, "ca.crt", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	cfg := S3Config{Endpoint: srv.URL, Bucket: "snapshots", Prefix: "a/", Region: "us-east-1", CAFile: ca,
		AccessKeyFile: write(t, "access", []byte("AKIA\n")), SecretKeyFile: write(t, "secret", []byte("hush\n"))}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	exercise(t, NewS3(cfg))

	ctx := context.Background()
	other := cfg
	other.Prefix = "b/"
	if all, err := NewS3(other).List(ctx); err != nil || len(all) != 0 {
		t.Errorf("below another prefix: %v, %v", names(all), err)
	}
	other = cfg
	other.Bucket = "none"
	if _, err := NewS3(other).List(ctx); err == nil || !strings.Contains(err.Error(), "bucket none of "+srv.URL) {
		t.Errorf("no bucket: %v", err)
	}
	other = cfg
	other.CAFile = ""
	if _, err := NewS3(other).List(ctx); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("an unknown authority: %v", err)
	}
	for want, c := range map[string]S3Config{
		"endpoint":                         {Endpoint: "s3.example.org", Bucket: "b"},
		"bucket":                           {Endpoint: "https://s3.example.org"},
		"KeyFile: none is given":           {Endpoint: "https://s3.example.org", Bucket: "b"},
		`accessKeyFile: "k" is not an abs`: {Endpoint: "https://s3.example.org", Bucket: "b", AccessKeyFile: "k", SecretKeyFile: "/s"},
	} {
		if want != "endpoint" && want != "bucket" {
			c.Bucket = "b"
		}
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}

func newKey(t *testing.T) (ssh.Signer, []byte) {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(key, "test")
	if err != nil {
		t.Fatal(err)
	}
	return signer, pem.EncodeToMemory(block)
}

// sshd serves SFTP to one user with one key, and returns its address.
func sshd(t *testing.T, host ssh.Signer, user ssh.PublicKey) string {
	t.Helper()
	cfg := &ssh.ServerConfig{PublicKeyCallback: func(c ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
		if c.User() == "backup" && bytes.Equal(key.Marshal(), user.Marshal()) {
			return nil, nil
		}
		return nil, errors.New("unknown key")
	}}
	cfg.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			raw, err := l.Accept()
			if err != nil {
				return
			}
			go serveSSH(raw, cfg)
		}
	}()
	return l.Addr().String()
}

func serveSSH(raw net.Conn, cfg *ssh.ServerConfig) {
	defer raw.Close()
	_, chans, reqs, err := ssh.NewServerConn(raw, cfg)
	if err != nil {
		return
	}
	go ssh.DiscardRequests(reqs)
	for c := range chans {
		ch, reqs, err := c.Accept()
		if err != nil {
			return
		}
		go func() {
			for r := range reqs {
				r.Reply(r.Type == "subsystem" && string(r.Payload[4:]) == "sftp", nil)
			}
		}()
		srv, err := sftp.NewServer(ch)
		if err != nil {
			return
		}
		go func() {
			srv.Serve()
			ch.Close()
		}()
	}
}

func TestSSH(t *testing.T) {
	host, _ := newKey(t)
	user, pem := newKey(t)
	cfg := SSHConfig{Address: sshd(t, host, user.PublicKey()), User: "backup", Directory: t.TempDir(), KeyFile: write(t, "key", pem),
		HostKey: strings.TrimSpace(string(ssh.MarshalAuthorizedKey(host.PublicKey())))}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	exercise(t, NewSSH(cfg))
	if left, _ := filepath.Glob(filepath.Join(cfg.Directory, tmpPrefix+"*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	ctx := context.Background()
	stranger, strangerKey := newKey(t)
	other := cfg
	other.HostKey = string(ssh.MarshalAuthorizedKey(stranger.PublicKey()))
	if _, err := NewSSH(other).List(ctx); err == nil || !strings.Contains(err.Error(), "host key mismatch") {
		t.Errorf("a host with another key: %v", err)
	}
	other = cfg
	other.KeyFile = write(t, "key", strangerKey)
	if _, err := NewSSH(other).List(ctx); err == nil || !strings.Contains(err.Error(), "unable to authenticate") {
		t.Errorf("a user with another key: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if _, err := NewSSH(cfg).List(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	good := SSHConfig{Address: "h", User: "u", Directory: "/d", KeyFile: "/k", HostKey: cfg.HostKey}
	for want, change := range map[string]func(*SSHConfig){
		"address": func(c *SSHConfig) { c.Address = "" }, "user": func(c *SSHConfig) { c.User = "" }, "directory": func(c *SSHConfig) { c.Directory = "d" },
		"hostKey": func(c *SSHConfig) { c.HostKey = "x" }, "keyFile": func(c *SSHConfig) { c.KeyFile = "" },
	} {
		c := good
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%+v: %v, want %s", c, err, want)
		}
	}
}
