package store

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// ErrNoPassword refuses a password for a user without one, and a password that
// does not decode. Code and text are etcd's.
var ErrNoPassword = status.Error(codes.Unknown, "auth: authentication failed, password was given for no password user")

// TokenChange tells what happened to the simple tokens. The store assigns
// them, so that they are the same on every peer, and remembers none: for how
// long a token is good is a question of time.
type TokenChange struct {
	Kind TokenChangeKind
	User string // for TokenAssigned and UserTokensEnded
	// Token is what was assigned: the prefix that the request brought, a dot,
	// and a number that Auth.Logins has reached where the token is known.
	Token string
}

// TokenChangeKind is the kind of a TokenChange.
type TokenChangeKind int

const (
	// TokenAssigned: a user has authenticated.
	TokenAssigned TokenChangeKind = iota
	// UserTokensEnded: a user is gone, or has another password.
	UserTokensEnded
	// AllTokensEnded: authentication was disabled, or the state was replaced
	// by Restore.
	AllTokensEnded
)

// FollowTokens has f called, until stop, for each change of the simple tokens
// from now on, in order, within Apply and Restore. It must return at once and
// must not call the store.
func (s *Store) FollowTokens(f func(TokenChange)) (stop func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key := &f
	s.onToken = append(s.onToken, key)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.onToken = slices.DeleteFunc(slices.Clone(s.onToken), func(k *func(TokenChange)) bool { return k == key })
	}
}

func (s *Store) tokensChanged(c TokenChange) {
	for _, f := range s.onToken {
		(*f)(c)
	}
}

// applyAuth applies a request about users and roles.
func (s *Store) applyAuth(r *pb.InternalRaftRequest) (resp proto.Message, err error) {
	st := s.cur
	h := &pb.ResponseHeader{Revision: st.rev}
	a := st.auth
	switch {
	case r.AuthStatus != nil:
		return &pb.AuthStatusResponse{Header: h, Enabled: a.enabled, AuthRevision: a.revision}, nil
	case r.AuthEnable != nil:
		resp, a, err = enableAuth(a, h)
	case r.AuthDisable != nil:
		if a.enabled {
			a = a.next()
			a.enabled = false
			s.tokensChanged(TokenChange{Kind: AllTokensEnded})
		}
		resp = &pb.AuthDisableResponse{Header: h}
	case r.Authenticate != nil:
		return s.authenticate(r.Authenticate, h)
	case r.AuthUserAdd != nil:
		a, err = a.addUser(r.AuthUserAdd)
		resp = &pb.AuthUserAddResponse{Header: h}
	case r.AuthUserGet != nil:
		u := a.user(r.AuthUserGet.Name)
		if u == nil {
			return nil, rpctypes.ErrGRPCUserNotFound
		}
		return &pb.AuthUserGetResponse{Header: h, Roles: u.Roles}, nil
	case r.AuthUserList != nil:
		names := make([]string, 0, len(a.users))
		for _, u := range a.users {
			names = append(names, string(u.Name))
		}
		return &pb.AuthUserListResponse{Header: h, Users: names}, nil
	case r.AuthUserDelete != nil:
		if a, err = a.deleteUser(r.AuthUserDelete.Name); err == nil {
			s.tokensChanged(TokenChange{Kind: UserTokensEnded, User: r.AuthUserDelete.Name})
		}
		resp = &pb.AuthUserDeleteResponse{Header: h}
	case r.AuthUserChangePassword != nil:
		if a, err = a.changePassword(r.AuthUserChangePassword); err == nil {
			s.tokensChanged(TokenChange{Kind: UserTokensEnded, User: r.AuthUserChangePassword.Name})
		}
		resp = &pb.AuthUserChangePasswordResponse{Header: h}
	case r.AuthUserGrantRole != nil:
		a, err = a.grantRole(r.AuthUserGrantRole.User, r.AuthUserGrantRole.Role)
		resp = &pb.AuthUserGrantRoleResponse{Header: h}
	case r.AuthUserRevokeRole != nil:
		a, err = a.revokeRole(r.AuthUserRevokeRole.Name, r.AuthUserRevokeRole.Role)
		resp = &pb.AuthUserRevokeRoleResponse{Header: h}
	case r.AuthRoleAdd != nil:
		a, err = a.addRole(r.AuthRoleAdd.Name)
		resp = &pb.AuthRoleAddResponse{Header: h}
	case r.AuthRoleGet != nil:
		role := a.role(r.AuthRoleGet.Role)
		if role == nil {
			return nil, rpctypes.ErrGRPCRoleNotFound
		}
		perms := role.KeyPermission
		if r.AuthRoleGet.Role == rootRole {
			perms = []*authpb.Permission{{PermType: authpb.Permission_READWRITE, RangeEnd: []byte{0}}}
		}
		return &pb.AuthRoleGetResponse{Header: h, Perm: perms}, nil
	case r.AuthRoleList != nil:
		names := make([]string, 0, len(a.roles))
		for _, role := range a.roles {
			names = append(names, string(role.Name))
		}
		return &pb.AuthRoleListResponse{Header: h, Roles: names}, nil
	case r.AuthRoleDelete != nil:
		a, err = a.deleteRole(r.AuthRoleDelete.Role)
		resp = &pb.AuthRoleDeleteResponse{Header: h}
	case r.AuthRoleGrantPermission != nil:
		a, err = a.grantPermission(r.AuthRoleGrantPermission.Name, r.AuthRoleGrantPermission.Perm)
		resp = &pb.AuthRoleGrantPermissionResponse{Header: h}
	case r.AuthRoleRevokePermission != nil:
		p := r.AuthRoleRevokePermission
		a, err = a.revokePermission(p.Role, p.Key, p.RangeEnd)
		resp = &pb.AuthRoleRevokePermissionResponse{Header: h}
	default:
		return nil, status.Error(codes.Unimplemented, "etcdserver: this kind of request is not supported")
	}
	if err != nil {
		return nil, err
	}
	st.auth = a
	return resp, nil
}

func (s *Store) authenticate(r *pb.InternalAuthenticateRequest, h *pb.ResponseHeader) (proto.Message, error) {
	a := s.cur.auth
	if !a.enabled {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	// The password was checked where the request entered.
	if u := a.user(r.Name); u == nil || u.GetOptions().GetNoPassword() {
		return nil, rpctypes.ErrGRPCAuthFailed
	}
	resp := &pb.AuthenticateResponse{Header: h}
	if r.SimpleToken != "" {
		next := *a
		next.logins++
		s.cur.auth = &next
		resp.Token = fmt.Sprintf("%s.%d", r.SimpleToken, next.logins)
		s.tokensChanged(TokenChange{Kind: TokenAssigned, User: r.Name, Token: resp.Token})
	}
	return resp, nil
}

// next returns a copy of a, of the next revision. Its lists are still those of
// a: replace them, do not change them.
func (a *Auth) next() *Auth {
	n := *a
	n.revision++
	return &n
}

// withUser returns a copy of a in which u is added, or replaces who had its
// name.
func (a *Auth) withUser(u *authpb.User) *Auth {
	n := a.next()
	n.users = slices.Clone(a.users)
	i, found := n.findUser(string(u.Name))
	if found {
		n.users[i] = n.withPermissions(u)
	} else {
		n.users = slices.Insert(n.users, i, n.withPermissions(u))
	}
	return n
}

// withRole returns a copy of a in which r is added, or replaces what had its
// name.
func (a *Auth) withRole(r *authpb.Role) *Auth {
	n := a.next()
	n.roles = slices.Clone(a.roles)
	i, found := n.findRole(string(r.Name))
	if found {
		n.roles[i] = r
	} else {
		n.roles = slices.Insert(n.roles, i, r)
	}
	n.users = slices.Clone(a.users)
	for i, u := range n.users {
		if slices.Contains(u.Roles, string(r.Name)) {
			n.users[i] = n.withPermissions(u.User)
		}
	}
	return n
}

func enableAuth(a *Auth, h *pb.ResponseHeader) (proto.Message, *Auth, error) {
	if !a.enabled {
		root := a.user(rootUser)
		if root == nil {
			return nil, nil, rpctypes.ErrGRPCRootUserNotExist
		}
		if !root.root {
			return nil, nil, rpctypes.ErrGRPCRootRoleNotExist
		}
		n := *a // the revision stays, as in etcd
		n.enabled = true
		a = &n
	}
	return &pb.AuthEnableResponse{Header: h}, a, nil
}

// passwordHash decodes the hash that the proposer made; a password in clear is
// never replicated.
func passwordHash(clear, hashed string) ([]byte, error) {
	hash, err := base64.StdEncoding.DecodeString(hashed)
	if err != nil || clear != "" {
		return nil, ErrNoPassword
	}
	return hash, nil
}

func (a *Auth) addUser(r *pb.AuthUserAddRequest) (*Auth, error) {
	if r.Name == "" {
		return nil, rpctypes.ErrGRPCUserEmpty
	}
	if a.user(r.Name) != nil {
		return nil, rpctypes.ErrGRPCUserAlreadyExist
	}
	u := &authpb.User{Name: []byte(r.Name), Options: &authpb.UserAddOptions{NoPassword: r.Options.GetNoPassword()}}
	if !u.Options.NoPassword {
		var err error
		if u.Password, err = passwordHash(r.Password, r.HashedPassword); err != nil {
			return nil, err
		}
	}
	return a.withUser(u), nil
}

func (a *Auth) deleteUser(name string) (*Auth, error) {
	if a.enabled && name == rootUser {
		return nil, rpctypes.ErrGRPCInvalidAuthMgmt
	}
	i, found := a.findUser(name)
	if !found {
		return nil, rpctypes.ErrGRPCUserNotFound
	}
	n := a.next()
	n.users = slices.Delete(slices.Clone(a.users), i, i+1)
	return n, nil
}

func (a *Auth) changePassword(r *pb.AuthUserChangePasswordRequest) (*Auth, error) {
	old := a.user(r.Name)
	if old == nil {
		return nil, rpctypes.ErrGRPCUserNotFound
	}
	u := proto.Clone(old.User).(*authpb.User)
	u.Password = nil
	if !u.GetOptions().GetNoPassword() {
		var err error
		if u.Password, err = passwordHash(r.Password, r.HashedPassword); err != nil {
			return nil, err
		}
	}
	return a.withUser(u), nil
}

func (a *Auth) grantRole(user, role string) (*Auth, error) {
	old := a.user(user)
	if old == nil {
		return nil, rpctypes.ErrGRPCUserNotFound
	}
	if role != rootRole && a.role(role) == nil {
		return nil, rpctypes.ErrGRPCRoleNotFound
	}
	i, found := slices.BinarySearch(old.Roles, role)
	if found {
		return a, nil
	}
	u := proto.Clone(old.User).(*authpb.User)
	u.Roles = slices.Insert(u.Roles, i, role)
	return a.withUser(u), nil
}

func (a *Auth) revokeRole(user, role string) (*Auth, error) {
	if a.enabled && user == rootUser && role == rootRole {
		return nil, rpctypes.ErrGRPCInvalidAuthMgmt
	}
	old := a.user(user)
	if old == nil {
		return nil, rpctypes.ErrGRPCUserNotFound
	}
	i, found := slices.BinarySearch(old.Roles, role)
	if !found {
		return nil, rpctypes.ErrGRPCRoleNotGranted
	}
	u := proto.Clone(old.User).(*authpb.User)
	u.Roles = slices.Delete(u.Roles, i, i+1)
	return a.withUser(u), nil
}

func (a *Auth) addRole(name string) (*Auth, error) {
	if name == "" {
		return nil, rpctypes.ErrGRPCRoleEmpty
	}
	if a.role(name) != nil {
		return nil, rpctypes.ErrGRPCRoleAlreadyExist
	}
	return a.withRole(&authpb.Role{Name: []byte(name)}), nil
}

func (a *Auth) deleteRole(name string) (*Auth, error) {
	if a.enabled && name == rootRole {
		return nil, rpctypes.ErrGRPCInvalidAuthMgmt
	}
	at, found := a.findRole(name)
	if !found {
		return nil, rpctypes.ErrGRPCRoleNotFound
	}
	n := a.next()
	n.roles = slices.Delete(slices.Clone(a.roles), at, at+1)
	n.users = slices.Clone(a.users)
	for i, u := range n.users {
		if j, has := slices.BinarySearch(u.Roles, name); has {
			left := proto.Clone(u.User).(*authpb.User)
			left.Roles = slices.Delete(left.Roles, j, j+1)
			n.users[i] = n.withPermissions(left)
		}
	}
	return n, nil
}

// grantPermission adds p to a role, or changes the kind of what it has for
// exactly the same range.
func (a *Auth) grantPermission(name string, p *authpb.Permission) (*Auth, error) {
	if p == nil {
		return nil, rpctypes.ErrGRPCPermissionNotGiven
	}
	if !validPermission(p) {
		return nil, rpctypes.ErrGRPCInvalidAuthMgmt
	}
	old := a.role(name)
	if old == nil {
		return nil, rpctypes.ErrGRPCRoleNotFound
	}
	r := proto.Clone(old).(*authpb.Role)
	if i := slices.IndexFunc(r.KeyPermission, func(q *authpb.Permission) bool { return sameRange(q, p.Key, p.RangeEnd) }); i >= 0 {
		r.KeyPermission[i].PermType = p.PermType
	} else {
		r.KeyPermission = append(r.KeyPermission, &authpb.Permission{PermType: p.PermType, Key: p.Key, RangeEnd: p.RangeEnd})
		slices.SortStableFunc(r.KeyPermission, func(a, b *authpb.Permission) int { return bytes.Compare(a.Key, b.Key) })
	}
	return a.withRole(r), nil
}

func (a *Auth) revokePermission(name string, key, rangeEnd []byte) (*Auth, error) {
	old := a.role(name)
	if old == nil {
		return nil, rpctypes.ErrGRPCRoleNotFound
	}
	r := proto.Clone(old).(*authpb.Role)
	r.KeyPermission = slices.DeleteFunc(r.KeyPermission, func(q *authpb.Permission) bool { return sameRange(q, key, rangeEnd) })
	if len(r.KeyPermission) == len(old.KeyPermission) {
		return nil, rpctypes.ErrGRPCPermissionNotGranted
	}
	return a.withRole(r), nil
}

func sameRange(p *authpb.Permission, key, rangeEnd []byte) bool {
	return bytes.Equal(p.Key, key) && bytes.Equal(p.RangeEnd, rangeEnd)
}
