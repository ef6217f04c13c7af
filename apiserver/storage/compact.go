package storage

import (
	"context"
	"log/slog"
	"time"

	"k8s.io/apiserver/pkg/storage/etcd3"
)

// Run probes for a leader and, when interval is positive, compacts away the
// history that is older than one to two intervals (Kubernetes' default is five
// minutes). It returns when ctx ends. Peers that all run it agree through
// upstream's own key, compact_rev_key: one of them compacts in each interval.
func (b *Backend) Run(ctx context.Context, interval time.Duration) {
	if interval > 0 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			b.compactLoop(ctx, interval)
		}()
		defer func() { <-done }()
	}
	b.leader.run(ctx)
}

func (b *Backend) compactLoop(ctx context.Context, interval time.Duration) {
	client, stop := b.Client()
	defer stop()
	tick := time.NewTicker(interval)
	defer tick.Stop()
	var version, rev int64
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		v, current, compacted, err := etcd3.Compact(ctx, client.Client, version, rev)
		if err != nil {
			if ctx.Err() == nil {
				slog.Warn("compaction of the store failed, trying again in an interval", "revision", rev, "interval", interval, "err", err)
			}
			continue
		}
		version, rev = v, current
		if compacted > 0 {
			slog.Debug("store compacted", "revision", compacted)
		}
	}
}
