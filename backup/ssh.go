package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path"
	"path/filepath"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"
)

// SSHConfig is a directory of another host, reached by SFTP. The zero value is none.
type SSHConfig struct {
	// Address is HOST or HOST:PORT.
	Address string `json:"address,omitempty"`
	User    string `json:"user,omitempty"`
	// Directory exists there.
	Directory string `json:"directory,omitempty"`
	// KeyFile is a private key without a passphrase.
	KeyFile string `json:"keyFile,omitempty"`
	// HostKey is the one public key that the host must show, as in known_hosts or in
	// its /etc/ssh/ssh_host_ed25519_key.pub: "ssh-ed25519 AAAA...".
	HostKey string `json:"hostKey,omitempty"`
}

// Set tells whether there is one.
func (c SSHConfig) Set() bool { return c != SSHConfig{} }

// Validate checks what can be checked without the files and the network.
func (c SSHConfig) Validate() error {
	if !c.Set() {
		return nil
	}
	switch {
	case c.Address == "":
		return errors.New("address: none is given")
	case c.User == "":
		return errors.New("user: none is given")
	case !path.IsAbs(c.Directory):
		return fmt.Errorf("directory: %q is not an absolute path", c.Directory)
	}
	if _, _, _, _, err := ssh.ParseAuthorizedKey([]byte(c.HostKey)); err != nil {
		return fmt.Errorf("hostKey: %q is not a public key such as `ssh-keyscan -t ed25519 HOST` prints behind the host's name", c.HostKey)
	}
	return absolute(map[string]string{"keyFile": c.KeyFile}, nil)
}

// SSH is a Destination.
type SSH struct{ cfg SSHConfig }

// NewSSH returns the destination; see SSHConfig.Validate.
func NewSSH(c SSHConfig) *SSH { return &SSH{cfg: c} }

// Name is "ssh".
func (s *SSH) Name() string { return "ssh" }

// sshHandshake bounds how long it takes to connect.
const sshHandshake = 20 * time.Second

// do runs f with a connection, which ends with ctx, and names the place in its error.
func (s *SSH) do(ctx context.Context, what string, f func(c *sftp.Client) error) error {
	err := s.connected(ctx, f)
	if ctx.Err() != nil {
		err = ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%s at %s@%s:%s: %w", what, s.cfg.User, s.cfg.Address, s.cfg.Directory, err)
	}
	return nil
}

func (s *SSH) connected(ctx context.Context, f func(c *sftp.Client) error) error {
	c := s.cfg
	pem, err := secret("snapshotSSH.keyFile", c.KeyFile)
	if err != nil {
		return err
	}
	key, err := ssh.ParsePrivateKey([]byte(pem + "\n"))
	if err != nil {
		return fmt.Errorf("snapshotSSH.keyFile: %s: %w", c.KeyFile, err)
	}
	host, _, _, _, err := ssh.ParseAuthorizedKey([]byte(c.HostKey))
	if err != nil {
		return fmt.Errorf("snapshotSSH.hostKey: %w", err)
	}
	addr := c.Address
	if _, _, err := net.SplitHostPort(addr); err != nil {
		addr = net.JoinHostPort(addr, "22")
	}
	raw, err := (&net.Dialer{Timeout: sshHandshake}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return err
	}
	defer raw.Close()
	defer context.AfterFunc(ctx, func() { raw.Close() })()
	raw.SetDeadline(time.Now().Add(sshHandshake))
	conn, chans, reqs, err := ssh.NewClientConn(raw, addr, &ssh.ClientConfig{
		User: c.User, Auth: []ssh.AuthMethod{ssh.PublicKeys(key)},
		HostKeyCallback: ssh.FixedHostKey(host), HostKeyAlgorithms: hostKeyAlgorithms(host),
	})
	if err != nil {
		return err
	}
	raw.SetDeadline(time.Time{})
	client := ssh.NewClient(conn, chans, reqs)
	defer client.Close()
	files, err := sftp.NewClient(client)
	if err != nil {
		return fmt.Errorf("the host offers no SFTP: %w", err)
	}
	return f(files) // its own Close would wait for the server, however long; the connection's does not
}

// hostKeyAlgorithms are those by which a host can prove the key: RSA keys sign in
// several ways.
func hostKeyAlgorithms(k ssh.PublicKey) []string {
	if k.Type() == ssh.KeyAlgoRSA {
		return []string{ssh.KeyAlgoRSASHA512, ssh.KeyAlgoRSASHA256}
	}
	return []string{k.Type()}
}

// Put uploads a file under another name, flushes it where the server can, and renames it.
func (s *SSH) Put(ctx context.Context, local string) error {
	return s.do(ctx, "store a snapshot", func(c *sftp.Client) error {
		in, err := os.Open(local)
		if err != nil {
			return err
		}
		defer in.Close()
		fi, err := in.Stat()
		if err != nil {
			return err
		}
		name := filepath.Base(local)
		tmp := path.Join(s.cfg.Directory, tmpPrefix+name)
		out, err := c.OpenFile(tmp, os.O_CREATE|os.O_TRUNC|os.O_WRONLY)
		if err != nil {
			return err
		}
		n, err := out.ReadFrom(in)
		if _, ok := c.HasExtension("fsync@openssh.com"); ok && err == nil {
			err = out.Sync()
		}
		if err := errors.Join(err, out.Close()); err != nil {
			return err
		}
		if n != fi.Size() {
			return fmt.Errorf("%d of %d bytes were stored", n, fi.Size())
		}
		return c.PosixRename(tmp, path.Join(s.cfg.Directory, name))
	})
}

// List returns the snapshots in the directory.
func (s *SSH) List(ctx context.Context) (out []File, err error) {
	err = s.do(ctx, "list the snapshots", func(c *sftp.Client) error {
		ents, err := c.ReadDirContext(ctx, s.cfg.Directory)
		for _, e := range ents {
			if f, ok := ParseName(e.Name()); ok && e.Mode().IsRegular() {
				f.Bytes = e.Size()
				out = append(out, f)
			}
		}
		return err
	})
	return out, err
}

// Get downloads a file.
func (s *SSH) Get(ctx context.Context, name string, w io.Writer) error {
	return s.do(ctx, "fetch the snapshot "+name, func(c *sftp.Client) error {
		in, err := c.Open(path.Join(s.cfg.Directory, name))
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = in.WriteTo(w)
		return err
	})
}

// Delete removes a file.
func (s *SSH) Delete(ctx context.Context, name string) error {
	return s.do(ctx, "delete the snapshot "+name, func(c *sftp.Client) error { return c.Remove(path.Join(s.cfg.Directory, name)) })
}
