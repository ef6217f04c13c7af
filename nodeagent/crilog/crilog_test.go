package crilog

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

const t0 = "2026-11-30T10:00:0%d.000000000Z"

func at(sec int) string { return fmt.Sprintf(t0, sec) }

func write(t *testing.T, lines ...string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "0.log")
	if err := os.WriteFile(p, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParseRefusesWhatIsNoEntry(t *testing.T) {
	for _, l := range []string{"", "x", "notatime stdout F a", at(1) + " stdin F a", at(1) + " stdout X a", at(1)} {
		if _, err := Parse([]byte(l)); err == nil {
			t.Errorf("%q was taken for an entry", l)
		}
	}
	e, err := Parse([]byte(at(1) + " stderr P:future a b "))
	if err != nil || !e.Partial || string(e.Content) != "a b " || e.Stream != Stderr {
		t.Fatalf("got %+v, %v", e, err)
	}
	if e, err = Parse([]byte(at(1) + " stdout F ")); err != nil || len(e.Content) != 0 {
		t.Fatalf("an empty line: %+v, %v", e, err)
	}
}

func TestCopySelectsWhatWasAskedFor(t *testing.T) {
	p := write(t,
		at(1)+" stdout F one",
		at(2)+" stderr F two",
		at(3)+" stdout P th",
		at(3)+" stdout P re",
		at(3)+" stdout F e",
		"torn li",
		at(4)+" stdout F four")
	all := Options{Tail: -1, Limit: -1}
	for _, tc := range []struct {
		name   string
		o      func(*Options)
		stderr bool
		want   string
	}{
		{"all", func(o *Options) {}, true, "one\ntwo\nthree\nfour\n"},
		{"one stream", func(o *Options) {}, false, "one\nthree\nfour\n"},
		{"timestamps stand at the start of a line only", func(o *Options) { o.Timestamps = true }, false,
			at(1) + " one\n" + at(3) + " three\n" + at(4) + " four\n"},
		{"since", func(o *Options) { o.Since = time.Date(2026, 11, 30, 10, 0, 3, 0, time.UTC) }, true, "three\nfour\n"},
		{"tail", func(o *Options) { o.Tail = 1 }, true, "four\n"},
		{"a line in parts is one line of the tail", func(o *Options) { o.Tail = 3 }, true, "three\nfour\n"},
		{"tail of nothing", func(o *Options) { o.Tail = 0 }, true, ""},
		{"tail longer than the log", func(o *Options) { o.Tail = 100 }, true, "one\ntwo\nthree\nfour\n"},
		{"limit", func(o *Options) { o.Limit = 6 }, true, "one\ntw"},
		{"limit of nothing", func(o *Options) { o.Limit = 0 }, true, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := all
			tc.o(&o)
			var out bytes.Buffer
			w2 := &out
			if !tc.stderr {
				w2 = nil
			}
			var err error
			if w2 == nil {
				err = Copy(context.Background(), p, o, nil, &out, nil, nil)
			} else {
				err = Copy(context.Background(), p, o, nil, &out, w2, nil)
			}
			if err != nil || out.String() != tc.want {
				t.Fatalf("got %q, %v; want %q", out.String(), err, tc.want)
			}
		})
	}
}

// Every tail of a log with lines longer than a block equals the end of the whole.
func TestTailAgreesWithTheWholeLog(t *testing.T) {
	var lines, logical []string
	for i := range 40 {
		text := strings.Repeat(string(rune('a'+i%26)), i*i*97%90000)
		logical = append(logical, text)
		for len(text) > 16000 {
			lines = append(lines, at(i%10)+" stdout P "+text[:16000])
			text = text[16000:]
		}
		lines = append(lines, at(i%10)+" stdout F "+text)
	}
	p := write(t, lines...)
	for n := range len(logical) + 2 {
		var out bytes.Buffer
		if err := Copy(context.Background(), p, Options{Tail: int64(n), Limit: -1}, nil, &out, nil, nil); err != nil {
			t.Fatal(err)
		}
		want := logical[max(0, len(logical)-n):]
		got := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		if n == 0 {
			got = nil
		}
		if fmt.Sprint(len(got)) != fmt.Sprint(len(want)) || strings.Join(got, "\n") != strings.Join(want, "\n") {
			t.Fatalf("tail %d: %d lines, want %d, or their text differs", n, len(got), len(want))
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

func (l *lockedBuffer) await(t *testing.T, want string) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	for {
		if l.String() == want {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("got %q, want %q", l.String(), want)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func TestFollowGoesOverRotationAndEndsWithTheContainer(t *testing.T) {
	p := write(t, at(1)+" stdout F one")
	var mu sync.Mutex
	running := true
	alive := func(context.Context) bool { mu.Lock(); defer mu.Unlock(); return running }
	var out lockedBuffer
	done := make(chan error, 1)
	go func() {
		done <- Copy(context.Background(), p, Options{Tail: -1, Limit: -1, Follow: true}, alive, &out, nil, nil)
	}()
	out.await(t, "one\n")
	app := func(path, s string) {
		f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteString(s); err != nil {
			t.Fatal(err)
		}
	}
	app(p, at(2)+" stdout F t") // half an entry
	app(p, "wo\n")
	out.await(t, "one\ntwo\n")
	if err := os.Rename(p, p+".1"); err != nil {
		t.Fatal(err)
	}
	app(p+".1", at(3)+" stdout F three\n") // the runtime has not reopened yet
	out.await(t, "one\ntwo\nthree\n")
	app(p, at(4)+" stdout F four\n")
	out.await(t, "one\ntwo\nthree\nfour\n")
	mu.Lock()
	app(p, at(5)+" stdout F last\n")
	running = false
	mu.Unlock()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("follow did not end with the container")
	}
	out.await(t, "one\ntwo\nthree\nfour\nlast\n")
}

func TestFollowEndsWithItsCaller(t *testing.T) {
	p := write(t, at(1)+" stdout F one")
	ctx, cancel := context.WithCancel(context.Background())
	var out lockedBuffer
	done := make(chan error, 1)
	go func() {
		done <- Copy(ctx, p, Options{Tail: -1, Limit: -1, Follow: true}, func(context.Context) bool { return true }, &out, nil, nil)
	}()
	out.await(t, "one\n")
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("follow outlived its caller")
	}
}
