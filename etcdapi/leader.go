package etcdapi

import (
	"context"
	"errors"
	"sync"
	"time"
	"unicode/utf8"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
)

// maxLeaderless is how many looks in vain end a stream that requires a leader.
const maxLeaderless = 3

// checkMetadata checks what a client says of itself in ctx, and returns
// whether it requires a leader.
func checkMetadata(ctx context.Context) (needsLeader bool, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	if v := md.Get(rpctypes.MetadataClientAPIVersionKey); len(v) > 0 && !utf8.ValidString(v[0]) {
		return false, rpctypes.ErrGRPCInvalidClientAPIVersion
	}
	v := md.Get(rpctypes.MetadataRequireLeaderKey)
	return len(v) > 0 && v[0] == rpctypes.MetadataHasLeader, nil
}

func (s *Server) unaryLeader(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	needsLeader, err := checkMetadata(ctx)
	if err != nil {
		return nil, err
	}
	if needsLeader && s.cfg.Cluster.Leader() == 0 {
		return nil, rpctypes.ErrGRPCNoLeader
	}
	return handle(ctx, r)
}

// unaryLearner and streamLearner refuse what etcd's learners refuse. They are for
// a Front alone: this member could answer, and its own process may ask.
func (s *Server) unaryLearner(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if s.cfg.Cluster.Learner() && !learnersAnswer(r) {
		return nil, rpctypes.ErrGRPCNotSupportedForLearner
	}
	return handle(ctx, r)
}

func (s *Server) streamLearner(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if s.cfg.Cluster.Learner() && info.FullMethod != pb.Maintenance_Snapshot_FullMethodName {
		return rpctypes.ErrGRPCNotSupportedForLearner
	}
	return handle(srv, stream)
}

// learnersAnswer tells whether a learner may answer r: what concerns it alone.
func learnersAnswer(r any) bool {
	switch r := r.(type) {
	case *pb.StatusRequest, *healthpb.HealthCheckRequest:
		return true
	case *pb.RangeRequest:
		return r.Serializable
	}
	return false
}

func (s *Server) streamLeader(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	needsLeader, err := checkMetadata(stream.Context())
	if err != nil {
		return err
	}
	if !needsLeader {
		return handle(srv, stream)
	}
	if s.cfg.Cluster.Leader() == 0 {
		return rpctypes.ErrGRPCNoLeader
	}
	ctx, cancel := context.WithCancelCause(stream.Context())
	defer cancel(nil)
	defer s.led.add(cancel)()
	return handle(srv, streamWithContext{ServerStream: stream, ctx: ctx})
}

type streamWithContext struct {
	grpc.ServerStream
	ctx context.Context
}

func (s streamWithContext) Context() context.Context { return s.ctx }

// streamEnd returns what to tell a client whose stream's context has ended.
func streamEnd(ctx context.Context) error {
	if cause := context.Cause(ctx); errors.Is(cause, rpctypes.ErrGRPCNoLeader) {
		return cause
	}
	return ctx.Err()
}

// leaderWatch ends the streams that require a leader when there is none for
// some time. Its goroutine runs while there are such streams.
type leaderWatch struct {
	cluster  Cluster
	interval time.Duration

	mu      sync.Mutex
	streams map[*context.CancelCauseFunc]struct{}
	stop    chan struct{}
}

func (l *leaderWatch) init(c Cluster, interval time.Duration) {
	l.cluster, l.interval = c, interval
	l.streams = map[*context.CancelCauseFunc]struct{}{}
}

// add has cancel called when the leader is lost; the function it returns takes
// that back.
func (l *leaderWatch) add(cancel context.CancelCauseFunc) (remove func()) {
	key := &cancel
	l.mu.Lock()
	defer l.mu.Unlock()
	l.streams[key] = struct{}{}
	if l.stop == nil {
		l.stop = make(chan struct{})
		go l.run(l.stop)
	}
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.streams, key)
		if len(l.streams) == 0 && l.stop != nil {
			close(l.stop)
			l.stop = nil
		}
	}
}

func (l *leaderWatch) run(stop chan struct{}) {
	t := time.NewTicker(l.interval)
	defer t.Stop()
	missing := 0
	for {
		select {
		case <-stop:
			return
		case <-t.C:
		}
		if l.cluster.Leader() != 0 {
			missing = 0
			continue
		}
		if missing++; missing < maxLeaderless {
			continue
		}
		l.mu.Lock()
		for cancel := range l.streams {
			(*cancel)(rpctypes.ErrGRPCNoLeader)
		}
		l.mu.Unlock()
	}
}
