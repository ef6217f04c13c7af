package storage

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/kubernetes"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// direct answers the five calls that the etcd3 store makes for Kubernetes.
// Values are handed over, never copied: the caller must not change what it
// puts, nor what it gets.
type direct struct {
	b  *Backend
	kv *kvClient
}

var _ kubernetes.Interface = (*direct)(nil)

func (d *direct) Get(ctx context.Context, key string, o kubernetes.GetOptions) (kubernetes.GetResponse, error) {
	resp, err := d.kv.Range(ctx, &pb.RangeRequest{Key: []byte(key), Revision: o.Revision, Limit: 1})
	if err != nil {
		return kubernetes.GetResponse{}, asStatus(ctx, err, false)
	}
	out := kubernetes.GetResponse{Revision: resp.Header.Revision}
	if len(resp.Kvs) == 1 {
		out.KV = resp.Kvs[0]
		return out, nil
	}
	// The root of a resource holds no object: whoever reads it wants the
	// current revision, to wait until a watch cache has come that far.
	d.kv.hub.reportProgress(key, out.Revision)
	return out, nil
}

func (d *direct) List(ctx context.Context, prefix string, o kubernetes.ListOptions) (kubernetes.ListResponse, error) {
	start := prefix
	if o.Continue != "" {
		start = o.Continue
	}
	resp, err := d.kv.Range(ctx, &pb.RangeRequest{
		Key:      []byte(start),
		RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)),
		Limit:    o.Limit,
		Revision: o.Revision,
	})
	if err != nil {
		return kubernetes.ListResponse{}, asStatus(ctx, err, false)
	}
	return kubernetes.ListResponse{Kvs: resp.Kvs, Count: resp.Count, Revision: resp.Header.Revision}, nil
}

// Count is read from the local store without a read index: it feeds metrics
// and the cost estimates of priority and fairness.
func (d *direct) Count(ctx context.Context, prefix string, _ kubernetes.CountOptions) (int64, error) {
	resp, err := d.kv.Range(ctx, &pb.RangeRequest{
		Key:          []byte(prefix),
		RangeEnd:     []byte(clientv3.GetPrefixRangeEnd(prefix)),
		CountOnly:    true,
		Serializable: true,
	})
	if err != nil {
		return 0, asStatus(ctx, err, false)
	}
	return resp.Count, nil
}

func (d *direct) OptimisticPut(ctx context.Context, key string, value []byte, rev int64, o kubernetes.PutOptions) (kubernetes.PutResponse, error) {
	k := []byte(key)
	resp, err := d.optimistic(ctx, k, rev, o.GetOnFailure, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{
		RequestPut: &pb.PutRequest{Key: k, Value: value, Lease: int64(o.LeaseID)},
	}})
	if err != nil {
		return kubernetes.PutResponse{}, err
	}
	return kubernetes.PutResponse{Succeeded: resp.ok, Revision: resp.revision, KV: resp.current}, nil
}

func (d *direct) OptimisticDelete(ctx context.Context, key string, rev int64, o kubernetes.DeleteOptions) (kubernetes.DeleteResponse, error) {
	k := []byte(key)
	resp, err := d.optimistic(ctx, k, rev, o.GetOnFailure, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{
		RequestDeleteRange: &pb.DeleteRangeRequest{Key: k},
	}})
	if err != nil {
		return kubernetes.DeleteResponse{}, err
	}
	return kubernetes.DeleteResponse{Succeeded: resp.ok, Revision: resp.revision, KV: resp.current}, nil
}

// outcome of an optimistic write; current is what stood in its way, when asked
// for and when there is such a key.
type outcome struct {
	ok       bool
	revision int64
	current  *mvccpb.KeyValue
}

// optimistic does op if key was last changed at rev (0: if there is no key).
func (d *direct) optimistic(ctx context.Context, key []byte, rev int64, get bool, op *pb.RequestOp) (outcome, error) {
	txn := &pb.TxnRequest{
		Compare: []*pb.Compare{{
			Key:         key,
			Target:      pb.Compare_MOD,
			Result:      pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
		}},
		Success: []*pb.RequestOp{op},
	}
	if get {
		txn.Failure = []*pb.RequestOp{{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: key}}}}
	}
	resp, err := proposed[*pb.TxnResponse](ctx, d.b, &pb.InternalRaftRequest{Txn: txn})
	if err != nil {
		return outcome{}, asStatus(ctx, err, true)
	}
	out := outcome{ok: resp.Succeeded, revision: resp.Header.Revision}
	if !out.ok && get {
		if len(resp.Responses) != 1 || resp.Responses[0].GetResponseRange() == nil {
			return outcome{}, fmt.Errorf("write of %q was refused without the current value", key)
		}
		if kvs := resp.Responses[0].GetResponseRange().Kvs; len(kvs) == 1 {
			out.current = kvs[0]
		}
	}
	return out, nil
}

// retryAfterSeconds is what a client is told to wait when there is no leader:
// an election takes about as long.
const retryAfterSeconds = 1

// asStatus gives err as etcd's client would, except for an absent leader and
// for time-outs, which become the status that says whether to try again.
func asStatus(ctx context.Context, err error, write bool) error {
	err = clientv3.ContextError(ctx, err)
	var e rpctypes.EtcdError
	if !errors.As(err, &e) {
		return err
	}
	switch e {
	case rpctypes.ErrNoLeader.(rpctypes.EtcdError):
		return unavailable("the store has no leader")
	case rpctypes.ErrTimeout.(rpctypes.EtcdError), rpctypes.ErrTimeoutDueToLeaderFail.(rpctypes.EtcdError), rpctypes.ErrStopped.(rpctypes.EtcdError):
		if !write {
			return unavailable("the store did not answer in time")
		}
		return apierrors.NewTimeoutError("the store did not confirm the write in time: it may or may not have been made", 0)
	}
	return err
}

func unavailable(message string) error {
	return &apierrors.StatusError{ErrStatus: metav1.Status{
		Status:  metav1.StatusFailure,
		Code:    http.StatusServiceUnavailable,
		Reason:  metav1.StatusReasonServiceUnavailable,
		Message: message,
		Details: &metav1.StatusDetails{RetryAfterSeconds: retryAfterSeconds},
	}}
}
