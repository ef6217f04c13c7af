package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRelayFindsTheExitCode(t *testing.T) {
	for text, want := range map[string]int{
		"hello\r\n\n" + exitMark + "0\r\n":          0,
		exitMark + "7\nreboot: Restarting system\n": 7,
		"panic: it ended\n":                         -1,
		exitMark + "nonsense\n":                     -1,
	} {
		if got := relay(strings.NewReader(text)); got != want {
			t.Errorf("%q: exit code %d, want %d", text, got, want)
		}
	}
}

func TestInitramfsHoldsDirectoriesBeforeFiles(t *testing.T) {
	host := filepath.Join(t.TempDir(), "prog")
	if err := os.WriteFile(host, []byte("body"), 0o755); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	c := newCPIO(&out)
	c.program("/a/b/prog", host)
	c.data("/a/b/prog", []byte("again"), 0o644) // the first word counts
	c.device("/dev/console", 5, 1)
	c.end()
	if c.err != nil {
		t.Fatal(c.err)
	}
	var names []string
	b := out.Bytes()
	for at := 0; at+110 < len(b) && string(b[at:at+6]) == "070701"; {
		field := func(i int) (n int) {
			for _, ch := range string(b[at+6+8*i : at+14+8*i]) {
				n = n*16 + strings.IndexRune("0123456789ABCDEF", ch)
			}
			return n
		}
		size, nameLen := field(6), field(11)
		names = append(names, string(b[at+110:at+110+nameLen-1]))
		at = (at+110+nameLen+3)&^3 + (size+3)&^3
	}
	if got := strings.Join(names, " "); got != "a a/b a/b/prog dev dev/console TRAILER!!!" {
		t.Errorf("the archive holds %q", got)
	}
	c = newCPIO(&bytes.Buffer{})
	if c.program("/x", host+".missing"); c.err == nil {
		t.Error("a missing file is no error")
	}
}

func TestLaunchSaysWhatIsMissing(t *testing.T) {
	if _, err := launch(nil); err == nil || !strings.Contains(err.Error(), "usage") {
		t.Errorf("without arguments: %v", err)
	}
	if _, err := launch([]string{"-root", t.TempDir(), "prog"}); err == nil || !strings.Contains(err.Error(), "vmlinuz") {
		t.Errorf("without a kernel: %v", err)
	}
}
