package etcdapi

import (
	"hash/maphash"
	"sync/atomic"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"google.golang.org/grpc/encoding"
	_ "google.golang.org/grpc/encoding/proto" // registers what codec is based on
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's codec of protocol buffers, which also sends what was encoded
// before.
type codec struct{ encoding.CodecV2 }

func newCodec() codec { return codec{encoding.GetCodecV2("proto")} }

// Marshal encodes a message.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if e, ok := v.(encodedMessage); ok {
		return mem.BufferSlice(e), nil
	}
	return c.CodecV2.Marshal(v)
}

// encodedMessage is a message of gRPC in its encoded form.
type encodedMessage mem.BufferSlice

// Field numbers of etcd's rpc.proto.
const (
	fieldHeader, fieldWatchID, fieldFragment, fieldEvents = 1, 2, 7, 11
	fieldCluster, fieldMember, fieldRevision, fieldTerm   = 1, 2, 3, 4
)

const (
	// cachedEvents is how many encoded events are kept, and cachedEventBytes the
	// largest that is.
	cachedEvents     = 512
	cachedEventBytes = 32 << 10
)

// eventCache has an event encoded once for all watches that get it. It keeps the
// most recent ones; what it misses is encoded again.
type eventCache struct {
	seed  maphash.Seed
	slots [cachedEvents]atomic.Pointer[encodedEvent]
}

// encodedEvent is an event as a field of a WatchResponse. The store never changes a
// key-value, so the same pointers are the same event.
type encodedEvent struct {
	kv, prev *mvccpb.KeyValue
	field    mem.Buffer
}

func newEventCache() *eventCache { return &eventCache{seed: maphash.MakeSeed()} }

// encode returns e as a field of a WatchResponse; it is shared.
func (c *eventCache) encode(e *mvccpb.Event) mem.Buffer {
	n := maphash.Comparable(c.seed, e.Kv)
	if e.PrevKv != nil {
		n++
	}
	slot := &c.slots[n%cachedEvents]
	if x := slot.Load(); x != nil && x.kv == e.Kv && x.prev == e.PrevKv {
		return x.field
	}
	size := proto.Size(e)
	b := make([]byte, 0, size+2+protowire.SizeVarint(uint64(size)))
	b = protowire.AppendTag(b, fieldEvents, protowire.BytesType)
	b = protowire.AppendVarint(b, uint64(size))
	b, err := proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(b, e)
	if err != nil {
		// An event has only bytes and numbers, which always encode.
		panic("encode an event: " + err.Error())
	}
	field := mem.Buffer(mem.SliceBuffer(b))
	if len(b) <= cachedEventBytes {
		slot.Store(&encodedEvent{kv: e.Kv, prev: e.PrevKv, field: field})
	}
	return field
}

// response encodes the WatchResponse of some events.
func (c *eventCache) response(h *pb.ResponseHeader, id int64, events []*mvccpb.Event, fragment bool) encodedMessage {
	var header [44]byte // four tags and numbers of at most ten bytes
	hb := appendNumber(header[:0], fieldCluster, h.ClusterId)
	hb = appendNumber(hb, fieldMember, h.MemberId)
	hb = appendNumber(hb, fieldRevision, uint64(h.Revision))
	hb = appendNumber(hb, fieldTerm, h.RaftTerm)

	b := make([]byte, 0, len(hb)+2+11+2)
	b = protowire.AppendTag(b, fieldHeader, protowire.BytesType)
	b = protowire.AppendBytes(b, hb)
	b = appendNumber(b, fieldWatchID, uint64(id))
	if fragment {
		b = appendNumber(b, fieldFragment, 1)
	}
	m := make(encodedMessage, 1, 1+len(events))
	m[0] = mem.SliceBuffer(b)
	for _, e := range events {
		m = append(m, c.encode(e))
	}
	return m
}

// appendNumber appends a number, which is left out when it is 0.
func appendNumber(b []byte, field protowire.Number, v uint64) []byte {
	if v == 0 {
		return b
	}
	return protowire.AppendVarint(protowire.AppendTag(b, field, protowire.VarintType), v)
}
