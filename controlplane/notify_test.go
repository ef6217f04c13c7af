package controlplane

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// TestSystemdIsToldAfterTheEnvironmentLostItsSocket: the API server's start
// unsets NOTIFY_SOCKET; a watchdog that then falls silent has the peer killed.
func TestSystemdIsToldAfterTheEnvironmentLostItsSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	old := notifySocket
	defer func() { notifySocket = old }()
	notifySocket = path
	t.Setenv(notifySocketEnv, path)
	os.Unsetenv(notifySocketEnv)
	notify("WATCHDOG=1")
	if err := l.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 100)
	n, err := l.Read(b)
	if err != nil || string(b[:n]) != "WATCHDOG=1" {
		t.Fatalf("systemd heard %q, %v", b[:n], err)
	}
}
