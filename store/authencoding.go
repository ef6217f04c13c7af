package store

import (
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
)

// untouched tells whether nothing was ever done about users and roles.
func (a *Auth) untouched() bool {
	return !a.enabled && a.revision == 1 && a.logins == 0 && len(a.users) == 0 && len(a.roles) == 0
}

func (e *encoder) bool(b bool) {
	if b {
		e.uint(1)
	} else {
		e.uint(0)
	}
}

// auth writes the payload of the auth frame.
func (e *encoder) auth(a *Auth) {
	e.bool(a.enabled)
	e.uint(a.revision)
	e.uint(a.logins)
	e.uint(uint64(len(a.users)))
	for _, u := range a.users {
		e.bytes(u.Name)
		e.bytes(u.Password)
		e.bool(u.GetOptions().GetNoPassword())
		e.uint(uint64(len(u.Roles)))
		for _, r := range u.Roles {
			e.bytes([]byte(r))
		}
	}
	e.uint(uint64(len(a.roles)))
	for _, r := range a.roles {
		e.bytes(r.Name)
		e.uint(uint64(len(r.KeyPermission)))
		for _, p := range r.KeyPermission {
			e.uint(uint64(uint32(p.PermType)))
			e.bytes(p.Key)
			e.bytes(p.RangeEnd)
		}
	}
}

// auth reads the payload of the auth frame.
func (d *decoder) auth() *Auth {
	a := &Auth{enabled: d.uint() != 0, revision: d.uint(), logins: d.uint()}
	var users []*authpb.User
	for n := d.count(); n > 0; n-- {
		u := &authpb.User{Name: d.bytes(), Password: d.bytes(), Options: &authpb.UserAddOptions{NoPassword: d.uint() != 0}}
		for r := d.count(); r > 0; r-- {
			u.Roles = append(u.Roles, string(d.bytes()))
		}
		users = append(users, u)
	}
	for n := d.count(); n > 0; n-- {
		r := &authpb.Role{Name: d.bytes()}
		for p := d.count(); p > 0; p-- {
			r.KeyPermission = append(r.KeyPermission, &authpb.Permission{PermType: authpb.Permission_Type(uint32(d.uint())), Key: d.bytes(), RangeEnd: d.bytes()})
		}
		a.roles = append(a.roles, r)
	}
	for _, u := range users {
		a.users = append(a.users, a.withPermissions(u))
	}
	return a
}

// ordered tells whether names are there and in order, and the revision is
// possible.
func (a *Auth) ordered() bool {
	for i, u := range a.users {
		if len(u.Name) == 0 || !slices.IsSorted(u.Roles) || i > 0 && cmp.Compare(keyString(a.users[i-1].Name), keyString(u.Name)) >= 0 {
			return false
		}
	}
	for i, r := range a.roles {
		if len(r.Name) == 0 || i > 0 && cmp.Compare(keyString(a.roles[i-1].Name), keyString(r.Name)) >= 0 {
			return false
		}
	}
	return a.revision > 0
}
