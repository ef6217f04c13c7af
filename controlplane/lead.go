package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tripod-cluster/tripod/controllers"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/scheduling"
)

// stopWithin is how long the tasks of a term have to stop when it ends. A peer
// whose tasks do not stop ends its process: two leaders must not act for long.
const stopWithin = 15 * time.Second

// lead does what the leader does, from when this peer has become it until ctx
// ends. It returns when everything has stopped.
func (p *Peer) lead(ctx context.Context, term uint64) {
	log := p.log.With("term", term)
	log.Info("leading: scheduler and controllers start")
	reg := prometheus.NewRegistry()
	p.termMetrics.current.Store(reg)
	t := &leadership{peer: p, reg: reg}
	duties := t.duties()
	p.setLeadership(t)
	done := make(chan struct{})
	go func() {
		defer close(done)
		runAll(ctx, log, duties)
	}()
	<-ctx.Done()
	select {
	case <-done:
	case <-time.After(stopWithin):
		p.fatal(fmt.Errorf("the tasks of term %d did not stop within %v of its end", term, stopWithin))
	}
	p.setLeadership(nil)
	p.termMetrics.current.Store(nil)
	log.Info("no longer leading: scheduler and controllers have stopped")
}

// leadership is what runs in one term.
type leadership struct {
	peer    *Peer
	reg     *prometheus.Registry
	all     []*duty
	manager *controllers.Manager
	sched   *scheduling.Scheduler
}

func (t *leadership) duties() []*duty {
	t.all = []*duty{{name: "controllers-and-scheduler", run: t.runDeciders}}
	if t.peer.id.Cluster.VIP != "" {
		t.all = append(t.all, &duty{name: "virtual-address", run: func(ctx context.Context, ready func()) error {
			h, err := t.peer.vip()
			if err != nil {
				return err
			}
			if _, err := t.peer.awaitAPI(ctx); err != nil {
				return nil //nolint:nilerr // ctx has ended
			}
			ready()
			return h.Hold(ctx)
		}})
	}
	return t.all
}

// runDeciders runs the controllers and the scheduler on one set of caches. Each
// controller is supervised by the manager; an error here concerns them all.
func (t *leadership) runDeciders(ctx context.Context, ready func()) error {
	p := t.peer
	api, err := p.awaitAPI(ctx)
	if err != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	conf := rest.CopyConfig(api.LoopbackConfig())
	conf.UserAgent = "controld"
	client, err := kubernetes.NewForConfig(conf)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	ca, err := p.pki.Authority()
	if err != nil {
		return err
	}
	cidr, err := netip.ParsePrefix(p.id.Cluster.ClusterCIDR)
	if err != nil {
		return fmt.Errorf("cluster CIDR: %w", err)
	}
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTransform(dropManagedFields))
	usage, err := quotaUsage(factory)
	if err != nil {
		return err
	}
	sign, err := signAccountTokens(p.pki.SAKey())
	if err != nil {
		return err
	}
	check, err := policyCheck(conf)
	if err != nil {
		return err
	}
	limited := rest.CopyConfig(conf)
	if qps := p.cfg.ControllerQPS; qps > 0 {
		limited.QPS, limited.Burst = qps, cmp.Or(p.cfg.ControllerBurst, max(1, int(2*qps)))
	}
	m, err := controllers.New(controllers.Config{
		RestConfig: limited, Informers: factory, QuotaUsage: usage, SignAccountToken: sign, PolicyCheck: check,
		Signer: ca.Key, CACert: ca.CertPEM(), ClusterCIDR: cidr,
		NodeMonitorGracePeriod: time.Duration(p.cfg.NodeMonitorGracePeriod),
		Workers:                p.cfg.Workers, Log: p.log, Registerer: t.reg,
	})
	if err != nil {
		return err
	}
	s, err := scheduling.New(scheduling.Config{Client: client, Informers: factory, Profiles: p.profiles, Log: p.log, Registerer: t.reg})
	if err != nil {
		return err
	}
	p.mu.Lock()
	t.manager, t.sched = m, s
	p.mu.Unlock()
	ready()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ended := make(chan error, 2)
	run := func(name string, f func(context.Context) error) {
		defer func() {
			if r := recover(); r != nil {
				ended <- fmt.Errorf("%s: %w: %v", name, errPanic, r)
			}
		}()
		if err := f(ctx); err != nil {
			ended <- fmt.Errorf("%s: %w", name, err)
			return
		}
		ended <- nil
	}
	go run("controllers", m.Run)
	go run("scheduler", s.Run)
	first := <-ended
	cancel(first)
	second := <-ended
	factory.Shutdown()
	if first != nil {
		return first
	}
	return second
}

func (t *leadership) status() []peer.DutyStatus {
	var out []peer.DutyStatus
	for _, d := range t.all {
		out = append(out, d.status())
	}
	p := t.peer
	p.mu.Lock()
	m, s := t.manager, t.sched
	p.mu.Unlock()
	if s != nil {
		d := peer.DutyStatus{Name: "scheduler", Healthy: true}
		if err := s.Health(); err != nil {
			d.Healthy, d.Message = false, err.Error()
		}
		out = append(out, d)
	}
	if m != nil {
		for _, c := range m.Health() {
			out = append(out, peer.DutyStatus{Name: "controller/" + c.Name, Healthy: c.Healthy, Message: c.Message, Restarts: c.Restarts, LastError: c.LastError})
		}
	}
	return out
}
