package etcdapi

import (
	"fmt"
	"math"
	"testing"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/protobuf/proto"
)

// What is put together of encoded parts reads as the message that it stands for.
func TestEncodedWatchResponse(t *testing.T) {
	kv := func(i int64) *mvccpb.KeyValue {
		return &mvccpb.KeyValue{Key: fmt.Appendf(nil, "key%d", i), Value: make([]byte, i), CreateRevision: i, ModRevision: i + 1, Version: 2, Lease: i % 3}
	}
	large := &mvccpb.KeyValue{Key: []byte("large"), Value: make([]byte, 2*cachedEventBytes), ModRevision: 9, Version: 1}
	c := newEventCache()
	for _, want := range []*pb.WatchResponse{
		{Header: &pb.ResponseHeader{ClusterId: math.MaxUint64, MemberId: math.MaxUint64, Revision: math.MaxInt64, RaftTerm: math.MaxUint64}, WatchId: math.MaxInt64, Fragment: true,
			Events: []*mvccpb.Event{{Kv: kv(1)}, {Kv: kv(2), PrevKv: kv(1)}}},
		{Header: &pb.ResponseHeader{ClusterId: 1, Revision: 7}, Events: []*mvccpb.Event{{Type: mvccpb.Event_DELETE, Kv: &mvccpb.KeyValue{Key: []byte("gone"), ModRevision: 7}}}},
		{Header: &pb.ResponseHeader{}, WatchId: -1, Events: []*mvccpb.Event{{Kv: large}, {Kv: &mvccpb.KeyValue{}}}},
		{Header: &pb.ResponseHeader{MemberId: 3}},
	} {
		for range 2 { // the second time from the cache
			b, err := newCodec().Marshal(c.response(want.Header, want.WatchId, want.Events, want.Fragment))
			if err != nil {
				t.Fatal(err)
			}
			var got pb.WatchResponse
			if err := newCodec().Unmarshal(b, &got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(want, &got) {
				t.Errorf("want %v, got %v", want, &got)
			}
		}
	}
}

// The same key-value with and without the one before it are two events, and so are two at one revision.
func TestEventCacheTellsEventsApart(t *testing.T) {
	c := newEventCache()
	prev := &mvccpb.KeyValue{Key: []byte("k"), Value: []byte("old"), ModRevision: 2, Version: 1}
	for i := range int64(3 * cachedEvents) {
		kv := &mvccpb.KeyValue{Key: []byte("k"), Value: fmt.Append(nil, i), ModRevision: 3, Version: 2}
		for _, e := range []*mvccpb.Event{{Kv: kv}, {Kv: kv, PrevKv: prev}, {Kv: kv}} {
			var got pb.WatchResponse
			if err := proto.Unmarshal(c.encode(e).ReadOnlyData(), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.Events) != 1 || !proto.Equal(got.Events[0], e) {
				t.Fatalf("want %v, got %v", e, got.Events)
			}
		}
	}
}

// BenchmarkWatchResponse encodes what a thousand watches get of one event.
func BenchmarkWatchResponse(b *testing.B) {
	h := &pb.ResponseHeader{ClusterId: math.MaxUint64, MemberId: math.MaxUint64, Revision: 1 << 30, RaftTerm: 7}
	events := []*mvccpb.Event{{Kv: &mvccpb.KeyValue{Key: make([]byte, 40), Value: make([]byte, 256), CreateRevision: 1 << 29, ModRevision: 1 << 30, Version: 5}}}
	codec := newCodec()
	run := func(name string, message func() any) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				m, err := codec.Marshal(message())
				if err != nil {
					b.Fatal(err)
				}
				m.Free()
			}
		})
	}
	c := newEventCache()
	run("once", func() any { return c.response(h, 77, events, false) })
	run("each", func() any { return &pb.WatchResponse{Header: h, WatchId: 77, Events: events} })
}
