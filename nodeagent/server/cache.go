package server

import (
	"sync"
	"time"
)

// ttlCache remembers answers for a time each, at most max of them.
type ttlCache[K comparable, V any] struct {
	mu  sync.Mutex
	m   map[K]cached[V]
	max int
}

type cached[V any] struct {
	v     V
	until time.Time
}

func newTTLCache[K comparable, V any](limit int) *ttlCache[K, V] {
	return &ttlCache[K, V]{m: map[K]cached[V]{}, max: limit}
}

func (c *ttlCache[K, V]) get(k K) (V, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.m[k]
	if !ok || time.Now().After(e.until) {
		delete(c.m, k)
		var zero V
		return zero, false
	}
	return e.v, true
}

func (c *ttlCache[K, V]) put(k K, v V, ttl time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.m) >= c.max {
		now := time.Now()
		for k, e := range c.m {
			if now.After(e.until) {
				delete(c.m, k)
			}
		}
		if len(c.m) >= c.max {
			clear(c.m) // more live answers than a node ever needs: ask again
		}
	}
	c.m[k] = cached[V]{v, time.Now().Add(ttl)}
}
