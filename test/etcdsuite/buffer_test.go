package etcdsuite

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"
)

// lockedBuffer takes a process's output while it is read.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// await returns when text was written.
func (b *lockedBuffer) await(t *testing.T, text string) {
	t.Helper()
	deadline := time.NewTimer(2 * time.Minute)
	defer deadline.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(b.String(), text) {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("gave up waiting for %q in\n%s", text, b)
		}
	}
}
