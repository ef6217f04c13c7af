package store

import (
	"bytes"
	"cmp"
	"slices"

	"go.etcd.io/etcd/api/v3/authpb"
)

// spanSet is a set of keys: ascending spans, none of them single, that neither
// overlap nor touch.
type spanSet []span

// newSpanSet returns the union of spans, which it takes over.
func newSpanSet(spans []span) spanSet {
	for i, sp := range spans {
		if sp.single {
			spans[i] = span{key: sp.key, end: sp.key + "\x00"}
		}
	}
	slices.SortFunc(spans, func(a, b span) int { return cmp.Compare(a.key, b.key) })
	set := spanSet{}
	for _, sp := range spans {
		if !sp.toEnd && sp.key >= sp.end {
			continue
		}
		if n := len(set); n > 0 && (set[n-1].toEnd || sp.key <= set[n-1].end) {
			last := &set[n-1]
			last.toEnd = last.toEnd || sp.toEnd
			last.end = max(last.end, sp.end)
			continue
		}
		set = append(set, sp)
	}
	return set
}

// cover tells whether all keys of sp are in the set. Of a range without keys
// it is asked whether the first one would be, as etcd does.
func (set spanSet) cover(sp span) bool {
	i, found := slices.BinarySearchFunc(set, sp.key, func(s span, key string) int { return cmp.Compare(s.key, key) })
	if !found {
		i--
	}
	if i < 0 || !set[i].contains(sp.key) {
		return false
	}
	return set[i].toEnd || sp.single || !sp.toEnd && sp.end <= set[i].end
}

// withPermissions returns the user with what its roles permit in a.
func (a *Auth) withPermissions(u *authpb.User) *authUser {
	out := &authUser{User: u}
	var read, write []span
	for _, name := range u.Roles {
		out.root = out.root || name == rootRole
		for _, p := range a.role(name).GetKeyPermission() {
			sp := newSpan(p.Key, p.RangeEnd)
			if p.PermType == authpb.Permission_READ || p.PermType == authpb.Permission_READWRITE {
				read = append(read, sp)
			}
			if p.PermType == authpb.Permission_WRITE || p.PermType == authpb.Permission_READWRITE {
				write = append(write, sp)
			}
		}
	}
	out.read, out.write = newSpanSet(read), newSpanSet(write)
	return out
}

// validPermission tells whether a permission's range can hold a key.
func validPermission(p *authpb.Permission) bool {
	if len(p.Key) == 0 {
		return false
	}
	return len(p.RangeEnd) == 0 || newSpan(p.Key, p.RangeEnd).toEnd || bytes.Compare(p.Key, p.RangeEnd) < 0
}
