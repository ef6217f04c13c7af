package etcdapi

import (
	"context"
	"slices"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/tripod-cluster/tripod/store"
)

// caller is who makes a request.
type caller struct {
	store.AuthInfo
	// trusted callers are this program itself: nothing is asked of them.
	trusted bool
}

type trustedKey struct{}

// TrustedGRPCServer is NewGRPCServer for callers that are this program itself,
// whatever users and roles say. Serve it only where nobody else can connect.
func (s *Server) TrustedGRPCServer(more ...grpc.ServerOption) *grpc.Server {
	trust := func(ctx context.Context) context.Context { return context.WithValue(ctx, trustedKey{}, true) }
	first := []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(func(ctx context.Context, r any, _ *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
			return handle(trust(ctx), r)
		}),
		grpc.ChainStreamInterceptor(func(srv any, stream grpc.ServerStream, _ *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
			return handle(srv, streamWithContext{ServerStream: stream, ctx: trust(stream.Context())})
		}),
	}
	return s.newGRPCServer(slices.Concat(first, s.ServerOptions(), more)...)
}

// caller finds out who makes the request of ctx: by its token, else, where
// client certificates stand for users, by the certificate. A token that is not
// known is ErrGRPCInvalidAuthToken. While authentication is not enabled
// everybody is nobody.
func (s *Server) caller(ctx context.Context) (caller, error) {
	auth := s.cfg.Store.Auth()
	if ctx.Value(trustedKey{}) != nil {
		return caller{trusted: true}, nil
	}
	if !auth.Enabled() {
		return caller{}, nil
	}
	md, _ := metadata.FromIncomingContext(ctx)
	tokens := md.Get(rpctypes.TokenFieldNameGRPC)
	if len(tokens) == 0 {
		tokens = md.Get(rpctypes.TokenFieldNameSwagger)
	}
	if len(tokens) > 0 {
		who, ok := s.tokens.info(ctx, strings.TrimPrefix(tokens[0], "Bearer "))
		if !ok {
			return caller{}, rpctypes.ErrGRPCInvalidAuthToken
		}
		return caller{AuthInfo: who}, nil
	}
	if !s.cfg.ClientCertAuth {
		return caller{}, nil
	}
	return caller{AuthInfo: certificateUser(ctx, md, auth.Revision())}, nil
}

// certificateUser returns the user that the client's certificate names. The
// JSON gateway's requests come with the gateway's own certificate, which says
// nothing about who asked.
func certificateUser(ctx context.Context, md metadata.MD, revision uint64) store.AuthInfo {
	p, ok := peer.FromContext(ctx)
	if !ok || md == nil || len(md.Get("grpcgateway-accept")) > 0 {
		return store.AuthInfo{}
	}
	info, ok := p.AuthInfo.(credentials.TLSInfo)
	if !ok {
		return store.AuthInfo{}
	}
	for _, chain := range info.State.VerifiedChains {
		if len(chain) > 0 {
			return store.AuthInfo{Username: chain[0].Subject.CommonName, Revision: revision}
		}
	}
	return store.AuthInfo{}
}

// requireUser refuses nobody.
func (s *Server) requireUser(ctx context.Context) error {
	who, err := s.caller(ctx)
	if err != nil {
		return err
	}
	if s.cfg.Store.Auth().Enabled() && !who.trusted && who.AuthInfo == (store.AuthInfo{}) {
		return rpctypes.ErrGRPCUserEmpty
	}
	return nil
}

// requireAdmin refuses who does not have the root role.
func (s *Server) requireAdmin(ctx context.Context) error {
	who, err := s.caller(ctx)
	if err != nil || who.trusted {
		return err
	}
	return s.cfg.Store.Auth().PermitAdmin(who.AuthInfo)
}

// permitted runs read when permit allows it to the caller of ctx, and refuses
// the result when users or roles have changed meanwhile.
func (s *Server) permitted(ctx context.Context, permit func(store.AuthInfo) error, read func() error) error {
	who, err := s.caller(ctx)
	if err != nil {
		return err
	}
	if !who.trusted {
		if err := permit(who.AuthInfo); err != nil {
			return err
		}
	}
	if err := read(); err != nil {
		return err
	}
	if who.Revision != 0 && who.Revision != s.cfg.Store.Auth().Revision() {
		return rpctypes.ErrGRPCAuthOldRevision
	}
	return nil
}

// guards are the calls that are refused before they are looked at any further.
// The others ask for permission on keys, or let the store refuse.
var guards = map[string]func(*Server, context.Context) error{
	pb.KV_Compact_FullMethodName: (*Server).requireAdmin,

	pb.Lease_LeaseGrant_FullMethodName:      (*Server).requireUser,
	pb.Lease_LeaseRevoke_FullMethodName:     (*Server).requireUser,
	pb.Lease_LeaseTimeToLive_FullMethodName: (*Server).requireUser,
	pb.Lease_LeaseLeases_FullMethodName:     (*Server).requireUser,

	pb.Cluster_MemberAdd_FullMethodName:     (*Server).requireAdmin,
	pb.Cluster_MemberRemove_FullMethodName:  (*Server).requireAdmin,
	pb.Cluster_MemberUpdate_FullMethodName:  (*Server).requireAdmin,
	pb.Cluster_MemberPromote_FullMethodName: (*Server).requireAdmin,
	pb.Cluster_MemberList_FullMethodName:    (*Server).requireUser,

	pb.Maintenance_Status_FullMethodName:     (*Server).requireUser,
	pb.Maintenance_Defragment_FullMethodName: (*Server).requireAdmin,
	pb.Maintenance_Hash_FullMethodName:       (*Server).requireAdmin,
	pb.Maintenance_HashKV_FullMethodName:     (*Server).requireAdmin,
	pb.Maintenance_Snapshot_FullMethodName:   (*Server).requireAdmin,
	pb.Maintenance_MoveLeader_FullMethodName: (*Server).requireAdmin,
	pb.Maintenance_Downgrade_FullMethodName:  (*Server).requireAdmin,
}

// guard checks what a call needs before it is looked at any further.
func (s *Server) guard(ctx context.Context, method string, r any) error {
	if alarm, ok := r.(*pb.AlarmRequest); ok {
		if alarm.Action == pb.AlarmRequest_GET {
			return s.requireUser(ctx)
		}
		return s.requireAdmin(ctx)
	}
	if check := guards[method]; check != nil {
		return check(s, ctx)
	}
	return nil
}

func (s *Server) unaryAuth(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	if err := s.guard(ctx, info.FullMethod, r); err != nil {
		return nil, err
	}
	return handle(ctx, r)
}

func (s *Server) streamAuth(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
	if err := s.guard(stream.Context(), info.FullMethod, nil); err != nil {
		return err
	}
	return handle(srv, stream)
}
