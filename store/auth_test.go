package store

import (
	"bytes"
	"encoding/base64"
	"slices"
	"testing"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"
)

func userAdd(name string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: name, HashedPassword: base64.StdEncoding.EncodeToString([]byte("hash of " + name))}}
}

func roleAdd(name string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{AuthRoleAdd: &pb.AuthRoleAddRequest{Name: name}}
}

func roleTo(user, role string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{AuthUserGrantRole: &pb.AuthUserGrantRoleRequest{User: user, Role: role}}
}

func grant(role string, kind authpb.Permission_Type, key, end string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{
		Name: role, Perm: &authpb.Permission{PermType: kind, Key: []byte(key), RangeEnd: []byte(end)}}}
}

// addUsers enables authentication with root, alice, who reads a to m and
// writes b to d, bob, who may write all from x on, and nopass, who may nothing.
func addUsers(t testing.TB, s *Store) {
	for _, r := range []*pb.InternalRaftRequest{
		userAdd("root"), roleTo("root", "root"), userAdd("alice"), userAdd("bob"),
		{AuthUserAdd: &pb.AuthUserAddRequest{Name: "nopass", Options: &authpb.UserAddOptions{NoPassword: true}}},
		roleAdd("reader"), grant("reader", authpb.Permission_READ, "a", "m"),
		roleAdd("writer"), grant("writer", authpb.Permission_WRITE, "b", "c"), grant("writer", authpb.Permission_WRITE, "c", "d"),
		roleAdd("end"), grant("end", authpb.Permission_READWRITE, "x", "\x00"),
		roleTo("alice", "writer"), roleTo("alice", "reader"), roleTo("bob", "end"),
		{AuthEnable: &pb.AuthEnableRequest{}},
	} {
		mustApply(t, s, r)
	}
}

// by makes r in the name of a user, as of now.
func by(s *Store, user string, r *pb.InternalRaftRequest) *pb.InternalRaftRequest {
	r = proto.Clone(r).(*pb.InternalRaftRequest)
	r.Header = &pb.RequestHeader{Username: user, AuthRevision: s.Auth().Revision()}
	if user == "" {
		r.Header.AuthRevision = 0
	}
	return r
}

func read(key, end string) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{Range: &pb.RangeRequest{Key: []byte(key), RangeEnd: []byte(end)}}
}

func remove(key, end string, prev bool) *pb.InternalRaftRequest {
	return &pb.InternalRaftRequest{DeleteRange: &pb.DeleteRangeRequest{Key: []byte(key), RangeEnd: []byte(end), PrevKv: prev}}
}

func txnOf(compare string, ops ...*pb.InternalRaftRequest) *pb.InternalRaftRequest {
	r := &pb.TxnRequest{}
	if compare != "" {
		r.Compare = []*pb.Compare{{Key: []byte(compare)}}
	}
	for _, op := range ops {
		switch {
		case op.Range != nil:
			r.Failure = append(r.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: op.Range}})
		case op.Put != nil:
			r.Failure = append(r.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: op.Put}})
		case op.DeleteRange != nil:
			r.Failure = append(r.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: op.DeleteRange}})
		case op.Txn != nil:
			r.Failure = append(r.Failure, &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: op.Txn}})
		}
	}
	return &pb.InternalRaftRequest{Txn: r}
}

func TestPermissionsOfRequests(t *testing.T) {
	s := New(Options{})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 1, TTL: 60}})
	mustApply(t, s, &pb.InternalRaftRequest{LeaseGrant: &pb.LeaseGrantRequest{ID: 2, TTL: 60}})
	leased := func(key string, id int64) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key), Lease: id}}
	}
	mustApply(t, s, leased("b", 1))
	mustApply(t, s, leased("z", 2))
	addUsers(t, s)
	prev := put("b", "v")
	prev.Put.PrevKv = true
	prevX := put("c5", "v")
	revoke := func(id int64) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{LeaseRevoke: &pb.LeaseRevokeRequest{ID: id}}
	}
	denied, nobody := rpctypes.ErrGRPCPermissionDenied, rpctypes.ErrGRPCUserEmpty
	for _, c := range []struct {
		name, user string
		r          *pb.InternalRaftRequest
		want       error
	}{
		{"nobody reads", "", read("a", ""), nobody},
		{"nobody writes", "", put("a", ""), nobody},
		{"nobody manages", "", userAdd("x"), nobody},
		{"a stranger reads", "eve", read("a", ""), denied},
		{"a stranger manages", "eve", userAdd("x"), rpctypes.ErrGRPCUserNotFound},
		{"root reads all", "root", read("\x00", "\x00"), nil},
		{"one readable key", "alice", read("a", ""), nil},
		{"all readable keys", "alice", read("a", "m"), nil},
		{"the end is not in it", "alice", read("m", ""), denied},
		{"more than readable", "alice", read("a", "n"), denied},
		{"everything", "alice", read("a", "\x00"), denied},
		{"a range without keys that begins in it", "alice", read("c", "a"), nil},
		{"a range without keys that begins elsewhere", "alice", read("n", "a"), denied},
		{"over two permissions that touch", "alice", remove("b", "d", false), nil},
		{"delete what is not writable", "alice", remove("b", "e", false), denied},
		{"delete and see", "alice", remove("b", "c", true), nil},
		{"write", "alice", put("b", "v"), nil},
		{"write and see", "alice", prev, nil},
		{"write what is readable only", "alice", put("a", "v"), denied},
		{"open end", "bob", read("y", "\x00"), nil},
		{"open end, one key", "bob", put("zzz", ""), nil},
		{"before the open end", "bob", read("w", "\x00"), denied},
		{"attach to a lease of own keys", "alice", leased("c", 1), nil},
		{"attach to a lease of others' keys", "alice", leased("c", 2), denied},
		{"a transaction of what is permitted", "alice", txnOf("a", read("a", ""), prevX), nil},
		{"compare what is not readable", "alice", txnOf("z", prevX), denied},
		{"one operation of several", "alice", txnOf("a", prevX, read("z", "")), denied},
		{"a nested operation", "alice", txnOf("a", txnOf("", txnOf("", put("z", "")))), denied},
		{"a nested comparison", "alice", txnOf("a", txnOf("z")), denied},
		{"revoke a lease of others' keys", "alice", revoke(2), denied},
		{"revoke a lease of own keys", "alice", revoke(1), nil},
		{"revoke a lease of no keys", "alice", revoke(3), rpctypes.ErrGRPCLeaseNotFound},
		{"see oneself", "alice", &pb.InternalRaftRequest{AuthUserGet: &pb.AuthUserGetRequest{Name: "alice"}}, nil},
		{"see another user", "alice", &pb.InternalRaftRequest{AuthUserGet: &pb.AuthUserGetRequest{Name: "bob"}}, denied},
		{"see an own role", "alice", &pb.InternalRaftRequest{AuthRoleGet: &pb.AuthRoleGetRequest{Role: "reader"}}, nil},
		{"see another role", "alice", &pb.InternalRaftRequest{AuthRoleGet: &pb.AuthRoleGetRequest{Role: "end"}}, denied},
		{"list users", "alice", &pb.InternalRaftRequest{AuthUserList: &pb.AuthUserListRequest{}}, denied},
		{"read without permission to read", "nopass", read("a", ""), denied},
	} {
		before := s.Revision()
		r := s.Apply(by(s, c.user, c.r))
		if r.Err != c.want {
			t.Errorf("%s: %v, want %v", c.name, r.Err, c.want)
		}
		if c.want != nil && s.Revision() != before {
			t.Errorf("%s: it was refused and has changed something", c.name)
		}
	}
	if r := s.Apply(put("a", "this program's own")); r.Err != nil {
		t.Errorf("a request of this program itself: %v", r.Err)
	}
	old := by(s, "alice", read("a", ""))
	mustApply(t, s, by(s, "root", roleAdd("later")))
	if r := s.Apply(old); r.Err != rpctypes.ErrGRPCAuthOldRevision {
		t.Errorf("a request as of an older auth revision: %v", r.Err)
	}
	mustApply(t, s, by(s, "root", &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}}))
	if r := s.Apply(by(s, "", put("a", "v"))); r.Err != nil {
		t.Errorf("after authentication was disabled: %v", r.Err)
	}
}

func TestUsersAndRoles(t *testing.T) {
	s := New(Options{})
	enable := &pb.InternalRaftRequest{AuthEnable: &pb.AuthEnableRequest{}}
	for _, c := range []struct {
		name string
		r    *pb.InternalRaftRequest
		want error
		rev  uint64 // auth revision after it
	}{
		{"enable without root", enable, rpctypes.ErrGRPCRootUserNotExist, 1},
		{"no name", userAdd(""), rpctypes.ErrGRPCUserEmpty, 1},
		{"root", userAdd("root"), nil, 2},
		{"root again", userAdd("root"), rpctypes.ErrGRPCUserAlreadyExist, 2},
		{"a password in clear", &pb.InternalRaftRequest{AuthUserAdd: &pb.AuthUserAddRequest{Name: "x", Password: "p"}}, ErrNoPassword, 2},
		{"enable without root's role", enable, rpctypes.ErrGRPCRootRoleNotExist, 2},
		{"a role that is not there", roleTo("root", "r"), rpctypes.ErrGRPCRoleNotFound, 2},
		{"a user who is not there", roleTo("u", "root"), rpctypes.ErrGRPCUserNotFound, 2},
		{"the root role needs not be there", roleTo("root", "root"), nil, 3},
		{"a second time changes nothing", roleTo("root", "root"), nil, 3},
		{"log in before", &pb.InternalRaftRequest{Authenticate: &pb.InternalAuthenticateRequest{Name: "root"}}, rpctypes.ErrGRPCAuthNotEnabled, 3},
		{"enable", enable, nil, 3},
		{"enable again", enable, nil, 3},
		{"no role's name", roleAdd(""), rpctypes.ErrGRPCRoleEmpty, 3},
		{"a role", roleAdd("r"), nil, 4},
		{"a role again", roleAdd("r"), rpctypes.ErrGRPCRoleAlreadyExist, 4},
		{"no permission", &pb.InternalRaftRequest{AuthRoleGrantPermission: &pb.AuthRoleGrantPermissionRequest{Name: "r"}}, rpctypes.ErrGRPCPermissionNotGiven, 4},
		{"a permission without key", grant("r", authpb.Permission_READ, "", ""), rpctypes.ErrGRPCInvalidAuthMgmt, 4},
		{"a permission for no key", grant("r", authpb.Permission_READ, "b", "a"), rpctypes.ErrGRPCInvalidAuthMgmt, 4},
		{"a permission for no role", grant("q", authpb.Permission_READ, "a", ""), rpctypes.ErrGRPCRoleNotFound, 4},
		{"a permission", grant("r", authpb.Permission_READWRITE, "a", ""), nil, 5},
		{"of another range", grant("r", authpb.Permission_READ, "a", "b"), nil, 6},
		{"changed", grant("r", authpb.Permission_READ, "a", ""), nil, 7},
		{"u", userAdd("u"), nil, 8},
		{"u in r", roleTo("u", "r"), nil, 9},
		{"root cannot go", &pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "root"}}, rpctypes.ErrGRPCInvalidAuthMgmt, 9},
		{"root's role cannot go", &pb.InternalRaftRequest{AuthRoleDelete: &pb.AuthRoleDeleteRequest{Role: "root"}}, rpctypes.ErrGRPCInvalidAuthMgmt, 9},
		{"root keeps its role", &pb.InternalRaftRequest{AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: "root", Role: "root"}}, rpctypes.ErrGRPCInvalidAuthMgmt, 9},
		{"revoke a permission that was not granted", &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte("b")}}, rpctypes.ErrGRPCPermissionNotGranted, 9},
		{"revoke a permission", &pb.InternalRaftRequest{AuthRoleRevokePermission: &pb.AuthRoleRevokePermissionRequest{Role: "r", Key: []byte("a"), RangeEnd: []byte("b")}}, nil, 10},
		{"revoke a role that was not granted", &pb.InternalRaftRequest{AuthUserRevokeRole: &pb.AuthUserRevokeRoleRequest{Name: "u", Role: "x"}}, rpctypes.ErrGRPCRoleNotGranted, 10},
		{"another password", &pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "u", HashedPassword: "bmV3"}}, nil, 11},
		{"of nobody", &pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "v"}}, rpctypes.ErrGRPCUserNotFound, 11},
		{"the role goes", &pb.InternalRaftRequest{AuthRoleDelete: &pb.AuthRoleDeleteRequest{Role: "r"}}, nil, 12},
		{"no such role", &pb.InternalRaftRequest{AuthRoleGet: &pb.AuthRoleGetRequest{Role: "r"}}, rpctypes.ErrGRPCRoleNotFound, 12},
		{"the user goes", &pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "u"}}, nil, 13},
		{"no such user", &pb.InternalRaftRequest{AuthUserGet: &pb.AuthUserGetRequest{Name: "u"}}, rpctypes.ErrGRPCUserNotFound, 13},
		{"disable", &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}}, nil, 14},
		{"disable again", &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}}, nil, 14},
		{"now root may go", &pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "root"}}, nil, 15},
	} {
		if r := s.Apply(c.r); r.Err != c.want || s.Auth().Revision() != c.rev {
			t.Errorf("%s: %v at auth revision %d, want %v at %d", c.name, r.Err, s.Auth().Revision(), c.want, c.rev)
		}
	}
	if s.Revision() != 1 {
		t.Errorf("users and roles have taken revisions of the keys: %d", s.Revision())
	}
}

func TestTokensAreToldOf(t *testing.T) {
	s := New(Options{})
	addUsers(t, s)
	var got []TokenChange
	stop := s.FollowTokens(func(c TokenChange) { got = append(got, c) })
	login := func(user string) *pb.InternalRaftRequest {
		return &pb.InternalRaftRequest{Authenticate: &pb.InternalAuthenticateRequest{Name: user, SimpleToken: "word"}}
	}
	for want, user := range []string{"alice", "bob"} {
		token := mustApply(t, s, login(user)).Response.(*pb.AuthenticateResponse).Token
		if token != []string{"word.1", "word.2"}[want] || s.Auth().Logins() != uint64(want+1) {
			t.Errorf("%s got %q after %d logins", user, token, s.Auth().Logins())
		}
	}
	for _, user := range []string{"nopass", "eve"} {
		if r := s.Apply(login(user)); r.Err != rpctypes.ErrGRPCAuthFailed {
			t.Errorf("%s: %+v", user, r)
		}
	}
	snapshot := snapshotBytes(t, s)
	mustApply(t, s, &pb.InternalRaftRequest{AuthUserChangePassword: &pb.AuthUserChangePasswordRequest{Name: "alice", HashedPassword: "bmV3"}})
	mustApply(t, s, &pb.InternalRaftRequest{AuthUserDelete: &pb.AuthUserDeleteRequest{Name: "bob"}})
	mustApply(t, s, &pb.InternalRaftRequest{AuthDisable: &pb.AuthDisableRequest{}})
	if err := s.Restore(bytes.NewReader(snapshot)); err != nil {
		t.Fatal(err)
	}
	stop()
	mustApply(t, s, login("bob"))
	want := []TokenChange{{TokenAssigned, "alice", "word.1"}, {TokenAssigned, "bob", "word.2"},
		{UserTokensEnded, "alice", ""}, {UserTokensEnded, "bob", ""}, {Kind: AllTokensEnded}, {Kind: AllTokensEnded}}
	if !slices.Equal(got, want) {
		t.Errorf("told of %+v, want %+v", got, want)
	}
}

// A set of spans covers a range when each key of the range is in a span.
func TestSpanSetCovers(t *testing.T) {
	const letters = "abcdefgh"
	rapid.Check(t, func(t *rapid.T) {
		letter := rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f", "g", "h"})
		draw := func(name string) span {
			end := rapid.OneOf(letter, rapid.SampledFrom([]string{"", "\x00"})).Draw(t, name+" end")
			return newSpan([]byte(letter.Draw(t, name)), []byte(end))
		}
		var spans []span
		for range rapid.IntRange(0, 5).Draw(t, "spans") {
			spans = append(spans, draw("span"))
		}
		asked := draw("asked")
		if !asked.single && !asked.toEnd && asked.key >= asked.end {
			return // without keys
		}
		// Between two letters are keys, of which one stands for all.
		var keys []string
		for _, l := range letters {
			keys = append(keys, string(l), string(l)+"5")
		}
		want := true
		for _, k := range append(keys, "z") {
			if asked.contains(k) && !slices.ContainsFunc(spans, func(s span) bool { return s.contains(k) }) {
				want = false
			}
		}
		if got := newSpanSet(slices.Clone(spans)).cover(asked); got != want {
			t.Errorf("%+v cover %+v: %v", spans, asked, got)
		}
	})
}
