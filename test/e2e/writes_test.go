package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// writer writes ConfigMaps one after the other until it is stopped, and remembers
// which were acknowledged and the longest time between two acknowledgements.
type writer struct {
	name  string
	ns    string
	mu    sync.Mutex
	acked []string
	last  time.Time
	gap   time.Duration
	stop  context.CancelFunc
	done  chan struct{}
}

// startWriter writes through the given addresses: it stays with one while that
// works, as a client with several API servers does.
func startWriter(t *testing.T, ns, name string, addrs ...string) *writer {
	t.Helper()
	var configs []*rest.Config
	for _, a := range addrs {
		configs = append(configs, restConfig(t, a))
	}
	ctx, stop := context.WithCancel(context.Background())
	w := &writer{name: name, ns: ns, last: time.Now(), stop: stop, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.run(ctx, configs)
	}()
	t.Cleanup(func() { stop(); <-w.done })
	w.advance(t, 5)
	return w
}

func (w *writer) run(ctx context.Context, configs []*rest.Config) {
	at := 0
	connect := func() kubernetes.Interface {
		c := rest.CopyConfig(configs[at%len(configs)])
		c.UserAgent = fmt.Sprintf("%s-%d", w.name, at) // a transport of its own: no connection of before is waited for
		c.Timeout = time.Second
		at++
		k, err := kubernetes.NewForConfig(c)
		if err != nil {
			panic(err)
		}
		return k
	}
	k := connect()
	for n := 0; ctx.Err() == nil; n++ {
		name := fmt.Sprintf("%s-%06d", w.name, n)
		for ctx.Err() == nil {
			_, err := k.CoreV1().ConfigMaps(w.ns).Create(ctx, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
			if err == nil || apierrors.IsAlreadyExists(err) { // the second: an earlier try, of unknown outcome, had come through
				w.ack(name)
				break
			}
			k = connect()
		}
	}
}

func (w *writer) ack(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	w.gap = max(w.gap, now.Sub(w.last))
	w.last = now
	w.acked = append(w.acked, name)
}

// reset forgets the longest gap so far.
func (w *writer) reset() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gap, w.last = 0, time.Now()
}

func (w *writer) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.acked)
}

// advance waits for n more acknowledged writes.
func (w *writer) advance(t *testing.T, n int) {
	t.Helper()
	from := w.count()
	eventually(t, 2*time.Minute, fmt.Sprintf("%s: %d more writes are acknowledged", w.name, n), func() error {
		if got := w.count() - from; got < n {
			return fmt.Errorf("%d were", got)
		}
		return nil
	})
}

// finish stops the writer and returns the longest gap and how many writes were
// acknowledged; each of them must be there, through every peer.
func (w *writer) finish(t *testing.T) (gap time.Duration, acked int) {
	t.Helper()
	w.stop()
	<-w.done
	for i := 1; i <= hosts; i++ {
		var l *corev1.ConfigMapList
		eventually(t, time.Minute, "list through host "+cluster.Host(i), func() (err error) {
			l, err = client(t, cluster.Addr(i)).CoreV1().ConfigMaps(w.ns).List(context.Background(), metav1.ListOptions{})
			return err
		})
		have := map[string]bool{}
		for _, c := range l.Items {
			have[c.Name] = true
		}
		for _, name := range w.acked {
			if !have[name] {
				t.Errorf("%s: the acknowledged write %s is lost, says host %d", w.name, name, i)
			}
		}
	}
	return w.gap, len(w.acked)
}
