package etcdapi

import (
	"context"
	"errors"
	"io"
	"math"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/tripod-cluster/tripod/store"
)

const (
	// autoWatchID in a request asks the server to choose.
	autoWatchID = 0
	// noWatchID stands for all watches of a stream, or for none.
	noWatchID = -1
)

type watchServer struct {
	s *Server
	pb.UnsafeWatchServer
}

// watchStream is one client stream with any number of watches.
type watchStream struct {
	s      *Server
	stream pb.Watch_WatchServer
	done   chan struct{} // closed when the stream ends
	wg     sync.WaitGroup

	// mu serializes what is sent, with the reading of the watchers whose
	// events are sent: so nothing overtakes an event.
	mu      sync.Mutex
	watches map[int64]*watch
	of      map[*store.Watcher]*watch
	nextID  int64
	broken  bool // a send failed

	// ready has the watches with something to tell, which pump sends.
	ready *store.ReadyList
	// encoded tells whether what is sent goes through our codec.
	encoded bool
}

// watch is one watch of a stream; its fields are guarded by the stream's mu.
type watch struct {
	id       int64
	w        *store.Watcher
	start    int64 // as requested
	progress bool  // wants notifications
	fragment bool
	quiet    bool // nothing was sent since the last tick
}

func (ws *watchServer) Watch(stream pb.Watch_WatchServer) error {
	st := &watchStream{
		s: ws.s, stream: stream, done: make(chan struct{}), watches: map[int64]*watch{}, of: map[*store.Watcher]*watch{},
		ready: store.NewReadyList(), encoded: grpc.ServerTransportStreamFromContext(stream.Context()) != nil,
	}
	st.wg.Go(st.pump)
	defer st.close()
	received := make(chan error, 1)
	// Recv may block on after the context has ended, when the context is not
	// the stream's own; it ends with the stream.
	go func() { received <- st.receive() }()

	ticker := time.NewTicker(ws.s.cfg.ProgressInterval)
	defer ticker.Stop()
	for {
		select {
		case err := <-received:
			if err == nil {
				received = nil // the client only listens from now on
				continue
			}
			if errors.Is(err, context.Canceled) {
				return rpctypes.ErrGRPCWatchCanceled
			}
			return err
		case <-ticker.C:
			st.tick()
		case <-ws.s.stop:
			return rpctypes.ErrGRPCStopped
		case <-stream.Context().Done():
			err := streamEnd(stream.Context())
			if errors.Is(err, context.Canceled) {
				err = rpctypes.ErrGRPCWatchCanceled
			}
			return err
		}
	}
}

// close ends all watches and waits for pump.
func (st *watchStream) close() {
	close(st.done)
	st.mu.Lock()
	st.broken = true
	for _, w := range st.watches {
		w.w.Close()
	}
	st.mu.Unlock()
	st.wg.Wait()
}

// receive handles requests until the client has no more (nil) or is gone.
func (st *watchStream) receive() error {
	for {
		r, err := st.stream.Recv()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		switch {
		case r.GetCreateRequest() != nil:
			st.create(r.GetCreateRequest())
		case r.GetCancelRequest() != nil:
			st.cancel(r.GetCancelRequest().WatchId)
		case r.GetProgressRequest() != nil:
			st.progressAll()
		}
	}
}

func (st *watchStream) revision() int64 { return st.s.cfg.Store.Revision() }

func (st *watchStream) create(r *pb.WatchCreateRequest) {
	if len(r.Key) == 0 {
		r.Key = []byte{0}
	}
	denied := st.denied(r)
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.broken {
		return
	}
	refuse := func(why string) {
		st.send(&pb.WatchResponse{Header: st.s.header(st.revision()), WatchId: noWatchID, Created: true, Canceled: true, CancelReason: why})
	}
	// The texts are etcd's.
	switch {
	case r.StartRevision < 0:
		refuse(rpctypes.ErrCompacted.Error())
		return
	case denied != "":
		refuse(denied)
		return
	case emptyRange(r.Key, r.RangeEnd):
		refuse("mvcc: watcher range is empty")
		return
	}
	id := r.WatchId
	if id == autoWatchID {
		for st.watches[st.nextID] != nil {
			st.nextID++
		}
		id = st.nextID
		st.nextID++
	} else if st.watches[id] != nil {
		refuse("mvcc: duplicate watch ID provided on the WatchStream")
		return
	}
	o := store.WatchOptions{Key: r.Key, RangeEnd: r.RangeEnd, StartRevision: r.StartRevision, PrevKV: r.PrevKv, Ready: st.ready}
	for _, f := range r.Filters {
		o.NoPut = o.NoPut || f == pb.WatchCreateRequest_NOPUT
		o.NoDelete = o.NoDelete || f == pb.WatchCreateRequest_NODELETE
	}
	// Taken before the watch begins: a client that loses the stream before its
	// first event goes on from here, and must not miss any.
	revision := st.revision()
	sw, err := st.s.cfg.Store.Watch(o)
	if err != nil {
		refuse(err.Error())
		return
	}
	w := &watch{id: id, w: sw, start: r.StartRevision, progress: r.ProgressNotify, fragment: r.Fragment, quiet: true}
	st.watches[id], st.of[sw] = w, w
	st.send(&pb.WatchResponse{Header: st.s.header(revision), WatchId: id, Created: true})
}

// denied returns why the client may not watch what it asks for; empty when it
// may.
func (st *watchStream) denied(r *pb.WatchCreateRequest) string {
	permit := func(who store.AuthInfo) error { return st.s.cfg.Store.Auth().PermitRange(who, r.Key, r.RangeEnd) }
	err := st.s.permitted(st.stream.Context(), permit, func() error { return nil })
	if err == nil {
		return ""
	}
	return err.Error()
}

// pump sends the events of all watches as they come, a batch of each in turn.
func (st *watchStream) pump() {
	var ws []*store.Watcher
	for {
		select {
		case <-st.ready.Wake():
		case <-st.done:
			return
		}
		ws = st.ready.Take(ws)
		for _, sw := range ws {
			st.mu.Lock()
			if w := st.of[sw]; w != nil {
				st.sendNext(w, math.MaxInt64)
			}
			st.mu.Unlock()
		}
	}
}

// drain sends what w has to tell now, up to a revision, and returns how far it
// has come; false when the watch has ended. mu is held.
func (st *watchStream) drain(w *watch, until int64) (revision int64, ok bool) {
	for {
		revision, more, ok := st.sendNext(w, until)
		if !more {
			return revision, ok
		}
	}
}

// sendNext sends one batch of w, if there is one, of events up to a revision, and returns how far w has
// come and whether there may be more; not ok when the watch has ended. mu is
// held.
func (st *watchStream) sendNext(w *watch, until int64) (revision int64, more, ok bool) {
	if st.broken || st.watches[w.id] != w {
		return 0, false, false
	}
	b, err := w.w.NextUntil(until)
	if err != nil {
		st.end(w, err)
		return 0, false, false
	}
	if len(b.Events) == 0 {
		return b.Revision, false, true
	}
	w.quiet = false
	st.sendEvents(w, b)
	return b.Revision, true, true
}

// end tells the client that w is over because of err. mu is held.
func (st *watchStream) end(w *watch, err error) {
	st.forget(w)
	resp := &pb.WatchResponse{Header: st.s.header(st.revision()), WatchId: w.id, Canceled: true}
	var c *store.CompactedError
	if errors.As(err, &c) {
		resp.CompactRevision = c.CompactRevision
	} else {
		resp.CancelReason = err.Error()
	}
	st.send(resp)
}

func (st *watchStream) forget(w *watch) {
	delete(st.watches, w.id)
	delete(st.of, w.w)
	w.w.Close()
}

func (st *watchStream) cancel(id int64) {
	st.mu.Lock()
	defer st.mu.Unlock()
	w := st.watches[id]
	if w == nil {
		return
	}
	st.forget(w)
	st.send(&pb.WatchResponse{Header: st.s.header(st.revision()), WatchId: id, Canceled: true})
}

// progressAll answers a progress request: one response for the whole stream,
// after all events up to its revision were sent. There is none while a watch
// waits for a revision that is still to come.
func (st *watchStream) progressAll() {
	st.mu.Lock()
	defer st.mu.Unlock()
	// No watch is drained further than that: a write that comes meanwhile would
	// else be sent to one before a progress that is behind it.
	revision := st.revision()
	any := false
	for _, w := range st.watches {
		if w.start > revision {
			return
		}
		if _, ok := st.drain(w, revision); ok {
			any = true
		}
	}
	if any {
		st.send(&pb.WatchResponse{Header: st.s.header(revision), WatchId: noWatchID})
	}
}

// tick sends the notifications that quiet watches have asked for.
func (st *watchStream) tick() {
	st.mu.Lock()
	defer st.mu.Unlock()
	for _, w := range st.watches {
		if !w.progress {
			continue
		}
		if w.quiet {
			if revision, ok := st.drain(w, math.MaxInt64); ok && revision >= w.start {
				st.send(&pb.WatchResponse{Header: st.s.header(revision), WatchId: w.id})
			}
		}
		w.quiet = true
	}
}

// send sends r; after a failure the stream is of no use. mu is held.
func (st *watchStream) send(r *pb.WatchResponse) {
	if !st.broken && st.stream.Send(r) != nil {
		st.broken = true
	}
}

// sendEvents sends the events of b, split to the request limit where the client
// can put the parts together. mu is held.
func (st *watchStream) sendEvents(w *watch, b store.Batch) {
	if !w.fragment && !st.s.fits(eventsSize(b.Events)) {
		st.end(w, errLargeEvents)
		return
	}
	header := st.s.header(b.Revision)
	if !w.fragment || len(b.Events) < 2 {
		st.sendPart(header, w.id, b.Events, false)
		return
	}
	limit := st.s.cfg.MaxRequestBytes + requestOverhead - eventOverhead
	for rest := b.Events; len(rest) > 0; {
		n, size := 0, 0
		for n < len(rest) {
			size += eventSize(rest[n])
			if n > 0 && size >= limit {
				break
			}
			n++
		}
		st.sendPart(header, w.id, rest[:n:n], n < len(rest))
		rest = rest[n:]
	}
}

// sendPart sends one response with events. mu is held.
func (st *watchStream) sendPart(header *pb.ResponseHeader, id int64, events []*mvccpb.Event, fragment bool) {
	if !st.encoded {
		st.send(&pb.WatchResponse{Header: header, WatchId: id, Events: events, Fragment: fragment})
		return
	}
	if !st.broken && st.stream.SendMsg(st.s.events.response(header, id, events, fragment)) != nil {
		st.broken = true
	}
}

// eventOverhead is more than a response takes beside its events, in bytes.
const eventOverhead = 1 << 10

func eventSize(e *mvccpb.Event) int { return proto.Size(e) + 8 }
