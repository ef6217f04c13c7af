package storage_test

import (
	"context"
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/apitesting"
	"k8s.io/apimachinery/pkg/runtime"
	examplev1 "k8s.io/apiserver/pkg/apis/example/v1"
	"k8s.io/apiserver/pkg/features"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/etcd3"
	storagetesting "k8s.io/apiserver/pkg/storage/testing"
	"k8s.io/apiserver/pkg/storage/value/encrypt/identity"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

// plain adapts the suite's tests that want nothing but a storage.
func plain(f func(context.Context, *testing.T, kstorage.Interface)) func(*testing.T) {
	return func(t *testing.T) { f(context.Background(), t, newRig(t).storage) }
}

// on adapts those that want more of the rig.
func on(f func(context.Context, *testing.T, *rig), o ...func(*rigOptions)) func(*testing.T) {
	return func(t *testing.T) { f(context.Background(), t, newRig(t, o...)) }
}

// TestSuite is upstream's own suite of a storage's meaning, on the store with
// nothing between but upstream's etcd3 storage and this package's client.
func TestSuite(t *testing.T) {
	for name, f := range map[string]func(*testing.T){
		"CreateWithTTL":                       plain(storagetesting.RunTestCreateWithTTL),
		"CreateWithKeyExist":                  plain(storagetesting.RunTestCreateWithKeyExist),
		"Get":                                 plain(storagetesting.RunTestGet),
		"UnconditionalDelete":                 plain(storagetesting.RunTestUnconditionalDelete),
		"ConditionalDelete":                   plain(storagetesting.RunTestConditionalDelete),
		"DeleteWithSuggestion":                plain(storagetesting.RunTestDeleteWithSuggestion),
		"DeleteWithSuggestionAndConflict":     plain(storagetesting.RunTestDeleteWithSuggestionAndConflict),
		"DeleteWithConflict":                  plain(storagetesting.RunTestDeleteWithConflict),
		"DeleteWithSuggestionOfDeleted":       plain(storagetesting.RunTestDeleteWithSuggestionOfDeletedObject),
		"ValidateDeletionWithSuggestion":      plain(storagetesting.RunTestValidateDeletionWithSuggestion),
		"ValidateDeletionOnlySuggestionValid": plain(storagetesting.RunTestValidateDeletionWithOnlySuggestionValid),
		"PreconditionalDeleteWithSuggestion":  plain(storagetesting.RunTestPreconditionalDeleteWithSuggestion),
		"PreconditionalDeleteSuggestionPass":  plain(storagetesting.RunTestPreconditionalDeleteWithOnlySuggestionPass),
		"ListPaging":                          plain(storagetesting.RunTestListPaging),
		"GetListRecursivePrefix":              plain(storagetesting.RunTestGetListRecursivePrefix),
		"KeySchema":                           plain(storagetesting.RunTestKeySchema),
		"NamespaceScopedList":                 plain(storagetesting.RunTestNamespaceScopedList),
		"GuaranteedUpdateWithTTL":             plain(storagetesting.RunTestGuaranteedUpdateWithTTL),
		"GuaranteedUpdateWithConflict":        plain(storagetesting.RunTestGuaranteedUpdateWithConflict),
		"GuaranteedUpdateSuggestionConflict":  plain(storagetesting.RunTestGuaranteedUpdateWithSuggestionAndConflict),

		"Watch":                              plain(storagetesting.RunTestWatch),
		"ClusterScopedWatch":                 plain(storagetesting.RunTestClusterScopedWatch),
		"NamespaceScopedWatch":               plain(storagetesting.RunTestNamespaceScopedWatch),
		"DeleteTriggerWatch":                 plain(storagetesting.RunTestDeleteTriggerWatch),
		"WatchFromNonZero":                   plain(storagetesting.RunTestWatchFromNonZero),
		"DelayedWatchDelivery":               plain(storagetesting.RunTestDelayedWatchDelivery),
		"WatchContextCancel":                 plain(storagetesting.RunTestWatchContextCancel),
		"WatcherTimeout":                     plain(storagetesting.RunTestWatcherTimeout),
		"WatchDeleteEventHasLatestRV":        plain(storagetesting.RunTestWatchDeleteEventObjectHaveLatestRV),
		"WatchInitializationSignal":          plain(storagetesting.RunTestWatchInitializationSignal),
		"SendInitialEventsBackward":          plain(storagetesting.RunSendInitialEventsBackwardCompatibility),
		"WatchSemantics":                     plain(storagetesting.RunWatchSemantics),
		"WatchSemanticInitialEventsExtended": plain(storagetesting.RunWatchSemanticInitialEventsExtended),
		"WatchListMatchSingle":               plain(storagetesting.RunWatchListMatchSingle),

		"Create": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestCreate(ctx, t, r.storage, r.stored)
		}),
		"GetListNonRecursive": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestGetListNonRecursive(ctx, t, r.increaseRV, r.storage)
		}),
		"CompactRevision": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestCompactRevision(ctx, t, r.storage, r.increaseRV, r.compact)
		}),
		"ListContinuation": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestListContinuation(ctx, t, r.storage, r.calls)
		}),
		"ListPaginationRareObject": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestListPaginationRareObject(ctx, t, r.storage, r.calls)
		}),
		"ListContinuationWithFilter": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestListContinuationWithFilter(ctx, t, r.storage, r.calls)
		}),
		"ListInconsistentContinuation": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestListInconsistentContinuation(ctx, t, r.storage, r.compact)
		}),
		"ListResourceVersionMatch": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestListResourceVersionMatch(ctx, t, modifiable{r.storage, r})
		}),
		"GuaranteedUpdate": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestGuaranteedUpdate(ctx, t, modifiable{r.storage, r}, r.stored)
		}),
		"GuaranteedUpdateChecksStoredData": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestGuaranteedUpdateChecksStoredData(ctx, t, modifiable{r.storage, r})
		}),
		"TransformationFailure": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestTransformationFailure(ctx, t, modifiable{r.storage, r})
		}),
		"WatchFromZero": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestWatchFromZero(ctx, t, r.storage, r.compact)
		}),
		"WatchError": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestWatchError(ctx, t, modifiable{r.storage, r})
		}),
		"WatchErrorBlocksFurtherEvents": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunWatchErrorIsBlockingFurtherEvents(ctx, t, modifiable{r.storage, r})
		}),
		"ProgressNotify": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunOptionalTestProgressNotify(ctx, t, r.storage, r.increaseRV)
		}),
		"WatchDispatchBookmarkEvents": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestWatchDispatchBookmarkEvents(ctx, t, r.storage, false)
		}),
		"Stats": on(func(ctx context.Context, t *testing.T, r *rig) {
			storagetesting.RunTestStats(ctx, t, r.storage, r.codec, r.transformer, false)
		}),
	} {
		t.Run(name, f)
	}
}

// TestSuiteLists runs the suite's largest tests with paged and with streamed
// ranges.
func TestSuiteLists(t *testing.T) {
	for _, stream := range []bool{false, true} {
		t.Run(fmt.Sprintf("stream=%v", stream), func(t *testing.T) {
			featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.EtcdRangeStream, stream)
			t.Run("List", on(func(ctx context.Context, t *testing.T, r *rig) {
				storagetesting.RunTestList(ctx, t, r.storage, r.compact, false, r.lists)
			}))
			t.Run("ConsistentList", on(func(ctx context.Context, t *testing.T, r *rig) {
				storagetesting.RunTestConsistentList(ctx, t, r.storage, r.increaseRV, false, true, false)
			}))
			t.Run("WatchSemantics", plain(storagetesting.RunWatchSemantics))
			t.Run("WatchSemanticInitialEventsExtended", plain(storagetesting.RunWatchSemanticInitialEventsExtended))
			t.Run("WatchListMatchSingle", plain(storagetesting.RunWatchListMatchSingle))
		})
	}
}

// TestSuiteUnreadable covers objects that cannot be decrypted or decoded.
func TestSuiteUnreadable(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, true)
	etcd3.TestOnlySetFatalOnDecodeError(t, false)
	transformer := func() (*failing, func(*rigOptions)) {
		f := &failing{Transformer: identity.NewEncryptCheckTransformer()}
		return f, func(o *rigOptions) { o.transformer = f }
	}
	codec := func() (*failing, func(*rigOptions)) {
		f := &failing{Codec: apitesting.TestCodec(codecs, examplev1.SchemeGroupVersion)}
		return f, func(o *rigOptions) { o.codec = struct{ runtime.Codec }{f} }
	}
	t.Run("DeleteWithConflictAndMissingError", func(t *testing.T) {
		f, o := codec()
		storagetesting.RunTestDeleteWithConflictAndMissingExpectedTransformOrDecodeError(context.Background(), t, newRig(t, o).storage, f.on.Store)
	})
	t.Run("DeleteExpectedTransformError", func(t *testing.T) {
		f, o := transformer()
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(context.Background(), t, newRig(t, o).storage, f.on.Store)
	})
	t.Run("DeleteExpectedDecodeError", func(t *testing.T) {
		f, o := codec()
		storagetesting.RunTestDeleteExpectedTransformOrDecodeError(context.Background(), t, newRig(t, o).storage, f.on.Store)
	})
	t.Run("DeleteWithSuggestionAndMissingError", on(func(ctx context.Context, t *testing.T, r *rig) {
		storagetesting.RunTestDeleteWithSuggestionAndMissingExpectedTransformOrDecodeError(ctx, t, r.storage)
	}))
	t.Run("GetListWithErrorAggregation", on(func(ctx context.Context, t *testing.T, r *rig) {
		front := etcd3.NewStoreWithUnsafeCorruptObjectDeletion(r.storage, pods)
		storagetesting.RunTestGetListWithErrorAggregation(ctx, t, modifiable{front, r}, corrupt())
	}))
	t.Run("WatchWithUnsafeDelete", on(func(ctx context.Context, t *testing.T, r *rig) {
		storagetesting.RunTestWatchWithUnsafeDelete(ctx, t, modifiable{r.storage, r}, corrupt())
	}))
}

// TestSuiteListStopsAtUnreadable: without unsafe deletion the first unreadable
// object ends a list.
func TestSuiteListStopsAtUnreadable(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.AllowUnsafeMalformedObjectDeletion, false)
	r := newRig(t)
	storagetesting.RunTestGetListWithoutErrorAggregation(context.Background(), t, modifiable{r.storage, r}, corrupt())
}
