package apiserver_test

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/metrics/legacyregistry"
)

// crowd is how many clients or objects a test has: n, or more by the environment
// (make overload).
func crowd(t *testing.T, n int) int {
	t.Helper()
	v := os.Getenv("TRIPOD_OVERLOAD_FACTOR")
	if v == "" {
		return n
	}
	f, err := strconv.Atoi(v)
	if err != nil || f < 1 {
		t.Fatalf("TRIPOD_OVERLOAD_FACTOR: %q is no factor", v)
	}
	return n * f
}

// heap is what is live, in MiB.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc >> 20)
}

// counted is the sum of a metric over its labels.
func counted(t *testing.T, name string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// deaf is a client that reads no more of its answers than fits into 128 KiB a
// connection.
func deaf(t *testing.T, cfg *rest.Config) *http.Client {
	t.Helper()
	conf, err := rest.TLSConfigFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{TLSClientConfig: conf, ForceAttemptHTTP2: true, HTTP2: &http.HTTP2Config{MaxReceiveBufferPerConnection: 128 << 10, MaxReceiveBufferPerStream: 64 << 10}}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// TestUnreadWatchesHurtNobody: hundreds of watches whose client does not read cost
// less than what they were sent, are ended, and keep nobody else from reading and
// writing.
func TestUnreadWatchesHurtNobody(t *testing.T) {
	c, ctx := start(t), testContext(t)
	const events, size = 200, 16 << 10
	watches := crowd(t, 500)
	maps(t, c, "leaky", 1)
	cm := c.admin(t).CoreV1().ConfigMaps("leaky")
	before, goroutines, ended := heap(), runtime.NumGoroutine(), counted(t, "apiserver_terminated_watchers_total")

	cfg := c.as(t, "admin", "system:masters")
	slow := deaf(t, cfg)
	open, closeAll := context.WithCancel(ctx)
	defer closeAll()
	gate := make(chan struct{}, 50)
	var wg sync.WaitGroup
	for range watches {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			req, err := http.NewRequestWithContext(open, http.MethodGet, cfg.Host+"/api/v1/namespaces/leaky/configmaps?watch=1&timeoutSeconds=600", nil)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := slow.Do(req)
			if err != nil {
				t.Error(err)
				return
			}
			if resp.StatusCode != http.StatusOK {
				t.Errorf("a watch was answered with %s", resp.Status)
			}
			context.AfterFunc(open, func() { resp.Body.Close() }) // never read
		})
	}
	wg.Wait()
	watch := metav1.ListOptions{FieldSelector: "metadata.name=m000"}
	w, err := cm.Watch(ctx, watch)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan error, 1)
	go func() {
		for n := 0; ; {
			for e := range w.ResultChan() {
				m, ok := e.Object.(*corev1.ConfigMap)
				if ok && m.Data["n"] == strconv.Itoa(events-1) {
					w.Stop()
					seen <- nil
					return
				}
				if ok {
					watch.ResourceVersion = m.ResourceVersion
				}
				n++
			}
			// On a busy machine it may have been too slow, and goes on where it was, as clients do.
			if w, err = cm.Watch(ctx, watch); err != nil {
				seen <- fmt.Errorf("the watch that is read ended after %d events, and again: %w", n, err)
				return
			}
		}
	}()
	var slowest time.Duration
	for n := range events {
		begin := time.Now()
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "m000"}, Data: map[string]string{"n": strconv.Itoa(n), "fill": strings.Repeat("x", size)}}
		if _, err := cm.Update(ctx, m, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
	}
	select {
	case err := <-seen:
		if err != nil {
			t.Error(err)
		}
	case <-ctx.Done():
		t.Error("the watch that is read did not see the last event")
	}
	sent, grown := watches*events*size>>20, heap()-before
	t.Logf("%d watches, %d MiB for them: heap grew by %d MiB, slowest write %s, %v watches were ended", watches, sent, grown, slowest, counted(t, "apiserver_terminated_watchers_total")-ended)
	if grown > sent/4 {
		t.Errorf("the heap grew by %d MiB for watches that nobody reads", grown)
	}
	if slowest > 5*time.Second {
		t.Errorf("a write took %s beside them", slowest)
	}
	if counted(t, "apiserver_terminated_watchers_total") == ended {
		t.Error("no watch was ended, or no metric tells it")
	}
	closeAll()
	slow.CloseIdleConnections()
	eventually(t, "what served the watches is gone", func() error {
		if n := runtime.NumGoroutine(); n > goroutines+watches/2 {
			return fmt.Errorf("%d goroutines, %d before", n, goroutines)
		}
		return nil
	})
}

// TestWatchesComeBackAtOnce: as when a peer was restarted, all watches begin again in
// the same moment and at an old revision, and none misses an event.
func TestWatchesComeBackAtOnce(t *testing.T) {
	c, ctx := start(t), testContext(t)
	maps(t, c, "storm", 20)
	cs := c.admin(t)
	old, err := cs.CoreV1().ConfigMaps("storm").Get(ctx, "m000", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	errs := make(chan error, crowd(t, 300))
	for range cap(errs) {
		go func() {
			w, err := cs.CoreV1().ConfigMaps("storm").Watch(ctx, metav1.ListOptions{ResourceVersion: old.ResourceVersion})
			if err != nil {
				errs <- err
				return
			}
			defer w.Stop()
			for n := 1; n < 20; n++ {
				e, ok := <-w.ResultChan()
				if m, is := e.Object.(*corev1.ConfigMap); !ok || !is || m.Name != fmt.Sprintf("m%03d", n) {
					errs <- fmt.Errorf("event %d is %v", n, e)
					return
				}
			}
			errs <- nil
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d watches had their 19 events after %s", cap(errs), time.Since(begin))
}

// TestListsWithoutLimitsHurtNobody: clients that list thousands of Secrets in one
// piece, again and again, leave room for one that reads a single object.
func TestListsWithoutLimitsHurtNobody(t *testing.T) {
	c, ctx := start(t), testContext(t)
	cs := c.admin(t)
	secrets, value := crowd(t, 200), strings.Repeat("s", 16<<10)
	maps(t, c, "heavy", 1)
	gate := make(chan struct{}, 16)
	var wg sync.WaitGroup
	for i := range secrets {
		wg.Go(func() {
			gate <- struct{}{}
			defer func() { <-gate }()
			if _, err := cs.CoreV1().Secrets("heavy").Create(ctx, secret(fmt.Sprintf("s%05d", i), value), metav1.CreateOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	before := heap()
	var longest atomic.Int64 // of the lists
	for range 20 {
		wg.Go(func() {
			for range 2 {
				begin := time.Now()
				l, err := cs.CoreV1().Secrets("heavy").List(ctx, metav1.ListOptions{})
				if err != nil || len(l.Items) != secrets {
					t.Errorf("a list: %v", err)
					return
				}
				for took := int64(time.Since(begin)); ; {
					if old := longest.Load(); took <= old || longest.CompareAndSwap(old, took) {
						break
					}
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	light := client(t, c.as(t, "light", "system:masters"))
	var slowest time.Duration
	reads := 0
	for listing := true; listing; reads++ {
		select {
		case <-done:
			listing = false
		default:
		}
		begin := time.Now()
		if _, err := light.CoreV1().ConfigMaps("heavy").Get(ctx, "m000", metav1.GetOptions{}); err != nil {
			t.Fatal(err)
		}
		slowest = max(slowest, time.Since(begin))
	}
	grown := heap() - before
	t.Logf("%d secrets, 40 lists, the slowest in %s, beside them %d reads, the slowest in %s; the heap grew by %d MiB", secrets, time.Duration(longest.Load()), reads, slowest, grown)
	if slowest > time.Duration(longest.Load()) {
		t.Errorf("a read of one object took %s, longer than a list", slowest)
	}
	if most := 4*secrets*len(value)>>20 + 50; grown > most {
		t.Errorf("the lists left %d MiB on the heap, more than %d", grown, most)
	}
}
