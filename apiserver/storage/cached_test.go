package storage_test

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/apis/example"
	"k8s.io/apiserver/pkg/features"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/cacher"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/client-go/tools/cache"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func podAttrs(obj runtime.Object) (labels.Set, fields.Set, error) {
	pod, ok := obj.(*example.Pod)
	if !ok {
		return nil, nil, errors.New("not a pod")
	}
	return pod.Labels, fields.Set{
		"metadata.name":      pod.Name,
		"metadata.namespace": pod.Namespace,
		"spec.nodeName":      pod.Spec.NodeName,
		"spec.restartPolicy": string(pod.Spec.RestartPolicy),
		"status.phase":       string(pod.Status.Phase),
	}, nil
}

// newCached puts a watch cache on a rig's storage and waits until it is filled.
func newCached(t *testing.T, key func(string, runtime.Object) (string, error)) (*rig, kstorage.Interface) {
	t.Helper()
	r := newRig(t, func(o *rigOptions) { o.transformer = identity.NewEncryptCheckTransformer() })
	nodeName := func(obj runtime.Object) string { return obj.(*example.Pod).Spec.NodeName }
	front, err := cacher.NewCacherFromConfig(cacher.Config{
		Storage:             r.storage,
		Versioner:           kstorage.APIObjectVersioner{},
		GroupResource:       pods,
		EventsHistoryWindow: cacher.DefaultEventFreshDuration,
		ResourcePrefix:      "/pods/",
		KeyFunc:             func(obj runtime.Object) (string, error) { return key("/pods/", obj) },
		GetAttrsFunc:        podAttrs,
		NewFunc:             newPod,
		NewListFunc:         newPodList,
		IndexerFuncs:        kstorage.IndexerFuncs{"spec.nodeName": nodeName},
		Indexers: &cache.Indexers{
			"f:spec.nodeName":      func(obj any) ([]string, error) { return []string{nodeName(obj.(runtime.Object))}, nil },
			"f:metadata.namespace": func(obj any) ([]string, error) { return []string{obj.(*example.Pod).Namespace}, nil },
		},
		Codec: r.codec,
	})
	if err != nil {
		t.Fatal(err)
	}
	delegator := cacher.NewCacheDelegator(front, r.storage)
	t.Cleanup(func() { delegator.Stop(); front.Stop() })
	if err := front.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	return r, delegator
}

// paced is a storage whose updates end when the watch cache has them: our store is so
// near that 21 of them may be over before a watcher of a busy machine runs at all,
// which the cache takes for a watcher that hangs.
type paced struct{ kstorage.Interface }

func (p paced) GuaranteedUpdate(ctx context.Context, key string, out runtime.Object, ignoreNotFound bool,
	pre *kstorage.Preconditions, update kstorage.UpdateFunc, cached runtime.Object) error {
	if err := p.Interface.GuaranteedUpdate(ctx, key, out, ignoreNotFound, pre, update, cached); err != nil {
		return err
	}
	return p.Get(ctx, key, kstorage.GetOptions{ResourceVersion: out.(*example.Pod).ResourceVersion}, newPod())
}

// TestSuiteCached is upstream's suite with the stock watch cache in front, as
// the API server uses it.
func TestSuiteCached(t *testing.T) {
	cached := func(f func(context.Context, *testing.T, kstorage.Interface)) func(*testing.T) {
		return func(t *testing.T) {
			_, s := newCached(t, kstorage.NamespaceKeyFunc)
			f(context.Background(), t, s)
		}
	}
	for name, f := range map[string]func(*testing.T){
		"CreateWithTTL":                      cached(storagetesting.RunTestCreateWithTTL),
		"CreateWithKeyExist":                 cached(storagetesting.RunTestCreateWithKeyExist),
		"Get":                                cached(storagetesting.RunTestGet),
		"UnconditionalDelete":                cached(storagetesting.RunTestUnconditionalDelete),
		"ConditionalDelete":                  cached(storagetesting.RunTestConditionalDelete),
		"DeleteWithSuggestion":               cached(storagetesting.RunTestDeleteWithSuggestion),
		"DeleteWithSuggestionAndConflict":    cached(storagetesting.RunTestDeleteWithSuggestionAndConflict),
		"DeleteWithConflict":                 cached(storagetesting.RunTestDeleteWithConflict),
		"DeleteWithSuggestionOfDeleted":      cached(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		"ValidateDeletionWithSuggestion":     cached(storagetesting.RunTestValidateDeletionWithSuggestion),
		"PreconditionalDeleteWithSuggestion": cached(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		"ListPaging":                         cached(storagetesting.RunTestListPaging),
		"GetListRecursivePrefix":             cached(storagetesting.RunTestGetListRecursivePrefix),
		"KeySchema":                          cached(storagetesting.RunTestKeySchema),
		"NamespaceScopedList":                cached(storagetesting.RunTestNamespaceScopedList),
		"GuaranteedUpdateWithTTL":            cached(storagetesting.RunTestGuaranteedUpdateWithTTL),
		"GuaranteedUpdateWithConflict":       cached(storagetesting.RunTestGuaranteedUpdateWithConflict),
		"GuaranteedUpdateSuggestionConflict": cached(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),
		"Watch":                              cached(storagetesting.RunTestWatch),
		"DeleteTriggerWatch":                 cached(storagetesting.RunTestDeleteTriggerWatch),
		"WatchFromNonZero":                   cached(storagetesting.RunTestWatchFromNonZero),
		"DelayedWatchDelivery": cached(func(ctx context.Context, t *testing.T, s kstorage.Interface) {
			storagetesting.RunTestDelayedWatchDelivery(ctx, t, paced{s})
		}),
		"WatcherTimeout":              cached(storagetesting.RunTestWatcherTimeout),
		"WatchDeleteEventHasLatestRV": cached(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		"WatchInitializationSignal":   cached(storagetesting.RunTestWatchInitializationSignal),
		"NamespaceScopedWatch":        cached(storagetesting.RunTestNamespaceScopedWatch),
		"SendInitialEventsBackward":   cached(storagetesting.RunSendInitialEventsBackwardCompatibility),
		"BookmarksHaveCorrectRV":      cached(storagetesting.RunTestOptionalWatchBookmarksWithCorrectResourceVersion),
		"WatchDispatchBookmarkEvents": cached(func(ctx context.Context, t *testing.T, s kstorage.Interface) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, s, true)
		}),
		"ListContinuation": cached(func(ctx context.Context, t *testing.T, s kstorage.Interface) {
			storagetesting.RunTestListContinuation(ctx, t, s, func(*testing.T, uint64, uint64) {})
		}),
		"ClusterScopedWatch": func(t *testing.T) {
			_, s := newCached(t, kstorage.NoNamespaceKeyFunc)
			storagetesting.RunTestClusterScopedWatch(context.Background(), t, s)
		},
		"GetListNonRecursive": func(t *testing.T) {
			r, s := newCached(t, kstorage.NamespaceKeyFunc)
			storagetesting.RunTestGetListNonRecursive(context.Background(), t, r.increaseRV, s)
		},
		"ConsistentList": func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.ListFromCacheSnapshot, true)
			r, s := newCached(t, kstorage.NamespaceKeyFunc)
			storagetesting.RunTestConsistentList(context.Background(), t, s, r.increaseRV, true, true, true)
		},
	} {
		t.Run(name, f)
	}
}
