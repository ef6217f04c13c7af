package benchstore

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/tripod-cluster/tripod/test/figure"
)

const (
	watchStreams = 12
	// behind is how many writes the writer is ahead of the slowest watch at most.
	behind = 32
)

// watch has one client write, and many watches on one prefix get each write. Bare gRPC streams, so that the harness
// costs little beside what it measures.
func watch(t *testing.T, s scale) []figure.Figure {
	a, b := start(t, ours), start(t, etcd)
	round := func(c *cluster) func() result { return func() result { return fanOut(t, c, s) } }
	x, y := inTurn(s.rounds, round(a), round(b))
	return compared(fmt.Sprintf("event to one of %d watches, 1 writer, 256 B", s.watches), x, y)
}

// fanOut runs one round; an operation is the delivery of one event to one watch.
func fanOut(t *testing.T, c *cluster, s scale) result {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	streams := min(watchStreams, s.watches)
	var (
		mu    sync.Mutex
		flat  []time.Duration
		wg    sync.WaitGroup
		fail  = make(chan error, streams+1)
		got   = make([]chan struct{}, streams) // a token a write that all watches of the stream have got
		ready = make(chan struct{}, streams)
	)
	began := time.Now()
	for i := range streams {
		n := s.watches / streams
		if i < s.watches%streams {
			n++
		}
		got[i] = make(chan struct{}, behind+1)
		stream, err := pb.NewWatchClient(c.conn(t, c.members[i%members])).Watch(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for range n {
			if err := stream.Send(&pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: []byte("/bench/"), RangeEnd: []byte("/bench0")}}}); err != nil {
				t.Fatal(err)
			}
		}
		wg.Go(func() {
			created, events := 0, 0
			var own []time.Duration
			defer func() {
				mu.Lock()
				flat = append(flat, own...)
				mu.Unlock()
			}()
			for {
				r, err := stream.Recv()
				if err != nil {
					if ctx.Err() == nil {
						fail <- fmt.Errorf("watch: %w", err)
					}
					return
				}
				if r.Created {
					if created++; created == n {
						ready <- struct{}{}
					}
					continue
				}
				now := time.Since(began)
				for _, e := range r.Events {
					own = append(own, now-time.Duration(binary.BigEndian.Uint64(e.Kv.Value)))
					if events++; events%n == 0 {
						got[i] <- struct{}{}
					}
				}
			}
		})
	}
	for range streams {
		select {
		case <-ready:
		case err := <-fail:
			t.Fatal(err)
		case <-time.After(patience):
			t.Fatalf("%s: the watches were not created", c.name)
		}
	}
	kv := c.clients(t, 1)[0]
	defer c.profile(t, "watch", s.limits.time)()
	spent, first := c.cpu(t), time.Now()
	sent, done := 0, 0
	wait := func() {
		for _, g := range got {
			select {
			case <-g:
			case err := <-fail:
				t.Fatal(err)
			case <-time.After(patience):
				t.Fatalf("%s: events of write %d did not come", c.name, done+1)
			}
		}
		done++
	}
	for s.limits.ops == 0 && time.Since(first) < s.limits.time || sent < min(s.limits.ops, 50) {
		if sent-done >= behind {
			wait()
		}
		v := []byte(value(256))
		binary.BigEndian.PutUint64(v, uint64(time.Since(began)))
		if _, err := kv.Put(ctx, key(int64(sent)), string(v)); err != nil {
			t.Fatal(err)
		}
		sent++
	}
	for done < sent {
		wait()
	}
	r := result{ops: sent * s.watches, took: time.Since(first), cpu: c.cpu(t) - spent}
	cancel()
	wg.Wait()
	r.p50, r.p99 = figure.Quantile(flat, 0.5), figure.Quantile(flat, 0.99)
	return r
}
