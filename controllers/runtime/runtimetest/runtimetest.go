// Package runtimetest runs controllers in tests against client-go's fake client,
// which it teaches what an API server does to new objects: names from prefixes,
// UIDs, creation times, generations, resource versions and conflicts.
package runtimetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// Timeout is how long Eventually waits: long, for machines under load.
const Timeout = 60 * time.Second

// Cluster is a fake API server with an informer factory.
type Cluster struct {
	*fake.Clientset
	Informers informers.SharedInformerFactory
	Clock     clock.Clock
	Events    *Recorder

	writes atomic.Int64
}

var serial atomic.Int64

// New makes a cluster that holds the objects, which get what they lack.
func New(t *testing.T, objects ...apiruntime.Object) *Cluster {
	t.Helper()
	for _, o := range objects {
		stamp(o)
	}
	c := &Cluster{Clientset: fake.NewClientset(objects...), Clock: clock.RealClock{}, Events: &Recorder{}}
	c.PrependReactor("create", "*", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		c.writes.Add(1)
		if a.GetSubresource() == "" {
			stamp(a.(clienttesting.CreateAction).GetObject())
		}
		return false, nil, nil
	})
	c.PrependReactor("update", "*", func(a clienttesting.Action) (bool, apiruntime.Object, error) {
		c.writes.Add(1)
		if err := c.revise(a.(clienttesting.UpdateAction)); err != nil {
			return true, nil, err
		}
		return false, nil, nil
	})
	for _, verb := range []string{"patch", "delete", "delete-collection"} {
		c.PrependReactor(verb, "*", func(clienttesting.Action) (bool, apiruntime.Object, error) {
			c.writes.Add(1)
			return false, nil, nil
		})
	}
	c.Informers = c.NewInformers()
	return c
}

// NewInformers makes a factory with empty caches, for a controller that takes
// over from another: a factory cannot be started twice.
func (c *Cluster) NewInformers() informers.SharedInformerFactory {
	return informers.NewSharedInformerFactory(c.Clientset, 0)
}

// revise gives an update what it may not change, and a new version. An update of
// another version than the stored one is a conflict.
func (c *Cluster) revise(a clienttesting.UpdateAction) error {
	m, err := meta.Accessor(a.GetObject())
	if err != nil {
		return err
	}
	if stored, err := c.Tracker().Get(a.GetResource(), a.GetNamespace(), m.GetName()); err == nil {
		if s, err := meta.Accessor(stored); err == nil {
			if v := m.GetResourceVersion(); v != "" && v != s.GetResourceVersion() {
				return apierrors.NewConflict(a.GetResource().GroupResource(), m.GetName(), errors.New("the object has been modified"))
			}
			m.SetUID(s.GetUID())
			m.SetCreationTimestamp(s.GetCreationTimestamp())
			m.SetGeneration(s.GetGeneration())
		}
	}
	m.SetResourceVersion(strconv.FormatInt(serial.Add(1), 10))
	if a.GetSubresource() == "" {
		m.SetGeneration(m.GetGeneration() + 1)
	}
	return nil
}

func stamp(o apiruntime.Object) {
	m, err := meta.Accessor(o)
	if err != nil {
		return
	}
	n := serial.Add(1)
	if m.GetName() == "" && m.GetGenerateName() != "" {
		m.SetName(m.GetGenerateName() + strconv.FormatInt(n, 36))
	}
	if m.GetUID() == "" {
		m.SetUID(types.UID(fmt.Sprintf("uid-%d", n)))
	}
	if m.GetCreationTimestamp().Time.IsZero() {
		m.SetCreationTimestamp(metav1.Now())
	}
	if m.GetGeneration() == 0 {
		m.SetGeneration(1)
	}
	if m.GetResourceVersion() == "" {
		m.SetResourceVersion(strconv.FormatInt(n, 10))
	}
}

// Writes counts the requests that change something, so far.
func (c *Cluster) Writes() int64 { return c.writes.Load() }

// Settle waits until nothing has been written for a while. It cannot know that
// nothing is due, so a test that relies on it may only pass by mistake, never
// fail by one.
func (c *Cluster) Settle(t *testing.T) {
	t.Helper()
	before, quiet := int64(-1), 0
	Eventually(t, func() string {
		if w := c.Writes(); w != before {
			before, quiet = w, 0
		} else {
			quiet++
		}
		if quiet < 20 {
			return "the controllers are still writing"
		}
		return ""
	})
}

// Deps returns what a controller's constructor takes.
func (c *Cluster) Deps() runtime.Deps {
	return runtime.Deps{Client: c.Clientset, Informers: c.Informers, Recorder: c.Events, Log: slog.New(slog.DiscardHandler), Clock: c.Clock}
}

// Run runs controllers, by name, until the test ends, and fails the test when
// one does not stop or has failed.
func (c *Cluster) Run(t *testing.T, builders map[string]runtime.Builder) *runtime.Group {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	g := runtime.NewGroup(runtime.Options{
		Log:   slog.New(slog.DiscardHandler),
		Start: func(ctx context.Context) { c.Informers.StartWithContext(ctx) },
	})
	for name, b := range builders {
		g.Add(name, b)
	}
	done := make(chan error, 1)
	go func() { done <- g.Run(ctx) }()
	defer Eventually(t, func() string { return Watching(c.Actions()) + Unhealthy(g.Health()) })
	t.Cleanup(func() {
		health := g.Health()
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(Timeout):
			t.Error("the controllers did not stop")
		}
		for _, h := range health {
			if h.Restarts > 0 {
				t.Errorf("controller %s failed: %s", h.Name, h.LastError)
			}
		}
		c.Informers.Shutdown()
	})
	return g
}

// Watching returns "" when every informer that listed also watches by now, going
// by the actions of a fake client. What happens between the two is lost to an
// informer of a fake client, so tests change nothing before.
func Watching(actions []clienttesting.Action) string {
	missing := map[string]int{}
	for _, a := range actions {
		switch l, isList := a.(clienttesting.ListActionImpl); {
		case isList && l.ListOptions.ResourceVersion == "0":
			missing[a.GetResource().Resource]++
		case a.GetVerb() == "watch":
			missing[a.GetResource().Resource]--
		}
	}
	for resource, n := range missing {
		if n > 0 {
			return resource + " are not watched yet; "
		}
	}
	return ""
}

// Unhealthy returns "" when all controllers are healthy.
func Unhealthy(all []runtime.Status) string {
	for _, s := range all {
		if !s.Healthy {
			return fmt.Sprintf("controller %s is not healthy: %s; ", s.Name, s.Message)
		}
	}
	return ""
}

// Eventually waits until f returns "", and fails the test with what it returned
// last when it does not in time.
func Eventually(t *testing.T, f func() string) {
	t.Helper()
	deadline := time.Now().Add(Timeout)
	for {
		why := f()
		if why == "" {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s: %s", Timeout, why)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// Recorder keeps events in memory.
type Recorder struct {
	mu   sync.Mutex
	list []string
}

var _ record.EventRecorder = (*Recorder)(nil)

// Event keeps "reason: message".
func (r *Recorder) Event(_ apiruntime.Object, _, reason, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, reason+": "+message)
}

// Eventf is Event with a format.
func (r *Recorder) Eventf(o apiruntime.Object, kind, reason, format string, args ...any) {
	r.Event(o, kind, reason, fmt.Sprintf(format, args...))
}

// AnnotatedEventf is Eventf; annotations are dropped.
func (r *Recorder) AnnotatedEventf(o apiruntime.Object, _ map[string]string, kind, reason, format string, args ...any) {
	r.Eventf(o, kind, reason, format, args...)
}

// All returns the events so far.
func (r *Recorder) All() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.list...)
}
