package runtime

import (
	"fmt"

	"k8s.io/client-go/tools/cache"
)

// Index finds the objects of an informer by a value made of each. The objects
// are shared and must not be changed.
type Index[T any] struct {
	indexer cache.Indexer
	name    string
}

// NewIndex adds an index to an informer, once for all that ask for the name. f
// returns the values that an object is found by. Names must be the same for the
// same f only, over all controllers that share the informer.
func NewIndex[T any](informer cache.SharedIndexInformer, name string, f func(T) []string) (Index[T], error) {
	name = "tripod-" + name
	x := Index[T]{informer.GetIndexer(), name}
	if _, ok := x.indexer.GetIndexers()[name]; ok {
		return x, nil
	}
	err := informer.AddIndexers(cache.Indexers{name: func(o any) ([]string, error) {
		if obj, ok := o.(T); ok {
			return f(obj), nil
		}
		return nil, nil
	}})
	if err != nil {
		// Two controllers may be built at once and add it both.
		if _, ok := x.indexer.GetIndexers()[name]; !ok {
			return x, fmt.Errorf("index by %s: %w", name, err)
		}
	}
	return x, nil
}

// Get returns the objects with the value.
func (x Index[T]) Get(value string) []T {
	objs, err := x.indexer.ByIndex(x.name, value)
	if err != nil {
		panic(err) // only for an unknown index
	}
	out := make([]T, 0, len(objs))
	for _, o := range objs {
		out = append(out, o.(T))
	}
	return out
}
