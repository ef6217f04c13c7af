package nodeagent

import (
	"context"
	"log/slog"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
	"github.com/tripod-cluster/tripod/nodeagent/pods"
	"github.com/tripod-cluster/tripod/nodeagent/probes"
	"github.com/tripod-cluster/tripod/nodeagent/status"
	"github.com/tripod-cluster/tripod/nodeagent/volumes"
)

const (
	refreshEvery = 45 * time.Second // volumes that show API objects
	maxSteps     = 100              // between two waits; more would be a machine that turns in circles
)

// worker carries out the transitions of one pod. One goroutine runs it; what
// takes long runs aside and wakes it.
type worker struct {
	a    *Agent
	ref  cri.Ref
	log  *slog.Logger
	wake chan struct{}
	obs  *cri.Observer
	wg   sync.WaitGroup // operations aside

	mu    sync.Mutex
	pod   *v1.Pod // as the API last told; nil when it never did
	gone  bool    // from the API
	stop  *pods.Stop
	known pods.Input // the maps and clocks of Step's input; the rest is filled in each time

	images    map[string]*runtimeapi.Image // checked for the next start, by container name
	born      time.Time                    // when the pod was first seen; zero once a container of it started
	refreshed time.Time
	refresh   bool // under way
	failures  map[pods.Kind]int

	backoffTold map[string]time.Time // by container name
}

func newWorker(a *Agent, ref cri.Ref) *worker {
	return &worker{
		a: a, ref: ref, wake: make(chan struct{}, 1), obs: cri.NewObserver(a.runtime, ref.UID),
		log: a.cfg.Logger.With("pod", ref.Namespace+"/"+ref.Name, "uid", ref.UID),
		known: pods.Input{
			StoppedBoxes: map[string]bool{}, ImageReady: map[string]bool{}, Pulling: map[string]bool{}, Starting: map[string]bool{},
			Stopping: map[string]time.Time{}, Holds: map[string]pods.Hold{}, Crashes: map[string]pods.Crash{},
		},
		images: map[string]*runtimeapi.Image{}, failures: map[pods.Kind]int{}, born: time.Now(), backoffTold: map[string]time.Time{},
	}
}

func (w *worker) poke() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// told takes what the API told of the pod.
func (w *worker) told(pod *v1.Pod) {
	w.mu.Lock()
	changed := w.pod != nil && (!maps.Equal(w.pod.Labels, pod.Labels) || !maps.Equal(w.pod.Annotations, pod.Annotations))
	w.pod = pod // gone stays: a UID does not come back
	if changed {
		w.refreshed = time.Time{} // the downward API shows them
	}
	if pod.DeletionTimestamp != nil {
		w.endLocked(grace(pod))
	}
	w.mu.Unlock()
	w.poke()
}

// removed takes the API's word that the pod is gone. last is what it was.
func (w *worker) removed(last *v1.Pod) {
	w.mu.Lock()
	if last != nil {
		w.pod = last
	}
	w.gone = true
	w.endLocked(grace(w.pod))
	w.mu.Unlock()
	w.poke()
}

// grace is what a pod's end is given.
func grace(pod *v1.Pod) time.Duration {
	switch {
	case pod == nil:
		return 30 * time.Second
	case pod.DeletionGracePeriodSeconds != nil:
		return time.Duration(*pod.DeletionGracePeriodSeconds) * time.Second
	case pod.Spec.TerminationGracePeriodSeconds != nil:
		return time.Duration(*pod.Spec.TerminationGracePeriodSeconds) * time.Second
	}
	return 30 * time.Second
}

// endLocked asks for the pod's end; a second request can only bring it nearer.
func (w *worker) endLocked(grace time.Duration) {
	now := time.Now()
	if w.stop == nil {
		w.stop = &pods.Stop{Since: now, Grace: grace}
		return
	}
	if now.Add(grace).Before(w.stop.Since.Add(w.stop.Grace)) {
		s := *w.stop
		s.Since, s.Grace = now, grace
		w.stop = &s
	}
}

func (w *worker) isGone() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone
}

// fail ends the pod as failed.
func (w *worker) fail(reason, message string, grace time.Duration) {
	w.mu.Lock()
	if w.stop == nil {
		w.stop = &pods.Stop{Since: time.Now(), Grace: grace, Reason: reason, Message: message}
	}
	w.mu.Unlock()
	w.poke()
}

// ended says whether the pod holds none of the node's resources any more.
func (w *worker) ended() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.gone || pods.Terminal(w.pod) || (w.stop != nil && w.stop.Reason != "")
}

// run works until the pod is finished (true) or ctx ends.
func (w *worker) run(ctx context.Context) bool {
	defer w.wg.Wait()
	retry := time.Second
	for {
		until, finished, err := w.advance(ctx)
		if finished {
			return true
		}
		var timer <-chan time.Time
		switch {
		case ctx.Err() != nil:
			return false
		case err != nil:
			w.log.Warn("pod not advanced, will try again", "after", retry, "err", err)
			timer = time.After(retry)
			retry = min(2*retry, 20*time.Second)
		default:
			retry = time.Second
			if d := w.nextWake(until); d > 0 {
				timer = time.After(d)
			}
		}
		select {
		case <-ctx.Done():
			return false
		case <-w.wake:
		case <-timer:
		}
	}
}

// nextWake is how long to sleep when nothing happens; 0: for good.
func (w *worker) nextWake(until time.Time) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.pod != nil && w.stop == nil && w.known.Prepared && volumes.Refreshable(w.pod) && !pods.Terminal(w.pod) {
		if r := w.refreshed.Add(refreshEvery); until.IsZero() || r.Before(until) {
			until = r
		}
	}
	if d := w.deadline(); !d.IsZero() && (until.IsZero() || d.Before(until)) {
		until = d
	}
	if until.IsZero() {
		return 0
	}
	return max(time.Until(until), 10*time.Millisecond)
}

// deadline is when activeDeadlineSeconds ends the pod.
func (w *worker) deadline() time.Time {
	p := w.pod
	if p == nil || w.stop != nil || p.Spec.ActiveDeadlineSeconds == nil || p.Status.StartTime == nil || pods.Terminal(p) {
		return time.Time{}
	}
	return p.Status.StartTime.Add(time.Duration(*p.Spec.ActiveDeadlineSeconds) * time.Second)
}

// advance steps until the pod has to wait.
func (w *worker) advance(ctx context.Context) (until time.Time, finished bool, err error) {
	for range maxSteps {
		if ctx.Err() != nil {
			return time.Time{}, false, ctx.Err()
		}
		in := w.snapshot()
		if in.Observed, err = w.obs.Observe(ctx); err != nil {
			return time.Time{}, false, err
		}
		w.watchProbes(ctx, &in)
		d := pods.Step(in)
		w.publish(in, d)
		if d.Kind != pods.Wait {
			w.log.Debug("transition", "kind", d.Kind.String(), "container", d.Container, "sandbox", d.SandboxID)
		}
		switch d.Kind {
		case pods.Wait:
			w.refreshVolumes(ctx)
			return d.Until, false, nil
		case pods.Finish:
			return time.Time{}, true, w.finish()
		}
		if err := w.act(ctx, in, d.Action); err != nil {
			return time.Time{}, false, err
		}
	}
	return time.Now().Add(time.Second), false, nil
}

// snapshot copies what the next step looks at. It is taken before the runtime
// is asked, so that an operation that ends in between counts as under way.
func (w *worker) snapshot() pods.Input {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	if d := w.deadline(); !d.IsZero() && !now.Before(d) {
		w.stop = &pods.Stop{Since: now, Grace: grace(w.pod), Reason: "DeadlineExceeded", Message: "Pod was active on the node longer than the specified deadline"}
		w.a.event(w.pod, v1.EventTypeNormal, "DeadlineExceeded", w.stop.Message)
	}
	in := w.known
	in.Pod, in.Gone, in.Stop, in.Now = w.pod, w.gone, w.stop, now
	in.StoppedBoxes = maps.Clone(in.StoppedBoxes)
	in.ImageReady = maps.Clone(in.ImageReady)
	in.Pulling = maps.Clone(in.Pulling)
	in.Starting = maps.Clone(in.Starting)
	in.Stopping = maps.Clone(in.Stopping)
	in.Holds = maps.Clone(in.Holds)
	in.Crashes = maps.Clone(in.Crashes)
	return in
}

// watchProbes makes the running containers' probes and reads their results.
func (w *worker) watchProbes(ctx context.Context, in *pods.Input) {
	in.Probes = map[string]pods.Probe{}
	if in.Pod == nil {
		return
	}
	ip := ""
	if sb := in.ReadySandbox(); sb != nil {
		ips := sb.IPs
		if in.Pod.Spec.HostNetwork {
			ips = w.a.hostIPs()
		}
		if len(ips) > 0 {
			ip = ips[0]
		}
	}
	var running []probes.Instance
	add := func(c *v1.Container) {
		if k := in.Newest(c.Name); k != nil && k.State == pods.Running && !in.Starting[c.Name] {
			i := probes.Instance{ID: k.ID, Container: c, StartedAt: k.StartedAt}
			i.WasStarted, i.WasReady = status.Reported(in.Pod, c.Name, k.ID)
			running = append(running, i)
		}
	}
	for i := range in.Pod.Spec.InitContainers {
		if c := &in.Pod.Spec.InitContainers[i]; pods.Restartable(c) {
			add(c)
		}
	}
	for i := range in.Pod.Spec.Containers {
		add(&in.Pod.Spec.Containers[i])
	}
	w.a.probes.Sync(ctx, in.Pod, ip, running, in.Stop != nil || in.Gone)
	for id, s := range w.a.probes.States(w.ref.UID) {
		in.Probes[id] = pods.Probe{LivenessFailed: s.LivenessFailed, StartupFailed: s.StartupFailed, Started: s.Started, Grace: s.Grace, Message: s.Message}
	}
}

// publish tells the pod's status.
func (w *worker) publish(in pods.Input, d pods.Decision) {
	if in.Pod == nil || in.Gone {
		return
	}
	ready := map[string]status.Readiness{}
	for id, s := range w.a.probes.States(w.ref.UID) {
		ready[id] = status.Readiness{Started: s.Started, Ready: s.Ready}
	}
	st := status.Compute(status.Input{Pod: in.Pod, Observed: in.Observed, Waiting: d.Waiting, Probes: ready, Done: d.Done, Stop: in.Stop, HostIPs: w.a.hostIPs(), Now: in.Now})
	w.a.pods.computed(w.ref.UID, st)
	w.a.status.Set(in.Pod, st)
	for name, h := range d.Waiting {
		if h.Reason == "CrashLoopBackOff" && w.tellAgain(name) {
			w.a.event(in.Pod, v1.EventTypeWarning, "BackOff", "Back-off restarting failed container "+name+" in pod "+in.Pod.Name+"_"+in.Pod.Namespace+"("+string(in.Pod.UID)+")")
		}
	}
}

// tellAgain says whether it is time to tell again that a container waits for
// its restart: what is told too often is dropped with the rest.
func (w *worker) tellAgain(container string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if time.Since(w.backoffTold[container]) < 15*time.Second {
		return false
	}
	w.backoffTold[container] = time.Now()
	return true
}

// refreshVolumes brings volumes up to date, aside, when it is time.
func (w *worker) refreshVolumes(ctx context.Context) {
	w.mu.Lock()
	pod := w.pod
	due := pod != nil && !w.gone && w.stop == nil && w.known.Prepared && !w.refresh && !pods.Terminal(pod) &&
		volumes.Refreshable(pod) && time.Since(w.refreshed) >= refreshEvery
	w.refresh = w.refresh || due
	w.mu.Unlock()
	if !due {
		return
	}
	w.aside(func() {
		if err := w.a.volumes.Refresh(ctx, pod); err != nil && ctx.Err() == nil {
			w.log.Warn("volumes not brought up to date", "err", err)
		}
		w.mu.Lock()
		// Not all pods of a node at the same moment.
		w.refreshed, w.refresh = time.Now().Add(-time.Duration(rand.Int64N(int64(refreshEvery/4)))), false
		w.mu.Unlock()
	})
}

// aside runs what takes long beside the worker and wakes it after.
func (w *worker) aside(f func()) {
	w.wg.Go(func() {
		defer w.poke()
		f()
	})
}

// backoff is how long to leave a kind of transition alone that failed again.
func (w *worker) backoff(k pods.Kind, most time.Duration) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.failures[k]
	w.failures[k]++
	d := time.Second << min(n, 10)
	return min(d, most)
}

func (w *worker) succeeded(k pods.Kind) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failures, k)
}

func (w *worker) lock(f func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	f()
}

func (w *worker) uid() types.UID { return w.ref.UID }
