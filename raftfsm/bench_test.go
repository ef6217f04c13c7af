package raftfsm

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// BenchmarkPropose puts 256-byte values on three voters in one process with real ports, TLS and fsync, from the
// leader and from a follower.
func BenchmarkPropose(b *testing.B) {
	for _, where := range []string{"leader", "follower"} {
		for _, clients := range []int{1, 64, 256} {
			b.Run(fmt.Sprintf("%s/clients=%d", where, clients), func(b *testing.B) {
				c := newCluster(b, 3, nil)
				p := c.leader()
				if where == "follower" {
					p = c.followers()[0]
				}
				value := string(make([]byte, 256))
				var next atomic.Int64
				var wg sync.WaitGroup
				b.ResetTimer()
				began := time.Now()
				for range clients {
					wg.Go(func() {
						for {
							i := next.Add(1)
							if i > int64(b.N) {
								return
							}
							p.put(b, fmt.Sprint("key", i%10000), value)
						}
					})
				}
				wg.Wait()
				b.ReportMetric(float64(b.N)/time.Since(began).Seconds(), "puts/s")
			})
		}
	}
}

// BenchmarkReadIndex makes linearizable reads wait on a follower.
func BenchmarkReadIndex(b *testing.B) {
	for _, clients := range []int{1, 64} {
		b.Run(fmt.Sprintf("follower/clients=%d", clients), func(b *testing.B) {
			c := newCluster(b, 3, nil)
			p := c.followers()[0]
			ctx := c.ctx()
			var next atomic.Int64
			var wg sync.WaitGroup
			b.ResetTimer()
			for range clients {
				wg.Go(func() {
					for next.Add(1) <= int64(b.N) {
						if err := p.ReadIndex(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}

// BenchmarkFailover measures from the leader's death until a follower's write is acknowledged again.
func BenchmarkFailover(b *testing.B) {
	c := newCluster(b, 3, nil)
	c.sameState()
	var total, worst time.Duration
	for range b.N {
		l := c.leader()
		f := c.followers()
		// Cut off rather than closed: nobody says goodbye.
		c.net.isolate(l.id, true, c.peers)
		began := time.Now()
		f[0].put(b, "k", "v")
		took := time.Since(began)
		total += took
		worst = max(worst, took)
		c.net.isolate(l.id, false, c.peers)
		c.until("the old leader follows", func() bool { id, _ := l.Leader(); return id != 0 && !l.IsLeader() })
	}
	b.ReportMetric(float64(total.Milliseconds())/float64(b.N), "ms/failover")
	b.ReportMetric(float64(worst.Milliseconds()), "ms/worst")
}
