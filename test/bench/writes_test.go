package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	access "github.com/tripod-cluster/tripod/test/cluster"
	"github.com/tripod-cluster/tripod/test/figure"
)

// limit is the time after which a run of writes stops short of its count, on a machine that is too slow for it.
const limit = 45 * time.Second

// writes measures creates of ConfigMaps of 1 KiB, each client with a connection of its own and the next write as soon
// as one is acknowledged.
func writes(t *testing.T) []figure.Figure {
	leader, err := cluster.Leader()
	if err != nil {
		t.Fatal(err)
	}
	var peers []string
	for i := 1; i <= access.Hosts; i++ {
		peers = append(peers, cluster.Addr(i))
	}
	ns := namespace(t, "writes")
	var figures []figure.Figure
	for _, through := range []struct {
		name  string
		addrs []string
	}{{"the leader", []string{cluster.Addr(leader)}}, {"all peers", peers}} {
		for _, load := range []struct{ clients, count int }{{1, 300}, {50, 3000}} {
			name := fmt.Sprintf("ConfigMap create, 1 KiB, %d clients, through %s", load.clients, through.name)
			all, took := write(t, ns, through.addrs, load.clients, load.count)
			figures = append(figures, figure.Latency(name, all)...)
			figures = append(figures, figure.Alone(name+", throughput", "/s", float64(len(all))/took.Seconds()))
		}
	}
	return figures
}

// write makes count ConfigMaps by so many clients at once, and returns how long each took and how long all did.
// A client goes through the addresses in turn.
func write(t *testing.T, ns string, addrs []string, clients, count int) ([]time.Duration, time.Duration) {
	t.Helper()
	data := map[string]string{"data": strings.Repeat("0123456789abcdef", 64)}
	ctx, cancel := context.WithTimeout(context.Background(), limit+time.Minute)
	defer cancel()
	create := func(c kubernetes.Interface) error {
		_, err := c.CoreV1().ConfigMaps(ns).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}, Data: data}, metav1.CreateOptions{})
		return err
	}
	var (
		all    = make([][]time.Duration, clients)
		errs   = make([]error, clients)
		next   atomic.Int64
		warm   sync.WaitGroup
		done   sync.WaitGroup
		start  = make(chan struct{})
		cutoff time.Time
	)
	warm.Add(clients)
	for i := range clients {
		var through []*kubernetes.Clientset
		for k := range addrs {
			through = append(through, client(t, addrs[(i+k)%len(addrs)]))
			if clients > 1 { // many clients spread over the peers, one goes round
				break
			}
		}
		done.Go(func() {
			for _, c := range through { // connections are open before the clock runs
				if err := create(c); err != nil && errs[i] == nil {
					errs[i] = err
				}
			}
			warm.Done()
			<-start
			for n := 0; errs[i] == nil && next.Add(1) <= int64(count) && time.Now().Before(cutoff); n++ {
				began := time.Now()
				errs[i] = create(through[n%len(through)])
				all[i] = append(all[i], time.Since(began))
			}
		})
	}
	warm.Wait()
	began := time.Now()
	cutoff = began.Add(limit)
	close(start)
	done.Wait()
	took := time.Since(began)
	var flat []time.Duration
	for i := range clients {
		if errs[i] != nil {
			t.Fatalf("client %d of %d: %v", i+1, clients, errs[i])
		}
		flat = append(flat, all[i]...)
	}
	if len(flat) < count {
		t.Logf("%d clients made %d of %d writes in %v", clients, len(flat), count, limit)
	}
	return flat, took
}
