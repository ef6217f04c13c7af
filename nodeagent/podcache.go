package nodeagent

import (
	"sync"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// podCache holds the pods bound to this node as last told by the API, with
// the newest status the agent computed over it.
type podCache struct {
	mu   sync.RWMutex
	byID map[types.UID]*v1.Pod
}

func newPodCache() *podCache { return &podCache{byID: map[types.UID]*v1.Pod{}} }

func (c *podCache) all() []*v1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]*v1.Pod, 0, len(c.byID))
	for _, p := range c.byID {
		out = append(out, p)
	}
	return out
}

func (c *podCache) get(uid types.UID) *v1.Pod {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.byID[uid]
}

// put stores p and returns what was there before.
func (c *podCache) put(p *v1.Pod) *v1.Pod {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.byID[p.UID]
	c.byID[p.UID] = p
	return old
}

func (c *podCache) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.byID, uid)
}
