package etcdapi

import (
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// gRPC would refuse the same answers, but only after it has encoded them.
var (
	errLargeRead   = status.Error(codes.ResourceExhausted, "etcdserver: the answer is larger than a message can be: set a limit and read on from the last key, or use RangeStream")
	errLargeAnswer = status.Error(codes.ResourceExhausted, "etcdserver: the request was applied, but its answer is larger than a message can be: ask for less of what was there before")
	errLargeEvents = status.Error(codes.ResourceExhausted, "etcdserver: the events of one revision are larger than a message can be: watch with fragments")
)

// kvOverhead is more than a key-value, a header or what else is small takes in
// a message beside keys and values, in bytes.
const kvOverhead = 64

// size is about how large an answer is; it is never below.
type size struct{ bytes int }

func (z size) add(kvs []*mvccpb.KeyValue) size {
	for _, kv := range kvs {
		z.bytes += len(kv.GetKey()) + len(kv.GetValue()) + kvOverhead
	}
	return z
}

func rangeSize(r *pb.RangeResponse) size { return size{}.add(r.GetKvs()) }

func txnSize(t *pb.TxnResponse) (z size) {
	for _, op := range t.GetResponses() {
		z.bytes += kvOverhead + rangeSize(op.GetResponseRange()).bytes
		z = z.add(op.GetResponseDeleteRange().GetPrevKvs())
		if p := op.GetResponsePut().GetPrevKv(); p != nil {
			z = z.add([]*mvccpb.KeyValue{p})
		}
		z.bytes += txnSize(op.GetResponseTxn()).bytes
	}
	return z
}

func eventsSize(events []*mvccpb.Event) (z size) {
	for _, e := range events {
		z.bytes += 3*kvOverhead + len(e.Kv.GetKey()) + len(e.Kv.GetValue()) + len(e.PrevKv.GetKey()) + len(e.PrevKv.GetValue())
	}
	return z
}

// fits tells whether an answer fits one message.
func (s *Server) fits(z size) bool { return z.bytes+kvOverhead <= s.cfg.MaxResponseBytes }
