package etcdapi

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// send is a request that can be sent to any server.
type send func(context.Context, *grpc.ClientConn) (proto.Message, error)

// to makes a send of a method and its request.
func to[C any, Q, R proto.Message](client func(grpc.ClientConnInterface) C, method func(C, context.Context, Q, ...grpc.CallOption) (R, error), r Q) (proto.Message, send) {
	return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
		resp, err := method(client(c), ctx, r)
		if err != nil {
			return nil, err
		}
		return resp, nil
	}
}

// people makes requests about few users and roles, so that they meet.
type people struct{ history }

func (p *people) user() string { return string(p.pick("root", "alice", "bob", "carol")) }
func (p *people) role() string { return string(p.pick("root", "reader", "writer", "r3")) }

// mortal is a user who may go, or lose the password: root seldom does.
func (p *people) mortal() string {
	if p.one(10) {
		return "root"
	}
	return string(p.pick("alice", "bob", "carol"))
}

func (p *people) permission() *authpb.Permission {
	key := p.key()
	// One range for each key and role: of a second one etcd may keep what the
	// first one permitted when it is granted anew.
	end := map[string]string{"a": "b", "a/1": "", "a/2": "\x00", "b": "c", "b/1": "b", "c": ""}[string(key)]
	return &authpb.Permission{Key: key, RangeEnd: []byte(end), PermType: authpb.Permission_Type(p.IntN(3))}
}

// manage makes a request about users and roles.
func (p *people) manage() (proto.Message, send) {
	auth := pb.NewAuthClient
	switch p.IntN(17) {
	case 0:
		return to(auth, pb.AuthClient.AuthEnable, &pb.AuthEnableRequest{})
	case 1:
		if !p.one(8) {
			return to(auth, pb.AuthClient.AuthEnable, &pb.AuthEnableRequest{})
		}
		return to(auth, pb.AuthClient.AuthDisable, &pb.AuthDisableRequest{})
	case 2:
		return to(auth, pb.AuthClient.AuthStatus, &pb.AuthStatusRequest{})
	case 3, 4:
		r := &pb.AuthUserAddRequest{Name: string(p.pick("", "root", "alice", "bob", "carol")), Password: "p"}
		r.Options = &authpb.UserAddOptions{NoPassword: r.Name != "root" && p.one(5)}
		return to(auth, pb.AuthClient.UserAdd, r)
	case 5:
		return to(auth, pb.AuthClient.UserGet, &pb.AuthUserGetRequest{Name: p.user()})
	case 6:
		return to(auth, pb.AuthClient.UserList, &pb.AuthUserListRequest{})
	case 7:
		return to(auth, pb.AuthClient.UserDelete, &pb.AuthUserDeleteRequest{Name: p.mortal()})
	case 8:
		return to(auth, pb.AuthClient.UserChangePassword, &pb.AuthUserChangePasswordRequest{Name: p.mortal(), Password: string(p.pick("p", "p", "p", "q", ""))})
	case 9, 10:
		return to(auth, pb.AuthClient.UserGrantRole, &pb.AuthUserGrantRoleRequest{User: p.user(), Role: p.role()})
	case 11:
		return to(auth, pb.AuthClient.UserRevokeRole, &pb.AuthUserRevokeRoleRequest{Name: p.user(), Role: p.role()})
	case 12:
		return to(auth, pb.AuthClient.RoleAdd, &pb.AuthRoleAddRequest{Name: string(p.pick("", "root", "reader", "writer", "r3"))})
	case 13:
		if p.one(2) {
			return to(auth, pb.AuthClient.RoleList, &pb.AuthRoleListRequest{})
		}
		return to(auth, pb.AuthClient.RoleGet, &pb.AuthRoleGetRequest{Role: p.role()})
	case 14:
		if p.one(2) {
			return to(auth, pb.AuthClient.RoleDelete, &pb.AuthRoleDeleteRequest{Role: p.role()})
		}
		q := p.permission()
		return to(auth, pb.AuthClient.RoleRevokePermission, &pb.AuthRoleRevokePermissionRequest{Role: p.role(), Key: q.Key, RangeEnd: q.RangeEnd})
	default:
		r := &pb.AuthRoleGrantPermissionRequest{Name: p.role(), Perm: p.permission()}
		switch p.IntN(20) {
		case 0:
			r.Perm = nil
		case 1:
			r.Perm.Key = nil
		case 2:
			r.Perm.RangeEnd = []byte("0")
		}
		return to(auth, pb.AuthClient.RoleGrantPermission, r)
	}
}

// other makes a request that needs a user, or root, beside those of history.
func (p *people) other() (proto.Message, send) {
	switch p.IntN(8) {
	case 0:
		return to(pb.NewMaintenanceClient, pb.MaintenanceClient.Alarm, &pb.AlarmRequest{Action: pb.AlarmRequest_AlarmAction(2 * p.IntN(2)), Alarm: pb.AlarmType_CORRUPT})
	case 1:
		r := &pb.CompactionRequest{Revision: max(0, p.rev-20)}
		return to(pb.NewKVClient, pb.KVClient.Compact, r)
	case 2:
		return to(pb.NewMaintenanceClient, pb.MaintenanceClient.Defragment, &pb.DefragmentRequest{})
	case 3:
		return to(pb.NewLeaseClient, pb.LeaseClient.LeaseLeases, &pb.LeaseLeasesRequest{})
	case 4:
		return to(pb.NewLeaseClient, pb.LeaseClient.LeaseTimeToLive, &pb.LeaseTimeToLiveRequest{ID: 7 + p.Int64N(4), Keys: p.one(2)})
	case 5:
		r := &pb.LeaseKeepAliveRequest{ID: 7 + p.Int64N(4)}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			stream, err := pb.NewLeaseClient(c).LeaseKeepAlive(ctx)
			if err != nil {
				return nil, err
			}
			if err := stream.Send(r); err != nil {
				return nil, err
			}
			return orNil(stream.Recv())
		}
	default:
		key, end := p.span()
		r := &pb.WatchRequest{RequestUnion: &pb.WatchRequest_CreateRequest{CreateRequest: &pb.WatchCreateRequest{Key: key, RangeEnd: end}}}
		return r, func(ctx context.Context, c *grpc.ClientConn) (proto.Message, error) {
			stream, err := pb.NewWatchClient(c).Watch(ctx)
			if err != nil {
				return nil, err
			}
			if err := stream.Send(r); err != nil {
				return nil, err
			}
			return orNil(stream.Recv())
		}
	}
}

func orNil[R proto.Message](r R, err error) (proto.Message, error) {
	if err != nil {
		return nil, err
	}
	return r, nil
}

// A real etcd and this server let the same users do the same, and refuse the
// others in the same words, whatever is done to users and roles meanwhile.
func TestSameUsersAsEtcd(t *testing.T) {
	etcd := startEtcd(t)
	g := newRig(t, func(c *Config) { c.BcryptCost = bcrypt.MinCost })
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	p := &people{history{Rand: rand.New(rand.NewPCG(seed, 1)), rev: 1, straight: true}}
	conns := []*grpc.ClientConn{etcd, g.conn}
	tokens := []map[string]string{{"none": ""}, {"none": ""}} // by server and user
	outcomes := map[string]int{}

	root := func(m proto.Message, f send) {
		for _, conn := range conns {
			if _, err := f(t.Context(), conn); err != nil {
				t.Fatalf("%v: %v", m, err)
			}
		}
	}
	for _, name := range []string{"root", "alice", "bob"} {
		root(to(pb.NewAuthClient, pb.AuthClient.UserAdd, &pb.AuthUserAddRequest{Name: name, Password: "p"}))
	}
	root(to(pb.NewAuthClient, pb.AuthClient.UserGrantRole, &pb.AuthUserGrantRoleRequest{User: "root", Role: "root"}))
	for i := range 4000 {
		var what proto.Message
		var call send
		login := ""
		switch k := p.IntN(20); {
		case k < 9:
			what, call = p.history.call()
		case k < 12:
			what, call = p.other()
		case k < 17:
			what, call = p.manage()
		default:
			login = string(p.pick("root", "root", "alice", "bob", "carol"))
			what, call = to(pb.NewAuthClient, pb.AuthClient.Authenticate, &pb.AuthenticateRequest{Name: login, Password: string(p.pick("p", "p", "p", "q"))})
		}
		who := string(p.pick("root", "root", "alice", "alice", "bob", "carol", "none", "wrong"))
		var got [2]proto.Message
		var errs [2]error
		for s, conn := range conns {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			token := tokens[s][who]
			if who == "wrong" {
				token = "zzz.1"
			}
			if token != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, rpctypes.TokenFieldNameGRPC, token)
			}
			got[s], errs[s] = call(ctx, conn)
			cancel()
			switch m := got[s].(type) {
			case *pb.AuthenticateResponse:
				tokens[s][login], m.Token = m.Token, ""
			case *pb.LeaseTimeToLiveResponse:
				m.TTL = min(m.TTL, 1) // it runs on
				m.Header.Revision = 0
				slices.SortFunc(m.Keys, bytes.Compare) // in no order from etcd
			case *pb.LeaseLeasesResponse:
				// In the order of a map in etcd; the history's others see them all.
				m.Leases = m.Leases[:min(1, len(m.Leases))]
				for _, l := range m.Leases {
					l.ID = 0
				}
			case *pb.DefragmentResponse:
				m.Header = nil // etcd gives none
			}
		}
		outcomes[status.Convert(errs[0]).Message()]++
		if w, o := status.Convert(errs[0]), status.Convert(errs[1]); w.Code() != o.Code() || w.Message() != o.Message() {
			t.Fatalf("request %d by %s, %T %v:\n got error %v\nwant error %v", i, who, what, what, errs[1], errs[0])
		}
		if errs[0] != nil {
			continue
		}
		scrub(got[0])
		scrub(got[1])
		if !proto.Equal(got[0], got[1]) {
			t.Fatalf("request %d by %s, %T %v:\n got %v\nwant %v", i, who, what, what, got[1], got[0])
		}
		if r, ok := got[0].(interface{ GetHeader() *pb.ResponseHeader }); ok {
			p.rev = max(p.rev, r.GetHeader().GetRevision())
		}
	}
	t.Logf("answers: %v", outcomes)
	if outcomes[""] < 100 || outcomes["etcdserver: permission denied"] < 50 {
		t.Errorf("the history was poor: %v", outcomes)
	}
}
