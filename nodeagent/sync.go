package nodeagent

import (
	"context"
	"hash/fnv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/tripod-cluster/tripod/nodeagent/cri"
)

const (
	listTimeout = 30 * time.Second
	listShare   = 20 // a listing may take one part in so many of the time
	// A runtime that took long to answer, on a busy host, must not leave the loop asleep for as long as makes the
	// node NotReady (stallAfter counts the listing too) and its pods unattended.
	longestPause = 10 * time.Second
	orphansEvery = time.Minute
)

// syncLoop lists the runtime's sandboxes and containers again and again, and
// wakes the worker of each pod where something changed. containerd 1.6 has no
// events, and with later ones a list of everything is what catches up with
// missed ones anyway. Once the API has told which pods there are, it also
// takes in hand what belongs to none.
func (a *Agent) syncLoop(ctx context.Context, synced func() bool) {
	last := map[types.UID]uint64{}
	var swept time.Time
	for ctx.Err() == nil {
		began := time.Now()
		seen, refs, err := a.list(ctx)
		a.lastSync.Store(time.Now().UnixNano())
		was := a.runtimeErr.Load()
		a.runtimeErr.Store(&err)
		switch {
		case err != nil:
			if was == nil || *was == nil {
				a.cfg.Logger.Error("container runtime not listed", "endpoint", a.cfg.CRIEndpoint, "err", err)
				a.node.Kick()
			}
		default:
			if was != nil && *was != nil {
				a.cfg.Logger.Info("container runtime answers", "endpoint", a.cfg.CRIEndpoint)
				a.node.Kick()
				a.everyWorker((*worker).poke)
			}
			for uid, sum := range seen {
				if last[uid] != sum {
					a.poke(uid)
				}
			}
			for uid := range last {
				if _, ok := seen[uid]; !ok {
					a.poke(uid)
				}
			}
			last = seen
			if synced() && time.Since(swept) > orphansEvery {
				a.orphans(refs)
				swept = time.Now()
			}
		}
		t := time.NewTimer(a.pause(time.Since(began), synced()))
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// pause is how long the loop rests after a listing that took so long. Until the
// API has told which pods there are, it does not rest longer than it must.
func (a *Agent) pause(took time.Duration, synced bool) time.Duration {
	if !synced {
		return a.cfg.SyncInterval
	}
	return max(a.cfg.SyncInterval, min(took*listShare, longestPause))
}

// list returns a sum over the states of each pod's sandboxes and containers.
func (a *Agent) list(ctx context.Context) (map[types.UID]uint64, map[types.UID]cri.Ref, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	boxes, err := a.runtime.ListPodSandbox(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	containers, err := a.runtime.ListContainers(ctx, nil)
	if err != nil {
		return nil, nil, err
	}
	sums, refs := map[types.UID]uint64{}, map[types.UID]cri.Ref{}
	// The order of a list means nothing: add, so that it does not count.
	note := func(labels map[string]string, id string, state int32) {
		r, ok := cri.RefOf(labels)
		if !ok {
			return
		}
		h := fnv.New64a()
		h.Write([]byte(id))
		h.Write([]byte{byte(state)})
		sums[r.UID] += h.Sum64()
		refs[r.UID] = r
	}
	for _, b := range boxes {
		note(b.Labels, b.Id, int32(b.State))
	}
	for _, c := range containers {
		note(c.Labels, c.Id, int32(c.State)+16)
	}
	return sums, refs, nil
}

// orphans ends what no pod of this node owns any more: sandboxes, files and
// cgroups of pods that went away while the agent was not running. Before the
// first list of pods it must not be called.
func (a *Agent) orphans(refs map[types.UID]cri.Ref) {
	for _, uid := range append(a.volumes.Pods(), a.cgroups.Pods()...) {
		if _, ok := refs[uid]; !ok {
			refs[uid] = cri.Ref{UID: uid}
		}
	}
	for uid, ref := range refs {
		a.mu.Lock()
		if _, ok := a.workers[uid]; !ok && a.spawn != nil {
			w := newWorker(a, ref)
			w.gone = true
			a.workers[uid] = w
			a.cfg.Logger.Info("ending what is left of a pod that is gone", "pod", ref.Namespace+"/"+ref.Name, "uid", uid)
			a.spawn(w)
		}
		a.mu.Unlock()
	}
}
