package store

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
)

const (
	// rootUser must exist, with rootRole, before authentication is enabled.
	rootUser = "root"
	// rootRole may do everything.
	rootRole = "root"
)

// AuthInfo says who makes a request. The zero value is nobody.
type AuthInfo struct {
	Username string
	// Revision is the auth revision at which the user's name was established;
	// 0 when no user was named. A request whose revision is older than that of
	// the store is refused with ErrGRPCAuthOldRevision.
	Revision uint64
}

// Auth is users, roles and whether they matter, at one moment. It never
// changes. The errors of its methods are rpctypes gRPC errors.
type Auth struct {
	enabled  bool
	revision uint64
	logins   uint64 // how many simple tokens were assigned; numbers them
	users    []*authUser
	roles    []*authpb.Role
}

// authUser is a user with the union of what its roles permit. All users and
// roles are ordered by name, shared and never changed.
type authUser struct {
	*authpb.User
	root        bool
	read, write spanSet
}

func newAuth() *Auth { return &Auth{revision: 1} }

// Auth returns users and roles as they are now. It never waits.
func (s *Store) Auth() *Auth { return s.auth.Load() }

// Auth returns users and roles as they were at that moment.
func (sn *Snapshot) Auth() *Auth { return sn.st.auth }

// Enabled tells whether requests are checked.
func (a *Auth) Enabled() bool { return a.enabled }

// Revision grows with every change of users and roles, from 1 on.
func (a *Auth) Revision() uint64 { return a.revision }

// Logins is how many simple tokens were assigned, and the number of the last.
func (a *Auth) Logins() uint64 { return a.logins }

// Users returns the users, ordered by name. They are shared: do not change
// them.
func (a *Auth) Users() []*authpb.User {
	out := make([]*authpb.User, len(a.users))
	for i, u := range a.users {
		out[i] = u.User
	}
	return out
}

// Roles returns the roles, ordered by name. They are shared: do not change
// them.
func (a *Auth) Roles() []*authpb.Role { return slices.Clone(a.roles) }

// Password returns the bcrypt hash of a user's password. Errors:
// ErrGRPCAuthNotEnabled; ErrGRPCAuthFailed when there is no such user;
// ErrNoPassword when the user has none.
func (a *Auth) Password(user string) (hash []byte, err error) {
	if !a.enabled {
		return nil, rpctypes.ErrGRPCAuthNotEnabled
	}
	u := a.user(user)
	switch {
	case u == nil:
		return nil, rpctypes.ErrGRPCAuthFailed
	case u.GetOptions().GetNoPassword():
		return nil, ErrNoPassword
	}
	return u.GetPassword(), nil
}

func (a *Auth) findUser(name string) (int, bool) {
	return slices.BinarySearchFunc(a.users, name, func(u *authUser, name string) int {
		return cmp.Compare(keyString(u.Name), name)
	})
}

// user returns nil when there is none of that name.
func (a *Auth) user(name string) *authUser {
	if i, ok := a.findUser(name); ok {
		return a.users[i]
	}
	return nil
}

func (a *Auth) findRole(name string) (int, bool) {
	return slices.BinarySearchFunc(a.roles, name, func(r *authpb.Role, name string) int {
		return cmp.Compare(keyString(r.Name), name)
	})
}

// role returns nil when there is none of that name.
func (a *Auth) role(name string) *authpb.Role {
	if i, ok := a.findRole(name); ok {
		return a.roles[i]
	}
	return nil
}

// PermitAdmin returns nil when who has the root role, or nobody needs to.
func (a *Auth) PermitAdmin(who AuthInfo) error {
	if !a.enabled {
		return nil
	}
	if who.Username == "" {
		return rpctypes.ErrGRPCUserEmpty
	}
	u := a.user(who.Username)
	switch {
	case u == nil:
		return rpctypes.ErrGRPCUserNotFound
	case !u.root:
		return rpctypes.ErrGRPCPermissionDenied
	}
	return nil
}

// PermitRange returns nil when who may read all keys of a range, or nobody
// needs permission.
func (a *Auth) PermitRange(who AuthInfo, key, rangeEnd []byte) error {
	return a.permit(who, key, rangeEnd, authpb.Permission_READ)
}

// permit asks for READ or WRITE.
func (a *Auth) permit(who AuthInfo, key, rangeEnd []byte, kind authpb.Permission_Type) error {
	if !a.enabled {
		return nil
	}
	if who.Revision == 0 {
		return rpctypes.ErrGRPCUserEmpty
	}
	if who.Revision < a.revision {
		return rpctypes.ErrGRPCAuthOldRevision
	}
	u := a.user(who.Username)
	if u == nil {
		return rpctypes.ErrGRPCPermissionDenied
	}
	granted := u.read
	if kind == authpb.Permission_WRITE {
		granted = u.write
	}
	if !u.root && !granted.cover(newSpan(key, rangeEnd)) {
		return rpctypes.ErrGRPCPermissionDenied
	}
	return nil
}

// PermitTxn returns nil when who may make all comparisons and all operations
// of r, of both branches.
func (s *Store) PermitTxn(who AuthInfo, r *pb.TxnRequest) error {
	if !s.Auth().enabled {
		return nil
	}
	return s.view().permitTxn(who, r)
}

// PermitLeaseWrite returns nil when who may write all keys of a lease, which
// is needed to keep it alive or to revoke it.
func (s *Store) PermitLeaseWrite(who AuthInfo, id int64) error {
	if !s.Auth().enabled {
		return nil
	}
	return s.view().permitLease(who, id, authpb.Permission_WRITE)
}

// PermitLeaseRead returns nil when who may read all keys of a lease, which is
// needed to list them.
func (s *Store) PermitLeaseRead(who AuthInfo, id int64) error {
	if !s.Auth().enabled {
		return nil
	}
	return s.view().permitLease(who, id, authpb.Permission_READ)
}

// permitRequest answers whether the user that the header names may make r. A
// request without header comes from this program, which may do everything.
func (st *state) permitRequest(r *pb.InternalRaftRequest) error {
	if r.Header == nil || !st.auth.enabled {
		return nil
	}
	a, who := st.auth, AuthInfo{Username: r.Header.Username, Revision: r.Header.AuthRevision}
	switch {
	case r.Range != nil:
		return a.PermitRange(who, r.Range.Key, r.Range.RangeEnd)
	case r.Put != nil:
		return st.permitPut(who, r.Put)
	case r.DeleteRange != nil:
		return a.permitDelete(who, r.DeleteRange)
	case r.Txn != nil:
		return st.permitTxn(who, r.Txn)
	case r.LeaseRevoke != nil:
		return st.permitLease(who, r.LeaseRevoke.ID, authpb.Permission_WRITE)
	case r.AuthUserGet != nil:
		if err := a.PermitAdmin(who); err != nil && r.AuthUserGet.Name != who.Username {
			return err
		}
	case r.AuthRoleGet != nil:
		if err := a.PermitAdmin(who); err != nil && !a.hasRole(who.Username, r.AuthRoleGet.Role) {
			return err
		}
	case needsAdmin(r):
		return a.PermitAdmin(who)
	}
	return nil
}

// needsAdmin tells whether r manages users and roles.
func needsAdmin(r *pb.InternalRaftRequest) bool {
	return r.AuthEnable != nil || r.AuthDisable != nil ||
		r.AuthUserAdd != nil || r.AuthUserDelete != nil || r.AuthUserChangePassword != nil ||
		r.AuthUserGrantRole != nil || r.AuthUserRevokeRole != nil || r.AuthUserList != nil ||
		r.AuthRoleAdd != nil || r.AuthRoleDelete != nil || r.AuthRoleGrantPermission != nil ||
		r.AuthRoleRevokePermission != nil || r.AuthRoleList != nil
}

func (a *Auth) hasRole(user, role string) bool {
	u := a.user(user)
	return u != nil && slices.Contains(u.Roles, role)
}

func (st *state) permitPut(who AuthInfo, p *pb.PutRequest) error {
	if err := st.auth.permit(who, p.Key, nil, authpb.Permission_WRITE); err != nil {
		return err
	}
	// Who could not revoke the lease may not attach a key to it.
	if err := st.permitLease(who, p.Lease, authpb.Permission_WRITE); err != nil {
		return err
	}
	if p.PrevKv {
		return st.auth.PermitRange(who, p.Key, nil)
	}
	return nil
}

func (a *Auth) permitDelete(who AuthInfo, d *pb.DeleteRangeRequest) error {
	if err := a.permit(who, d.Key, d.RangeEnd, authpb.Permission_WRITE); err != nil {
		return err
	}
	if d.PrevKv {
		return a.PermitRange(who, d.Key, d.RangeEnd)
	}
	return nil
}

func (st *state) permitTxn(who AuthInfo, r *pb.TxnRequest) error {
	for _, c := range r.Compare {
		if err := st.auth.PermitRange(who, c.Key, c.RangeEnd); err != nil {
			return err
		}
	}
	for _, ops := range [][]*pb.RequestOp{r.Success, r.Failure} {
		for _, op := range ops {
			var err error
			switch {
			case op.GetRequestRange() != nil:
				rr := op.GetRequestRange()
				err = st.auth.PermitRange(who, rr.Key, rr.RangeEnd)
			case op.GetRequestPut() != nil:
				err = st.permitPut(who, op.GetRequestPut())
			case op.GetRequestDeleteRange() != nil:
				err = st.auth.permitDelete(who, op.GetRequestDeleteRange())
			case op.GetRequestTxn() != nil:
				err = st.permitTxn(who, op.GetRequestTxn())
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// permitLease asks for a permission on all keys of a lease. A lease that does
// not exist has none.
func (st *state) permitLease(who AuthInfo, id int64, kind authpb.Permission_Type) (err error) {
	if id == 0 || st.auth.PermitAdmin(who) == nil {
		return nil
	}
	st.eachLeaseKey(id, func(key string) {
		if err == nil {
			err = st.auth.permit(who, []byte(key), nil, kind)
		}
	})
	return err
}
