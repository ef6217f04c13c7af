package xtables

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// maxTransaction bounds one transaction's bytes. What is larger is written in several, in an order in which each
// prefix is sound.
const maxTransaction = 32 << 20

// write puts a diff into the kernel and remembers it. generation, unless 0, is the one the diff was made from.
func (w *Writer) write(ctx context.Context, d *diff, generation uint32) error {
	ops := d.ops()
	type ref struct {
		key   chainKey
		print fingerprint
	}
	awaited := map[uint32]ref{}
	handles := map[ref]uint64{}
	echo := func(seq uint32, attrs []byte) {
		r, ok := awaited[seq]
		if !ok {
			return
		}
		attributes(attrs, func(typ uint16, data []byte) {
			if typ == unix.NFTA_RULE_HANDLE {
				handles[r] = handleOf(data)
			}
		})
	}
	if generation != 0 {
		w.gen = generation
	}
	t := w.c.begin(generation)
	for i := range ops {
		if err := ctx.Err(); err != nil {
			return err
		}
		o := &ops[i]
		seq := w.add(t, o)
		if o.keep {
			awaited[seq] = ref{o.key, o.rule.print}
		}
		if len(t.b) < maxTransaction {
			continue
		}
		if err := w.c.commit(t, echo); err != nil {
			return refusals(err)
		}
		w.gen++
		t = w.c.begin(0)
	}
	if err := w.c.commit(t, echo); err != nil {
		return refusals(err)
	}
	if len(t.what) > 0 {
		w.gen++
	}
	for _, f := range d.mirror {
		f()
	}
	for r, h := range handles {
		held := w.have[r.key]
		if held == nil || h == 0 {
			return fmt.Errorf("nf_tables gave no handle for a rule in chain %s", r.key.name)
		}
		held.handles[r.print] = h
	}
	if len(handles) != len(awaited) {
		return fmt.Errorf("nf_tables told %d of %d rule handles", len(handles), len(awaited))
	}
	w.count()
	return nil
}

func (w *Writer) count() {
	n := 0
	for _, h := range w.have {
		n += len(h.prints)
		if h.handles != nil {
			n += len(h.handles) - len(h.prints)
		}
	}
	w.rules.Store(int64(n))
}

// refusals turns a commit's joined error into opErrors, if it is made of nothing else.
func refusals(err error) error {
	joined, ok := err.(interface{ Unwrap() []error })
	if !ok {
		return err
	}
	var ops opErrors
	for _, e := range joined.Unwrap() {
		var o *opError
		if !errors.As(e, &o) {
			return err
		}
		ops = append(ops, o)
	}
	if len(ops) == 0 {
		return err
	}
	return ops
}

// add renders one op as a netlink message.
func (w *Writer) add(t *transaction, o *op) uint32 {
	const create, appendTo, echo = unix.NLM_F_CREATE, unix.NLM_F_APPEND, unix.NLM_F_ECHO
	f := w.family
	what := func() string { return o.String() }
	switch o.verb {
	case opTable:
		return w.c.op(t, unix.NFT_MSG_NEWTABLE, create, f, o.owner, what, func(b *buffer) {
			b.str(unix.NFTA_TABLE_NAME, o.key.table)
		})
	case opDelTable:
		return w.c.op(t, unix.NFT_MSG_DELTABLE, 0, f, o.owner, what, func(b *buffer) {
			b.str(unix.NFTA_TABLE_NAME, o.key.table)
		})
	case opHook, opNewChain:
		return w.c.op(t, unix.NFT_MSG_NEWCHAIN, create, f, o.owner, what, func(b *buffer) {
			b.str(unix.NFTA_CHAIN_TABLE, o.key.table)
			b.str(unix.NFTA_CHAIN_NAME, o.key.name)
			if o.verb == opNewChain {
				return
			}
			h := hooks[o.key]
			end := b.nest(unix.NFTA_CHAIN_HOOK)
			b.u32(unix.NFTA_HOOK_HOOKNUM, h.hook)
			b.u32(unix.NFTA_HOOK_PRIORITY, uint32(h.priority))
			end()
			b.u32(unix.NFTA_CHAIN_POLICY, 1) // NF_ACCEPT
			b.str(unix.NFTA_CHAIN_TYPE, h.typ)
		})
	case opDelChain:
		return w.c.op(t, unix.NFT_MSG_DELCHAIN, 0, f, o.owner, what, func(b *buffer) {
			b.str(unix.NFTA_CHAIN_TABLE, o.key.table)
			b.str(unix.NFTA_CHAIN_NAME, o.key.name)
		})
	case opFlush, opDelRule:
		return w.c.op(t, unix.NFT_MSG_DELRULE, 0, f, o.owner, what, func(b *buffer) {
			b.str(unix.NFTA_RULE_TABLE, o.key.table)
			b.str(unix.NFTA_RULE_CHAIN, o.key.name)
			if o.verb == opDelRule {
				b.u64(unix.NFTA_RULE_HANDLE, o.handle)
			}
		})
	}
	flags := uint16(create)
	if o.verb == opAppend {
		flags |= appendTo
	}
	if o.keep {
		flags |= echo
	}
	return w.c.op(t, unix.NFT_MSG_NEWRULE, flags, f, o.owner, what, func(b *buffer) {
		b.str(unix.NFTA_RULE_TABLE, o.key.table)
		b.str(unix.NFTA_RULE_CHAIN, o.key.name)
		b.b = append(b.b, o.rule.attrs...)
	})
}

// String is the op as an iptables command line, for messages and tests.
func (o *op) String() string {
	text := ""
	if o.text != nil {
		text = " " + o.text()
	}
	p := "-t " + o.key.table
	switch o.verb {
	case opTable:
		return "create table " + o.key.table
	case opDelTable:
		return "delete table " + o.key.table
	case opHook:
		return p + " create built-in chain " + o.key.name
	case opNewChain:
		return p + " -N " + o.key.name
	case opDelChain:
		return p + " -X " + o.key.name
	case opFlush:
		return p + " -F " + o.key.name
	case opDelRule:
		return fmt.Sprintf("%s -D %s (handle %d)", p, o.key.name, o.handle)
	case opInsert:
		return p + " -I " + o.key.name + text
	}
	return p + " -A " + o.key.name + text
}
