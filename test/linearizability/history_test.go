package linearizability

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/time/rate"

	"go.etcd.io/etcd/tests/v3/robustness/client"
	"go.etcd.io/etcd/tests/v3/robustness/identity"
	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
	"go.etcd.io/etcd/tests/v3/robustness/traffic"
	"go.etcd.io/etcd/tests/v3/robustness/validate"
)

// load is a kind of traffic; all are etcd's.
type load struct {
	name    string
	traffic traffic.Traffic
}

var loads = []load{
	{"put", traffic.EtcdPut},
	{"put, delete, lease", traffic.EtcdPutDeleteLease},
	{"delete", traffic.EtcdDelete},
	{"kubernetes", traffic.Kubernetes},
	{"kubernetes create and delete", traffic.KubernetesCreateDelete},
}

// profile is how much of it: etcd's own for slow machines, since what is judged is order
// under faults, and the time to judge grows with the calls whose outcome is open.
var profile = traffic.Profile{
	KeyValue:   &traffic.KeyValue{MaximalQPS: 120, BurstableQPS: 120, MemberClientCount: 4, ClusterClientCount: 1, MaxNonUniqueRequestConcurrency: 3},
	Watch:      &traffic.Watch{MemberClientCount: 3, ClusterClientCount: 1, RevisionOffsetRange: traffic.Range{Min: -100, Max: 100}},
	Compaction: &traffic.Compaction{Period: 300 * time.Millisecond},
}

// plan is what a history is made of.
type plan struct {
	seed   uint64
	binary string
	load   load
	faults []fault
	count  int           // of faults to inject
	rest   time.Duration // about this long between faults
	flags  []string      // more flags for the servers
	disk   diskFaults    // what the servers' disks are like when nothing is broken
	dir    string        // is made, and removed after a history without violation
	// export reads the requests from the data directories of members and of former members.
	export func(now, before []string) (exported, error)
}

// verdict is what a history came to.
type verdict struct {
	operations, failed, events int
	requests                   int // in the log
	snapshots                  int // that a member got in place of the log
	faults                     map[string]int
	notInjected                int // faults for which too much else was broken
	// violation is a broken guarantee; undecided is set when porcupine gave up.
	violation error
	undecided bool
	dir       string // where everything about a violation is
}

const (
	// settleFor is how long a healed cluster may take to answer, and a watch to catch up.
	settleFor = time.Minute
	// judgeFor bounds porcupine.
	judgeFor = 3 * time.Minute
)

// run makes one history and judges it. An error means that there is no verdict.
func (p plan) run(ctx context.Context) (v verdict, err error) {
	v = verdict{faults: map[string]int{}, dir: p.dir}
	lg, done, err := prepare(p)
	if err != nil {
		return v, err
	}
	defer done()
	h, err := p.observe(ctx, lg, &v)
	if err != nil {
		return v, err
	}
	p.judge(lg, h, &v)
	if v.violation == nil && !v.undecided {
		return v, os.RemoveAll(p.dir)
	}
	return v, nil
}

// prepare makes the directory of a plan, and opens its log.
func prepare(p plan) (lg *zap.Logger, done func(), err error) {
	if err := os.MkdirAll(p.dir, 0o700); err != nil {
		return nil, nil, err
	}
	f, err := os.OpenFile(filepath.Join(p.dir, "test.log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	enc := zap.NewDevelopmentEncoderConfig()
	lg = zap.New(zapcore.NewCore(zapcore.NewConsoleEncoder(enc), zapcore.AddSync(f), zap.InfoLevel))
	lg.Info("plan", zap.Uint64("seed", p.seed), zap.String("load", p.load.name), zap.Int("faults", p.count))
	return lg, func() { f.Close() }, nil
}

// history is what the clients saw and what the servers' logs hold.
type history struct {
	reports []report.ClientReport
	log     exported
}

// observe makes a history. What can be judged only while the servers run is judged here.
func (p plan) observe(ctx context.Context, lg *zap.Logger, v *verdict) (h history, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	began, cancelBegan := context.WithTimeout(ctx, settleFor)
	defer cancelBegan()
	c, err := startCluster(began, lg, p)
	if err != nil {
		return h, fmt.Errorf("start the cluster (see %s): %w", p.dir, err)
	}
	defer c.close()
	h.reports, err = p.record(ctx, lg, c, v)
	if err != nil {
		return h, err
	}
	c.end()
	v.violation = errors.Join(v.violation, c.panicked())
	var now, before []string
	for _, m := range c.slots {
		last := len(m.dirs) - 1
		now, before = append(now, m.dirs[last]), append(before, m.dirs[:last]...)
	}
	h.log, err = p.export(now, before)
	if err != nil {
		v.violation = errors.Join(v.violation, fmt.Errorf("read the raft logs: %w", err))
	}
	return h, nil
}

// record drives clients and faults, and returns what the clients saw. What they can see
// only while the servers run is checked here.
func (p plan) record(ctx context.Context, lg *zap.Logger, c *cluster, v *verdict) ([]report.ClientReport, error) {
	base, ids := time.Now(), identity.NewIDProvider()
	set := client.NewSet(ids, base)
	defer set.Close()
	endpoints := c.endpoints()
	if err := traffic.CheckEmptyDatabaseAtStart(ctx, lg, endpoints, set); err != nil {
		return nil, err
	}

	watches := client.NewSet(ids, base)
	defer watches.Close()
	last := make(chan struct{}) // closed when lastRevision is known
	var lastRevision int64
	watched := make(chan error, members)
	wctx, stopWatches := context.WithCancel(ctx)
	defer stopWatches()
	for _, e := range endpoints {
		cl, err := watches.NewClient([]string{e})
		if err != nil {
			return nil, err
		}
		go func() { watched <- watchAll(wctx, cl, last, &lastRevision) }()
	}

	var wg sync.WaitGroup
	finish := make(chan struct{})
	limiter := rate.NewLimiter(rate.Limit(profile.KeyValue.MaximalQPS), profile.KeyValue.BurstableQPS)
	keys, objects := traffic.NewKeyStore(10, "key"), traffic.NewKubernetesStorage()
	err := errors.Join(
		traffic.SimulateKeyValueTraffic(ctx, &wg, profile.KeyValue, endpoints, set, p.load.traffic, traffic.RunTrafficLoopParam{
			QPSLimiter: limiter, IDs: ids, LeaseIDStorage: identity.NewLeaseIDStorage(),
			NonUniqueRequestConcurrencyLimiter: traffic.NewConcurrencyLimiter(profile.KeyValue.MaxNonUniqueRequestConcurrency),
			KeyStore:                           keys, Storage: objects, Finish: finish,
		}),
		traffic.SimulateWatchTraffic(ctx, &wg, profile.Watch, endpoints, set, p.load.traffic, traffic.RunWatchLoopParam{
			Config: *profile.Watch, QPSLimiter: limiter, KeyStore: keys, Storage: objects, Finish: finish, Logger: lg,
		}),
		traffic.SimulateCompactionTraffic(ctx, &wg, profile.Compaction, endpoints, set, p.load.traffic, traffic.RunCompactLoopParam{
			Period: profile.Compaction.Period, Finish: finish,
		}),
	)
	if err == nil {
		err = p.inject(ctx, lg, c, v)
	}
	if err == nil {
		p.settle(ctx, lg, c, v, "answer", func(ctx context.Context) error { return c.healthy(ctx) })
		hold(ctx, 500*time.Millisecond) // traffic on a sound cluster
	}
	close(finish)
	wg.Wait()
	if err != nil {
		return nil, err
	}

	// The validators need a last write that succeeded.
	writer, err := set.NewClient(endpoints)
	if err != nil {
		return nil, err
	}
	n := 0
	p.settle(ctx, lg, c, v, "take a write", func(ctx context.Context) error {
		return poll(ctx, func(ctx context.Context) error {
			n++
			_, err := writer.Put(ctx, "tombstone", fmt.Sprint(n))
			return err
		})
	})
	reports := set.Reports()
	lastRevision = report.OperationsMaxRevision(reports)
	close(last)
	p.settle(ctx, lg, c, v, "agree", func(ctx context.Context) error { return c.agree(ctx, lastRevision) })
	p.settle(ctx, lg, c, v, "tell watches", func(ctx context.Context) error {
		for range members {
			select {
			case err := <-watched:
				if err != nil {
					return err
				}
			case <-ctx.Done():
				return fmt.Errorf("a watch of everything did not reach revision %d", lastRevision)
			}
		}
		return nil
	})
	stopWatches()
	return slices.Concat(reports, watches.Reports()), nil
}

// settle waits for what a healed cluster must do within settleFor. If it does not, that is a
// violation; the servers are made to write down what they are doing, and start anew, so
// that the rest can still be judged.
func (p plan) settle(ctx context.Context, lg *zap.Logger, c *cluster, v *verdict, what string, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(ctx, settleFor)
	defer cancel()
	err := f(ctx)
	if err == nil {
		return
	}
	lg.Error("the healed cluster hangs", zap.String("in", what), zap.Error(err))
	v.violation = errors.Join(v.violation, fmt.Errorf("the healed cluster does not %s within %v: %w", what, settleFor, err))
	for _, m := range c.slots {
		m.proc.signal(syscall.SIGQUIT)
	}
}

// watchAll watches everything from the first revision on, resumes where it was cut off, and
// returns nil when it has come to the last revision, once that is known.
func watchAll(ctx context.Context, c *client.RecordingClient, known <-chan struct{}, last *int64) error {
	defer c.Close()
	seen := int64(1)
	done := func() bool {
		select {
		case <-known:
			return seen >= *last
		default:
			return false
		}
	}
	for ctx.Err() == nil {
		wctx, cancel := context.WithCancel(ctx)
		w := c.Watch(wctx, "", seen+1, true, true, false)
		for open := true; open; {
			select {
			case <-time.After(100 * time.Millisecond):
				c.RequestProgress(wctx)
			case r, ok := <-w:
				if err := r.Err(); err != nil && !r.Canceled {
					cancel()
					return fmt.Errorf("watch of everything: %w", err)
				}
				open = ok && !r.Canceled
				seen = max(seen, r.CompactRevision)
				if n := len(r.Events); n > 0 {
					seen = r.Events[n-1].Kv.ModRevision
				}
			}
			if done() {
				cancel()
				return nil
			}
		}
		cancel()
		hold(ctx, 20*time.Millisecond)
	}
	return fmt.Errorf("watch of everything: %w", ctx.Err())
}

// inject injects the planned number of faults, now and then two at once.
func (p plan) inject(ctx context.Context, lg *zap.Logger, c *cluster, v *verdict) error {
	r := rand.New(rand.NewPCG(p.seed, 0))
	total := 0
	for _, f := range p.faults {
		total += f.weight
	}
	pick := func() fault {
		n := r.IntN(total)
		for _, f := range p.faults {
			if n -= f.weight; n < 0 {
				return f
			}
		}
		panic("the weights do not add up")
	}
	hold(ctx, between(r, p.rest/2, p.rest*3/2))
	for i := 0; i < p.count; {
		both := 1
		if i+1 < p.count && r.IntN(4) == 0 {
			both = 2
		}
		var wg sync.WaitGroup
		var mu sync.Mutex
		errs := make([]error, both)
		for j := range both {
			f, own := pick(), rand.New(rand.NewPCG(p.seed, uint64(i+j+1)))
			lg.Info("fault", zap.String("kind", f.name), zap.Int("number", i+j+1))
			wg.Go(func() {
				begin := time.Now()
				err := f.inject(ctx, c, own)
				lg.Info("fault is over", zap.String("kind", f.name), zap.Duration("took", time.Since(begin)), zap.Error(err))
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err == nil:
					v.faults[f.name]++
				case errors.Is(err, errNotInjected):
					v.notInjected++
				default:
					errs[j] = fmt.Errorf("fault %q: %w", f.name, err)
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		i += both
		hold(ctx, between(r, p.rest/2, p.rest*3/2))
	}
	lg.Info("faults are over")
	return nil
}

// panicked looks for the end of a server that nothing explains.
func (c *cluster) panicked() error {
	var errs []error
	for _, m := range c.slots {
		b, err := os.ReadFile(m.proc.log)
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, "failed to save current term") {
				continue // raft's way to end when its disk takes no term: what a failing disk is to do
			}
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") {
				errs = append(errs, fmt.Errorf("member %d: %s", m.slot, strings.TrimSpace(line)))
			}
		}
	}
	return errors.Join(errs...)
}

// judge gives the history to etcd's validators.
func (p plan) judge(lg *zap.Logger, h history, v *verdict) {
	for _, r := range h.reports {
		v.events += r.WatchEventCount()
		for _, op := range r.KeyValue {
			v.operations++
			if op.Output.(model.MaybeEtcdResponse).Error != "" {
				v.failed++
			}
		}
	}
	v.requests, v.snapshots = len(h.log.requests), h.log.snapshots
	result, err := h.validate(lg, p.load.traffic.ExpectUniqueRevision())
	if s := result.Linearization.Status; s == validate.Timeout || s == validate.DeadlineExceeded {
		v.undecided, err = true, nil
	}
	v.violation = errors.Join(v.violation, err)
	if v.violation == nil && !v.undecided {
		return
	}
	if err := keep(lg, p.dir, h.reports, result); err != nil {
		lg.Error("what was found could not be kept", zap.Error(err))
	}
	lg.Error("violation", zap.Uint64("seed", p.seed), zap.Error(v.violation), zap.Bool("undecided", v.undecided))
}

// validate calls etcd's validators, which panic on what they do not expect, such as an
// event of a revision that no request in the log made.
func (h history) validate(lg *zap.Logger, uniqueRevisions bool) (r validate.RobustnessResult, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("the validators panicked: %v", p)
		}
	}()
	if len(h.log.requests) == 0 {
		return r, errors.New("no request is in the raft logs: watches cannot be judged")
	}
	if err := h.uncalledRevokes(); err != nil {
		return r, err
	}
	r = validate.ValidateAndReturnVisualize(lg, validate.Config{ExpectRevisionUnique: uniqueRevisions}, h.reports, h.log.requests, judgeFor)
	return r, r.Error()
}

// uncalledRevokes finds leases that ended without a client having asked for it.
func (h history) uncalledRevokes() error {
	asked := map[int64]bool{}
	for _, r := range h.reports {
		for _, op := range r.KeyValue {
			if req := op.Input.(model.EtcdRequest); req.Type == model.LeaseRevoke {
				asked[req.LeaseRevoke.LeaseID] = true
			}
		}
	}
	for _, req := range h.log.requests {
		if req.Type == model.LeaseRevoke && !asked[req.LeaseRevoke.LeaseID] {
			return fmt.Errorf("lease %x ended, though no client revoked it and its time was not over", req.LeaseRevoke.LeaseID)
		}
	}
	return nil
}

// keep writes the clients' reports and porcupine's picture beside the servers' files.
func keep(lg *zap.Logger, dir string, reports []report.ClientReport, result validate.RobustnessResult) error {
	to := filepath.Join(dir, "report")
	r, err := report.NewTestReport(lg, to, nil, &report.TrafficDetail{})
	if err != nil {
		return err
	}
	r.SetClientReports(reports)
	if err := r.SaveEtcdData(); err != nil {
		return err
	}
	if result.Linearization.Model.Init == nil {
		return nil
	}
	return porcupine.VisualizePath(result.Linearization.Model, result.Linearization.Info, filepath.Join(to, "history.html"))
}
