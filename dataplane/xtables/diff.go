package xtables

import (
	"slices"
)

// verb of an op.
type opVerb uint8

const (
	opTable opVerb = iota
	opHook
	opNewChain
	opAppend
	opInsert
	opFlush
	opDelRule
	opDelChain
	opDelTable
)

// op is one change of the kernel's tables.
type op struct {
	verb   opVerb
	key    chainKey
	rule   encoded // opAppend, opInsert
	handle uint64  // opDelRule
	owner  string
	keep   bool // the rule's handle will be needed
	text   func() string
}

// diff collects the changes that lead from what the kernel holds to what is wanted, in the order that keeps traffic
// flowing at each point: chains, their rules, then the rules that lead to them, then removals.
type diff struct {
	w                                  *Writer
	tables, chains, fill, lead, unlead []op
	empty, drop                        []op
	dropKeys                           []chainKey
	wanted                             map[chainKey]bool
	refs                               map[sharedRef]bool
	mirror                             []func() // what to remember once it has been written
	have                               map[chainKey]*held
}

func newDiff(w *Writer) *diff {
	return &diff{w: w, wanted: map[chainKey]bool{}, refs: map[sharedRef]bool{}, have: w.have}
}

func (d *diff) ops() []op {
	return slices.Concat(d.tables, d.chains, d.fill, d.lead, d.unlead, d.empty, d.drop)
}

// ordered wants a chain with exactly these rules.
func (d *diff) ordered(owner string, c Chain) {
	key := chainKey{c.Table, c.Name}
	d.wanted[key] = true
	enc := make([]encoded, len(c.Rules))
	prints := make([]fingerprint, len(c.Rules))
	for i := range c.Rules {
		enc[i] = c.Rules[i].encode(d.w.family)
		prints[i] = enc[i].print
	}
	h := d.have[key]
	if h != nil && slices.Equal(h.prints, prints) {
		return
	}
	if h == nil {
		d.chains = append(d.chains, op{verb: opNewChain, key: key, owner: owner})
	} else if len(h.prints) > 0 {
		d.fill = append(d.fill, op{verb: opFlush, key: key, owner: owner})
	}
	for i := range enc {
		d.fill = append(d.fill, op{verb: opAppend, key: key, rule: enc[i], owner: owner, text: c.Rules[i].String})
	}
	d.mirror = append(d.mirror, func() { d.w.have[key] = &held{prints: prints} })
}

// own wants an owner's plan.
func (d *diff) own(owner string, p *Plan) {
	next := &ownerState{}
	for _, c := range p.Chains {
		d.ordered(owner, c)
		next.chains = append(next.chains, chainKey{c.Table, c.Name})
	}
	for _, e := range p.Shared {
		key := chainKey{e.Table, e.Chain}
		enc := e.Rule.encode(d.w.family)
		ref := sharedRef{key, enc.print}
		if slices.Contains(next.shared, ref) {
			continue
		}
		next.shared = append(next.shared, ref)
		d.refs[ref] = true
		if h := d.have[key]; h == nil || h.handles[enc.print] == 0 {
			d.lead = append(d.lead, op{verb: opInsert, key: key, rule: enc, owner: owner, keep: true, text: e.Rule.String})
		}
	}
	if was := d.w.owners[owner]; was != nil {
		d.leave(was, next.shared)
	}
	d.mirror = append(d.mirror, func() { d.w.owners[owner] = next })
}

// disown wants nothing for an owner.
func (d *diff) disown(owner string) {
	if was := d.w.owners[owner]; was != nil {
		d.leave(was, nil)
		d.mirror = append(d.mirror, func() { delete(d.w.owners, owner) })
	}
}

// leave gives up what an owner had, except the shared entries in still.
func (d *diff) leave(was *ownerState, still []sharedRef) {
	for _, ref := range was.shared {
		h := d.have[ref.key]
		if slices.Contains(still, ref) || h == nil || h.handles[ref.print] == 0 {
			continue
		}
		d.unlead = append(d.unlead, op{verb: opDelRule, key: ref.key, handle: h.handles[ref.print]})
		d.mirror = append(d.mirror, func() { delete(h.handles, ref.print) })
	}
	d.dropKeys = append(d.dropKeys, was.chains...)
}

// dropChain removes a chain of ours; every rule of ours that leads to it goes in the same transaction.
func (d *diff) dropChain(key chainKey) {
	d.empty = append(d.empty, op{verb: opFlush, key: key})
	d.drop = append(d.drop, op{verb: opDelChain, key: key})
	d.mirror = append(d.mirror, func() { delete(d.w.have, key) })
}

// finish settles which chains really go: those that no owner of this change wants.
func (d *diff) finish() {
	for _, key := range d.dropKeys {
		if !d.wanted[key] && d.have[key] != nil {
			d.wanted[key] = true // once
			d.dropChain(key)
		}
	}
}

// hooks are iptables' built-in chains that a Base may jump from, with hook number, priority and type as iptables-nft
// creates them (NF_INET_* and NF_IP_PRI_*).
var hooks = map[chainKey]struct {
	typ      string
	hook     uint32
	priority int32
}{
	{"nat", "PREROUTING"}:  {"nat", 0, -100},
	{"nat", "INPUT"}:       {"nat", 1, 100},
	{"nat", "OUTPUT"}:      {"nat", 3, -100},
	{"nat", "POSTROUTING"}: {"nat", 4, 100},
	{"filter", "INPUT"}:    {"filter", 1, 0},
	{"filter", "FORWARD"}:  {"filter", 2, 0},
	{"filter", "OUTPUT"}:   {"filter", 3, 0},
}

// adopt takes over what the kernel holds of ours and wants the Base.
func (d *diff) adopt(k *kernel) {
	w := d.w
	for key, c := range k.chains {
		if !w.owned(key) || c.base {
			continue
		}
		h := &held{prints: make([]fingerprint, len(c.rules))}
		for i, r := range c.rules {
			h.prints[i] = r.print
		}
		if w.shared[key] {
			h.handles = map[fingerprint]uint64{}
		}
		d.have[key] = h
	}
	for _, t := range []string{"nat", "filter"} {
		if !k.tables[t] {
			d.tables = append(d.tables, op{verb: opTable, key: chainKey{table: t}})
		}
	}
	for _, c := range w.base.Chains {
		d.ordered("", c)
	}
	for _, c := range w.base.Shared {
		d.adoptShared(k, c)
	}
	hooked := map[chainKey]bool{}
	for _, j := range slices.Backward(w.base.Jumps) { // each goes to the head
		key := chainKey{j.Table, j.Chain}
		c := k.chains[key]
		if c == nil && !hooked[key] {
			d.tables = append(d.tables, op{verb: opHook, key: key})
			hooked[key] = true
		}
		enc := j.Rule.encode(w.family)
		found := false
		if c != nil {
			for _, r := range c.rules {
				if r.print != enc.print {
					continue
				}
				if found { // a copy
					d.unlead = append(d.unlead, op{verb: opDelRule, key: key, handle: r.handle})
				}
				found = true
			}
		}
		if !found {
			d.lead = append(d.lead, op{verb: opInsert, key: key, rule: enc, text: j.Rule.String})
		}
	}
}

// adoptShared takes over a shared chain: its tail is put right; what no plan wants is found by prune.
func (d *diff) adoptShared(k *kernel, c Chain) {
	key := chainKey{c.Table, c.Name}
	d.wanted[key] = true
	h := d.have[key]
	if h == nil {
		d.chains = append(d.chains, op{verb: opNewChain, key: key})
		h = &held{handles: map[fingerprint]uint64{}}
		d.have[key] = h
	}
	var rules []kernelRule
	if kc := k.chains[key]; kc != nil {
		rules = kc.rules
	}
	n := len(rules) - len(c.Rules)
	tailRight := n >= 0
	enc := make([]encoded, len(c.Rules))
	for i := range c.Rules {
		enc[i] = c.Rules[i].encode(d.w.family)
		tailRight = tailRight && rules[n+i].print == enc[i].print
	}
	if tailRight {
		rules = rules[:n]
	} else {
		for i := range enc {
			d.fill = append(d.fill, op{verb: opAppend, key: key, rule: enc[i], text: c.Rules[i].String})
		}
	}
	for _, r := range rules {
		if r.print == (fingerprint{}) || h.handles[r.print] != 0 || (!tailRight && slices.ContainsFunc(enc, func(e encoded) bool { return e.print == r.print })) {
			d.unlead = append(d.unlead, op{verb: opDelRule, key: key, handle: r.handle})
			continue
		}
		h.handles[r.print] = r.handle
	}
}

// prune gives up chains and entries of ours that nothing in this change wants.
func (d *diff) prune() {
	for key, h := range d.have {
		if !d.wanted[key] {
			d.dropChain(key)
			continue
		}
		for print, handle := range h.handles {
			if !d.refs[sharedRef{key, print}] {
				d.unlead = append(d.unlead, op{verb: opDelRule, key: key, handle: handle})
				delete(h.handles, print)
			}
		}
	}
}

// remove gives up everything of ours.
func (d *diff) remove(k *kernel) {
	jumps := map[fingerprint]bool{}
	for _, j := range d.w.base.Jumps {
		r := j.Rule
		jumps[r.encode(d.w.family).print] = true
	}
	left := map[string]bool{} // tables where something remains
	for key, c := range k.chains {
		if d.w.owned(key) && !c.base {
			d.empty = append(d.empty, op{verb: opFlush, key: key})
			d.drop = append(d.drop, op{verb: opDelChain, key: key})
			continue
		}
		ours := 0
		for _, r := range c.rules {
			if jumps[r.print] || (r.jump != "" && d.w.owned(chainKey{key.table, r.jump})) {
				d.unlead = append(d.unlead, op{verb: opDelRule, key: key, handle: r.handle})
				ours++
			}
		}
		if ours < len(c.rules) || !c.base || !c.accept {
			left[key.table] = true
		}
	}
	for _, t := range []string{"nat", "filter"} {
		touched := slices.ContainsFunc(d.ops(), func(o op) bool { return o.key.table == t })
		if k.tables[t] && touched && !left[t] {
			d.drop = append(d.drop, op{verb: opDelTable, key: chainKey{table: t}})
		}
	}
}
