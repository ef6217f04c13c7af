package storage

import (
	"fmt"
	"reflect"
	"sync"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	"k8s.io/apiserver/pkg/registry/generic"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	"k8s.io/apiserver/pkg/storage/etcd3"
	"k8s.io/apiserver/pkg/storage/storagebackend"
	"k8s.io/apiserver/pkg/storage/storagebackend/factory"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
)

// Wrap makes g's resources live in the Backend. Whether a resource has a watch
// cache stays g's decision.
func (b *Backend) Wrap(g generic.RESTOptionsGetter) generic.RESTOptionsGetter {
	return &getter{b: b, next: g}
}

type getter struct {
	b    *Backend
	next generic.RESTOptionsGetter
}

func (g *getter) GetRESTOptions(r schema.GroupResource, example runtime.Object) (generic.RESTOptions, error) {
	o, err := g.next.GetRESTOptions(r, example)
	if err != nil {
		return o, err
	}
	o.Decorator = g.b.decorator(cached(o.Decorator))
	return o, nil
}

// cached says whether d puts a watch cache before the storage: upstream knows
// two decorators, and the one without is a plain function.
func cached(d generic.StorageDecorator) bool {
	return reflect.ValueOf(d).Pointer() != reflect.ValueOf(generic.UndecoratedStorage).Pointer()
}

func (b *Backend) decorator(withCache bool) generic.StorageDecorator {
	return func(
		c *storagebackend.ConfigForResource,
		prefix string,
		keyFunc func(runtime.Object) (string, error),
		newFunc, newListFunc func() runtime.Object,
		attrs kstorage.AttrFunc,
		triggers kstorage.IndexerFuncs,
		indexers *cache.Indexers,
	) (kstorage.Interface, factory.DestroyFunc, error) {
		raw, destroy, err := b.Storage(c, newFunc, newListFunc, prefix)
		if err != nil || !withCache {
			return raw, destroy, err
		}
		front, err := cacher.NewCacherFromConfig(cacher.Config{
			Storage:             raw,
			Versioner:           kstorage.APIObjectVersioner{},
			GroupResource:       c.GroupResource,
			EventsHistoryWindow: c.EventsHistoryWindow,
			ResourcePrefix:      prefix,
			KeyFunc:             keyFunc,
			NewFunc:             newFunc,
			NewListFunc:         newListFunc,
			GetAttrsFunc:        attrs,
			IndexerFuncs:        triggers,
			Indexers:            indexers,
			Codec:               c.Codec,
		})
		if err != nil {
			destroy()
			return nil, nil, fmt.Errorf("watch cache of %s: %w", c.GroupResource, err)
		}
		delegator := cacher.NewCacheDelegator(front, raw)
		var once sync.Once
		return delegator, func() {
			once.Do(func() {
				delegator.Stop()
				front.Stop()
				destroy()
			})
		}, nil
	}
}

// Storage is upstream's etcd3 store for one resource on the Backend, and what
// ends it, which may be called more than once: registries share storage among
// subresources.
func (b *Backend) Storage(c *storagebackend.ConfigForResource, newFunc, newListFunc func() runtime.Object, prefix string) (kstorage.Interface, factory.DestroyFunc, error) {
	client, closeClient := b.Client()
	client.KV = etcd3.NewETCDLatencyTracker(client.KV)

	transformer := c.Transformer
	if transformer == nil {
		transformer = identity.NewEncryptCheckTransformer()
	}
	versioner := kstorage.APIObjectVersioner{}
	decoder := etcd3.NewDefaultDecoder(c.Codec, versioner)
	unsafeDelete := utilfeature.DefaultFeatureGate.Enabled(features.AllowUnsafeMalformedObjectDeletion)
	if unsafeDelete {
		transformer = etcd3.WithCorruptObjErrorHandlingTransformer(transformer)
		decoder = etcd3.WithCorruptObjErrorHandlingDecoder(decoder)
	}
	s, err := etcd3.New(client, b, c.Codec, newFunc, newListFunc, c.Prefix, prefix, c.GroupResource, transformer, c.LeaseManagerConfig, decoder, versioner)
	if err != nil {
		closeClient()
		return nil, nil, fmt.Errorf("storage of %s: %w", c.GroupResource, err)
	}
	var once sync.Once
	destroy := func() {
		once.Do(func() {
			s.Close()
			closeClient()
		})
	}
	if unsafeDelete {
		return etcd3.NewStoreWithUnsafeCorruptObjectDeletion(s, c.GroupResource), destroy, nil
	}
	return s, destroy, nil
}
