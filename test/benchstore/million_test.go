package benchstore

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/test/figure"
)

// quota holds a million keys of 1 KiB, which etcd's default does not.
const quota = "--quota-backend-bytes=8589934592"

// large is what a cluster with many keys was seen to take.
type large struct {
	fill, snapshot, restart time.Duration
	rss, anonymous          float64 // MiB
}

// million fills a cluster with many keys of 1 KiB. One cluster after the other: two do not fit a small machine.
func million(t *testing.T, s scale) []figure.Figure {
	a, b := fillLarge(t, ours, s), fillLarge(t, etcd, s)
	n := fmt.Sprintf("%d keys of 1 KiB, ", s.keys)
	seconds := func(what string, ours, peer time.Duration) figure.Figure {
		return figure.Less(n+what, "s", ours.Seconds(), peer.Seconds())
	}
	return []figure.Figure{
		seconds("put by 24 clients, 100 in a transaction", a.fill, b.fill),
		figure.Less(n+"resident memory of a member", "MiB", a.rss, b.rss),
		figure.Less(n+"resident memory of a member without mapped files", "MiB", a.anonymous, b.anonymous),
		seconds("from kill -9 of a follower until it answers linearizable reads again", a.restart, b.restart),
		seconds("Maintenance.Snapshot, read to its end", a.snapshot, b.snapshot),
	}
}

func fillLarge(t *testing.T, p program, s scale) large {
	t.Helper()
	c := start(t, p, quota)
	defer c.stop()
	var l large
	began := time.Now()
	fill(t, c, s.keys, 1024)
	l.fill = time.Since(began)
	settle(t, c, s)
	l.rss, l.anonymous = c.memory(t, "VmRSS"), c.memory(t, "RssAnon")

	began = time.Now()
	n, err := snapshot(t, c)
	switch {
	case status.Code(err) == codes.Unimplemented:
		t.Logf("%s does not give snapshots", c.name)
	case err != nil:
		t.Fatalf("snapshot of %s: %v", c.name, err)
	default:
		l.snapshot = time.Since(began)
		t.Logf("%s: snapshot of %d MiB", c.name, n>>20)
	}

	m := c.follower(t)
	m.kill()
	began = time.Now()
	if err := c.launch(m); err != nil {
		t.Fatal(err)
	}
	c.healthy(t, m)
	l.restart = time.Since(began)
	t.Logf("%s: filled in %v, %.0f MiB resident, %.0f MiB of it anonymous, healthy again after %v", c.name, l.fill, l.rss, l.anonymous, l.restart)
	return l
}

// settle waits, for a while, until the members have become quiet: their own snapshots and collections of garbage belong
// to what was filled in.
func settle(t *testing.T, c *cluster, s scale) {
	t.Helper()
	if s.limits.ops > 0 {
		return
	}
	const window = 2 * time.Second
	for range 15 {
		before := c.cpu(t)
		time.Sleep(window)
		if c.cpu(t)-before < window/5 {
			return
		}
	}
}

// snapshot reads a whole snapshot and returns its size.
func snapshot(t *testing.T, c *cluster) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	stream, err := pb.NewMaintenanceClient(c.conn(t, c.members[1])).Snapshot(ctx, &pb.SnapshotRequest{})
	if err != nil {
		return 0, err
	}
	var n int64
	for {
		r, err := stream.Recv()
		if err == io.EOF {
			return n, nil
		}
		if err != nil {
			return n, err
		}
		n += int64(len(r.Blob))
	}
}
