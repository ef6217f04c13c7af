package garbagecollector

import (
	"slices"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
)

// object is what the graph knows of one. Values are copied out of the graph;
// their slices must not be changed.
type object struct {
	uid             types.UID
	kind            schema.GroupVersionKind
	resource        schema.GroupVersionResource
	namespace, name string
	owners          []metav1.OwnerReference
	deleting        bool
	foreground      bool // being deleted, and waiting for its dependents
	orphan          bool // being deleted, and its dependents are to be let go
}

// job is a look at one object that has become due.
type job struct {
	uid    types.UID
	orphan bool
}

// graph holds the observed objects. It is safe for concurrent use.
type graph struct {
	mu       sync.Mutex
	objects  map[types.UID]object
	children map[types.UID]map[types.UID]struct{} // by the owner's UID, observed or not
	gone     *lru.Cache                           // UIDs known to be gone for ever
}

// goneSize bounds the memory of UIDs that are gone; one that is forgotten costs
// a read of the API server.
const goneSize = 10000

func newGraph() *graph {
	return &graph{objects: map[types.UID]object{}, children: map[types.UID]map[types.UID]struct{}{}, gone: lru.New(goneSize)}
}

// put takes in an object's present state.
func (g *graph) put(o object) []job {
	g.mu.Lock()
	defer g.mu.Unlock()
	before, known := g.objects[o.uid]
	g.objects[o.uid] = o
	var jobs []job
	if !known || !sameOwners(before.owners, o.owners) {
		for _, ref := range before.owners {
			if !hasOwner(o.owners, ref.UID) {
				g.unlink(ref.UID, o.uid)
			}
			// It may have been what a foreground deletion waited for.
			if g.objects[ref.UID].foreground {
				jobs = append(jobs, job{uid: ref.UID})
			}
		}
		for _, ref := range o.owners {
			if g.children[ref.UID] == nil {
				g.children[ref.UID] = map[types.UID]struct{}{}
			}
			g.children[ref.UID][o.uid] = struct{}{}
		}
		if len(o.owners) > 0 {
			jobs = append(jobs, job{uid: o.uid})
		}
	}
	if o.foreground && !before.foreground {
		jobs = append(jobs, job{uid: o.uid})
		for child := range g.children[o.uid] {
			jobs = append(jobs, job{uid: child})
		}
	}
	if o.orphan && !before.orphan {
		jobs = append(jobs, job{uid: o.uid, orphan: true})
	}
	return jobs
}

// remove takes in that an object is gone for ever.
func (g *graph) remove(uid types.UID) []job {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.gone.Add(uid, struct{}{})
	o, known := g.objects[uid]
	if !known {
		return nil
	}
	delete(g.objects, uid)
	var jobs []job
	for _, ref := range o.owners {
		g.unlink(ref.UID, uid)
		if g.objects[ref.UID].foreground {
			jobs = append(jobs, job{uid: ref.UID})
		}
	}
	for child := range g.children[uid] {
		jobs = append(jobs, job{uid: child})
	}
	return jobs
}

// drop forgets the objects of a resource that is watched no longer. That says
// nothing about whether they exist.
func (g *graph) drop(resource schema.GroupVersionResource) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for uid, o := range g.objects {
		if o.resource != resource {
			continue
		}
		delete(g.objects, uid)
		for _, ref := range o.owners {
			g.unlink(ref.UID, uid)
		}
	}
}

func (g *graph) unlink(owner, child types.UID) {
	delete(g.children[owner], child)
	if len(g.children[owner]) == 0 {
		delete(g.children, owner)
	}
}

func (g *graph) get(uid types.UID) (object, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.objects[uid]
	return o, ok
}

// dependents returns the observed objects that name uid as an owner.
func (g *graph) dependents(uid types.UID) []object {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []object
	for child := range g.children[uid] {
		if o, ok := g.objects[child]; ok {
			out = append(out, o)
		}
	}
	return out
}

// isGone reports whether an object with the UID is known to have been deleted.
func (g *graph) isGone(uid types.UID) bool {
	_, ok := g.gone.Get(uid)
	return ok
}

// ownerState is what is known of an owner that a dependent names.
type ownerState int

const (
	unknown ownerState = iota // ask the API server
	alive
	absent
	waiting // being deleted in the foreground: it waits for its dependents
)

// owner tells from the graph alone how the owner is that a dependent in the
// namespace names.
func (g *graph) owner(namespace string, ref metav1.OwnerReference) ownerState {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, ok := g.objects[ref.UID]
	switch {
	case !ok && g.goneLocked(ref.UID):
		return absent
	case !ok, o.name != ref.Name, o.kind.Kind != ref.Kind, o.namespace != "" && o.namespace != namespace:
		return unknown
	case group(ref.APIVersion) != o.kind.Group:
		return unknown
	case o.foreground:
		return waiting
	}
	return alive
}

func (g *graph) goneLocked(uid types.UID) bool {
	_, ok := g.gone.Get(uid)
	return ok
}

func group(apiVersion string) string {
	gv, err := schema.ParseGroupVersion(apiVersion)
	if err != nil {
		return "\x00" // no group has this name
	}
	return gv.Group
}

func hasOwner(refs []metav1.OwnerReference, uid types.UID) bool {
	return slices.ContainsFunc(refs, func(r metav1.OwnerReference) bool { return r.UID == uid })
}

func sameOwners(a, b []metav1.OwnerReference) bool {
	return slices.EqualFunc(a, b, func(x, y metav1.OwnerReference) bool {
		return x.UID == y.UID && x.Name == y.Name && x.Kind == y.Kind && x.APIVersion == y.APIVersion && blocks(x) == blocks(y)
	})
}

// blocks reports whether the dependent keeps a foreground deletion of its owner
// from ending.
func blocks(ref metav1.OwnerReference) bool {
	return ref.BlockOwnerDeletion != nil && *ref.BlockOwnerDeletion
}
