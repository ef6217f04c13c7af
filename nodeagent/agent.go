package nodeagent

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

// stallAfter is how long the sync loop may take for one turn before Healthy
// reports it: one CRI call's timeout and a margin.
const stallAfter = 3 * time.Minute

// Agent runs the pods of one node. Make it with New, run it once.
type Agent struct {
	cfg      Config
	runtime  *cri.Client
	started  atomic.Bool
	pods     *podCache
	lastSync atomic.Int64 // unix nanoseconds of the sync loop's last turn
}

// New checks the configuration and makes an Agent. It talks to nothing yet:
// neither the runtime nor the API has to be up.
func New(cfg Config) (*Agent, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	rt, err := cri.Dial(cfg.CRIEndpoint)
	if err != nil {
		return nil, fmt.Errorf("node agent: %w", err)
	}
	return &Agent{cfg: cfg, runtime: rt, pods: newPodCache()}, nil
}

// Run runs the node until ctx ends, then returns with every goroutine
// stopped and every container left as it is.
func (a *Agent) Run(ctx context.Context) error {
	if !a.started.CompareAndSwap(false, true) {
		return errors.New("node agent: Run called twice")
	}
	a.lastSync.Store(time.Now().UnixNano())
	<-ctx.Done()
	return nil
}

// Healthy returns nil while the sync loop turns. It does not depend on the
// API or the runtime being reachable: a restart of the agent mends neither.
func (a *Agent) Healthy() error {
	last := a.lastSync.Load()
	if last == 0 {
		return errors.New("node agent: not running yet")
	}
	if d := time.Since(time.Unix(0, last)); d > stallAfter {
		return fmt.Errorf("node agent: sync loop has not turned for %s", d.Round(time.Second))
	}
	return nil
}
