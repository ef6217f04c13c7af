package runtime

import (
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// expectationsTimeout is when an expectation is given up: by then the cache has
// seen the object, or its event was lost. The value is upstream's.
const expectationsTimeout = 5 * time.Minute

// Expectations remember, by controller key, the creations and deletions that
// were asked for and that the cache has not shown yet. While there are any, the
// cache must not be trusted to say how many dependents there are.
type Expectations struct {
	now func() time.Time

	mu   sync.Mutex
	keys map[string]*expected
}

type expected struct {
	creations int
	deletions map[types.UID]struct{}
	since     time.Time
}

// NewExpectations returns an empty set. now gives the time.
func NewExpectations(now func() time.Time) *Expectations {
	return &Expectations{now: now, keys: map[string]*expected{}}
}

// ExpectCreations is called before n objects are created for key.
func (e *Expectations) ExpectCreations(key string, n int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if n <= 0 {
		return
	}
	x := e.get(key)
	x.creations += n
	x.since = e.now()
}

// ExpectDeletion is called before the object with the UID is deleted for key.
func (e *Expectations) ExpectDeletion(key string, uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.get(key)
	x.deletions[uid] = struct{}{}
	x.since = e.now()
}

func (e *Expectations) get(key string) *expected {
	x := e.keys[key]
	if x == nil {
		x = &expected{deletions: map[types.UID]struct{}{}}
		e.keys[key] = x
	}
	return x
}

// CreationObserved is called when the cache shows a new object of key, or when
// its creation failed.
func (e *Expectations) CreationObserved(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.keys[key]; x != nil && x.creations > 0 {
		x.creations--
		e.tidy(key, x)
	}
}

// DeletionObserved is called when the cache shows the object of key gone or
// going, or when its deletion failed.
func (e *Expectations) DeletionObserved(key string, uid types.UID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if x := e.keys[key]; x != nil {
		delete(x.deletions, uid)
		e.tidy(key, x)
	}
}

func (e *Expectations) tidy(key string, x *expected) {
	if x.creations == 0 && len(x.deletions) == 0 {
		delete(e.keys, key)
	}
}

// Satisfied reports whether the cache shows all that was asked for, or has had
// long enough to.
func (e *Expectations) Satisfied(key string) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	x := e.keys[key]
	if x == nil {
		return true
	}
	if e.now().Sub(x.since) > expectationsTimeout {
		delete(e.keys, key)
		return true
	}
	return false
}

// Forget drops what is known of key, for an owner that is gone.
func (e *Expectations) Forget(key string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.keys, key)
}
