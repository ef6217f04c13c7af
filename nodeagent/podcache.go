package nodeagent

import (
	"strconv"
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podCache holds the pods bound to this node: as the API last told them, and
// with the newest status the agent computed. Its pods are not changed.
type podCache struct {
	mu   sync.RWMutex
	byID map[types.UID]*podEntry
}

type podEntry struct {
	api  *v1.Pod
	view *v1.Pod
}

func newPodCache() *podCache { return &podCache{byID: map[types.UID]*podEntry{}} }

func (c *podCache) all() []*v1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*v1.Pod, 0, len(c.byID))
	for _, e := range c.byID {
		out = append(out, e.view)
	}
	return out
}

// get returns the pod with the status the agent computed.
func (c *podCache) get(uid types.UID) *v1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := c.byID[uid]; e != nil {
		return e.view
	}
	return nil
}

// told stores what the API told of a pod; older news than what is held is
// dropped. It returns what is held then.
func (c *podCache) told(p *v1.Pod) *v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.byID[p.UID]
	if e == nil {
		c.byID[p.UID] = &podEntry{api: p, view: p}
		return p
	}
	if older(p, e.api) {
		return e.api
	}
	e.api = p
	view := p.DeepCopy()
	view.Status = e.view.Status
	e.view = view
	return p
}

// older compares resource versions, which are numbers that grow with each
// change; where they are not, what comes later is newer.
func older(a, b *v1.Pod) bool {
	x, err1 := strconv.ParseUint(a.ResourceVersion, 10, 64)
	y, err2 := strconv.ParseUint(b.ResourceVersion, 10, 64)
	return err1 == nil && err2 == nil && x < y
}

// computed stores a status the agent made.
func (c *podCache) computed(uid types.UID, st v1.PodStatus) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := c.byID[uid]; e != nil {
		view := e.api.DeepCopy()
		view.Status = st
		e.view = view
	}
}

func (c *podCache) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, uid)
}
