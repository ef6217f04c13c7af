package benchstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/tripod-cluster/tripod/test/figure"
)

// connections is how many connections so many clients share.
func connections(clients int) int { return min(max(clients/16, 1), 48) }

// keyspace is how many different keys are written.
const keyspace = 10_000

func key(n int64) string { return fmt.Sprintf("/bench/key-%08d", n%keyspace) }

// value returns size bytes that do not compress to nothing.
func value(size int) string {
	b := make([]byte, size)
	x := uint32(size)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = 'a' + byte(x>>24)%26
	}
	return string(b)
}

// puts measures puts through all members.
func puts(t *testing.T, s scale) []figure.Figure {
	a, b := start(t, ours), start(t, etcd)
	var figures []figure.Figure
	for _, size := range s.sizes {
		for _, n := range s.clients {
			round := func(c *cluster) func() result {
				conns := c.clients(t, connections(n))
				v := value(size)
				return func() result {
					defer c.profile(t, fmt.Sprintf("put %d B %d", size, n), s.limits.time)()
					return drive(t, n, s.limits, func() time.Duration { return c.cpu(t) }, func(i int, call int64) error {
						ctx, cancel := context.WithTimeout(context.Background(), patience)
						defer cancel()
						_, err := conns[i%len(conns)].Put(ctx, key(call), v)
						return err
					})
				}
			}
			x, y := inTurn(s.rounds, round(a), round(b))
			figures = append(figures, compared(fmt.Sprintf("put, %d B, %d clients", size, n), x, y)...)
		}
	}
	return figures
}

// reads measures gets of one key, linearizable and serializable, from all members.
func reads(t *testing.T, s scale) []figure.Figure {
	a, b := start(t, ours), start(t, etcd)
	for _, c := range []*cluster{a, b} {
		fill(t, c, s.preload, 256)
	}
	var figures []figure.Figure
	for _, kind := range []struct {
		name string
		opts []clientv3.OpOption
	}{{"linearizable read", nil}, {"serializable read", []clientv3.OpOption{clientv3.WithSerializable()}}} {
		for _, n := range s.readers {
			round := func(c *cluster) func() result {
				conns := c.clients(t, connections(n))
				return func() result {
					defer c.profile(t, fmt.Sprintf("%s %d", kind.name, n), s.limits.time)()
					return drive(t, n, s.limits, func() time.Duration { return c.cpu(t) }, func(i int, call int64) error {
						ctx, cancel := context.WithTimeout(context.Background(), patience)
						defer cancel()
						_, err := conns[i%len(conns)].Get(ctx, fillKey(int(call)%s.preload), kind.opts...)
						return err
					})
				}
			}
			x, y := inTurn(s.rounds, round(a), round(b))
			figures = append(figures, compared(fmt.Sprintf("%s, 256 B, %d clients", kind.name, n), x, y)...)
		}
	}
	return figures
}

func fillKey(i int) string { return fmt.Sprintf("/fill/key-%08d", i) }

// fill puts n keys, many in a transaction.
func fill(t testing.TB, c *cluster, n, size int) {
	t.Helper()
	const ops = 100
	conns := c.clients(t, 6)
	v := value(size)
	drive(t, 24, limits{ops: (n + ops - 1) / ops}, func() time.Duration { return 0 }, func(i int, call int64) error {
		var puts []clientv3.Op
		for k := int(call-1) * ops; k < min(int(call)*ops, n); k++ {
			puts = append(puts, clientv3.OpPut(fillKey(k), v))
		}
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		for {
			_, err := conns[i%len(conns)].Txn(ctx).Then(puts...).Commit()
			if err == nil || ctx.Err() != nil {
				return err
			}
			// A server that is behind refuses, or does not answer in time: to put the same again does no harm.
			time.Sleep(50 * time.Millisecond)
		}
	})
}
