package etcdapi

import (
	"context"
	"encoding/base64"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// authServer manages users and roles. The store decides about everything;
// passwords are hashed and checked here, so that they are never replicated.
type authServer struct {
	s *Server
	pb.UnsafeAuthServer
}

// authResponse is any response of the store to a request of authServer.
type authResponse interface {
	proto.Message
	GetHeader() *pb.ResponseHeader
}

// applied proposes r and completes the response.
func applied[R authResponse](ctx context.Context, a *authServer, r *pb.InternalRaftRequest) (R, error) {
	m, err := a.s.propose(ctx, r)
	if err != nil {
		var none R
		return none, err
	}
	h, self := m.(R).GetHeader(), a.s.header(0)
	h.ClusterId, h.MemberId, h.RaftTerm = self.ClusterId, self.MemberId, self.RaftTerm
	return m.(R), nil
}

func (a *authServer) AuthEnable(ctx context.Context, r *pb.AuthEnableRequest) (*pb.AuthEnableResponse, error) {
	return applied[*pb.AuthEnableResponse](ctx, a, &pb.InternalRaftRequest{AuthEnable: r})
}

func (a *authServer) AuthDisable(ctx context.Context, r *pb.AuthDisableRequest) (*pb.AuthDisableResponse, error) {
	return applied[*pb.AuthDisableResponse](ctx, a, &pb.InternalRaftRequest{AuthDisable: r})
}

func (a *authServer) AuthStatus(ctx context.Context, r *pb.AuthStatusRequest) (*pb.AuthStatusResponse, error) {
	return applied[*pb.AuthStatusResponse](ctx, a, &pb.InternalRaftRequest{AuthStatus: r})
}

// Authenticate gives a token for a password. A password that is changed while
// it is checked is checked again.
func (a *authServer) Authenticate(ctx context.Context, r *pb.AuthenticateRequest) (*pb.AuthenticateResponse, error) {
	if err := a.s.readIndex(ctx); err != nil {
		return nil, err
	}
	for {
		auth := a.s.cfg.Store.Auth()
		hash, err := auth.Password(r.Name)
		if err != nil {
			return nil, err
		}
		if bcrypt.CompareHashAndPassword(hash, []byte(r.Password)) != nil {
			return nil, rpctypes.ErrGRPCAuthFailed
		}
		login := &pb.InternalAuthenticateRequest{Name: r.Name, SimpleToken: a.s.tokens.prefix()}
		resp, err := applied[*pb.AuthenticateResponse](ctx, a, &pb.InternalRaftRequest{Authenticate: login})
		if err != nil {
			return nil, err
		}
		if a.s.cfg.Store.Auth().Revision() != auth.Revision() {
			continue
		}
		if resp.Token == "" {
			if resp.Token, err = a.s.tokens.sign(r.Name, auth.Revision()); err != nil {
				return nil, rpcError(err)
			}
		}
		return resp, nil
	}
}

// hashed returns the hash of a password in the form in which it is replicated.
func (a *authServer) hashed(password string) (string, error) {
	hash, err := bcrypt.GenerateFromPassword([]byte(password), a.s.cfg.BcryptCost)
	if err != nil {
		return "", status.Error(codes.Unknown, err.Error()) // as etcd
	}
	return base64.StdEncoding.EncodeToString(hash), nil
}

func (a *authServer) UserAdd(ctx context.Context, r *pb.AuthUserAddRequest) (_ *pb.AuthUserAddResponse, err error) {
	if !r.GetOptions().GetNoPassword() {
		if r.HashedPassword, err = a.hashed(r.Password); err != nil {
			return nil, err
		}
	}
	r.Password = ""
	return applied[*pb.AuthUserAddResponse](ctx, a, &pb.InternalRaftRequest{AuthUserAdd: r})
}

func (a *authServer) UserGet(ctx context.Context, r *pb.AuthUserGetRequest) (*pb.AuthUserGetResponse, error) {
	return applied[*pb.AuthUserGetResponse](ctx, a, &pb.InternalRaftRequest{AuthUserGet: r})
}

func (a *authServer) UserList(ctx context.Context, r *pb.AuthUserListRequest) (*pb.AuthUserListResponse, error) {
	return applied[*pb.AuthUserListResponse](ctx, a, &pb.InternalRaftRequest{AuthUserList: r})
}

func (a *authServer) UserDelete(ctx context.Context, r *pb.AuthUserDeleteRequest) (*pb.AuthUserDeleteResponse, error) {
	return applied[*pb.AuthUserDeleteResponse](ctx, a, &pb.InternalRaftRequest{AuthUserDelete: r})
}

func (a *authServer) UserChangePassword(ctx context.Context, r *pb.AuthUserChangePasswordRequest) (_ *pb.AuthUserChangePasswordResponse, err error) {
	if r.Password != "" {
		if r.HashedPassword, err = a.hashed(r.Password); err != nil {
			return nil, err
		}
		r.Password = ""
	}
	return applied[*pb.AuthUserChangePasswordResponse](ctx, a, &pb.InternalRaftRequest{AuthUserChangePassword: r})
}

func (a *authServer) UserGrantRole(ctx context.Context, r *pb.AuthUserGrantRoleRequest) (*pb.AuthUserGrantRoleResponse, error) {
	return applied[*pb.AuthUserGrantRoleResponse](ctx, a, &pb.InternalRaftRequest{AuthUserGrantRole: r})
}

func (a *authServer) UserRevokeRole(ctx context.Context, r *pb.AuthUserRevokeRoleRequest) (*pb.AuthUserRevokeRoleResponse, error) {
	return applied[*pb.AuthUserRevokeRoleResponse](ctx, a, &pb.InternalRaftRequest{AuthUserRevokeRole: r})
}

func (a *authServer) RoleAdd(ctx context.Context, r *pb.AuthRoleAddRequest) (*pb.AuthRoleAddResponse, error) {
	return applied[*pb.AuthRoleAddResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleAdd: r})
}

func (a *authServer) RoleGet(ctx context.Context, r *pb.AuthRoleGetRequest) (*pb.AuthRoleGetResponse, error) {
	return applied[*pb.AuthRoleGetResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleGet: r})
}

func (a *authServer) RoleList(ctx context.Context, r *pb.AuthRoleListRequest) (*pb.AuthRoleListResponse, error) {
	return applied[*pb.AuthRoleListResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleList: r})
}

func (a *authServer) RoleDelete(ctx context.Context, r *pb.AuthRoleDeleteRequest) (*pb.AuthRoleDeleteResponse, error) {
	return applied[*pb.AuthRoleDeleteResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleDelete: r})
}

func (a *authServer) RoleGrantPermission(ctx context.Context, r *pb.AuthRoleGrantPermissionRequest) (*pb.AuthRoleGrantPermissionResponse, error) {
	return applied[*pb.AuthRoleGrantPermissionResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleGrantPermission: r})
}

func (a *authServer) RoleRevokePermission(ctx context.Context, r *pb.AuthRoleRevokePermissionRequest) (*pb.AuthRoleRevokePermissionResponse, error) {
	return applied[*pb.AuthRoleRevokePermissionResponse](ctx, a, &pb.InternalRaftRequest{AuthRoleRevokePermission: r})
}
