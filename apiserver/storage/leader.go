package storage

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tripod-cluster/tripod/store"
)

const (
	probePeriod  = time.Second
	probeTimeout = time.Second
)

// leaderWatch asks for a read index once a second: the only question whose
// answer proves that a majority follows a leader that this peer can reach.
type leaderWatch struct {
	proposer store.Proposer
	timeout  time.Duration

	mu     sync.Mutex
	probed bool
	err    error         // of the last probe
	since  time.Time     // of the first failure in a row
	lost   chan struct{} // closed while there has been no leader for timeout
	isLost bool
}

func newLeaderWatch(p store.Proposer, timeout time.Duration) *leaderWatch {
	return &leaderWatch{proposer: p, timeout: timeout, lost: make(chan struct{})}
}

// run probes until ctx ends.
func (l *leaderWatch) run(ctx context.Context) {
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	for {
		l.probe(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (l *leaderWatch) probe(parent context.Context) error {
	ctx, cancel := context.WithTimeout(parent, probeTimeout)
	defer cancel()
	err := l.proposer.ReadIndex(ctx)
	if parent.Err() != nil {
		return parent.Err()
	}
	if err != nil {
		err = fmt.Errorf("no read index within %s, is a majority of the peers up? see controld status: %w", probeTimeout, err)
	}
	l.record(err, time.Now())
	return err
}

// record notes the outcome of a probe and ends or renews the lost channel.
func (l *leaderWatch) record(err error, now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.probed = true
	switch {
	case err == nil:
		if l.isLost {
			slog.Info("store leader is back", "after", now.Sub(l.since).Round(time.Millisecond))
			l.isLost, l.lost = false, make(chan struct{})
		}
		l.since = time.Time{}
	case l.since.IsZero():
		l.since = now
	case !l.isLost && now.Sub(l.since) >= l.timeout:
		slog.Warn("no store leader, ending watches", "for", now.Sub(l.since).Round(time.Millisecond), "err", err)
		l.isLost = true
		close(l.lost)
	}
	l.err = err
}

func (l *leaderWatch) healthy() error {
	l.mu.Lock()
	probed, err := l.probed, l.err
	l.mu.Unlock()
	if !probed {
		return l.probe(context.Background())
	}
	return err
}

// gone is closed when there has been no leader for the time-out.
func (l *leaderWatch) gone() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.lost
}
