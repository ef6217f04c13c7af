package job

import (
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// strippedPods are the pods whose finalizer this instance has removed and the
// cache still shows.
type strippedPods struct {
	mu   sync.Mutex
	uids map[types.UID]struct{}
}

func newStrippedPods() *strippedPods { return &strippedPods{uids: map[types.UID]struct{}{}} }

func (s *strippedPods) add(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.uids[uid] = struct{}{}
}

func (s *strippedPods) forget(uid types.UID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.uids, uid)
}

func (s *strippedPods) has(uid types.UID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.uids[uid]
	return ok
}
