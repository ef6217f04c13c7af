package xtables

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Chain is a chain with its rules in order.
type Chain struct {
	Table, Name string
	Rules       []Rule
}

// Entry is a rule in a chain that several owners share. The order of entries in a chain is not defined.
type Entry struct {
	Table, Chain string
	Rule         Rule
}

// Plan is everything one owner wants: chains of its own and entries in shared chains.
type Plan struct {
	Chains []Chain
	Shared []Entry
}

// Base is what a Writer keeps besides the owners' plans.
type Base struct {
	// Chains are fixed chains.
	Chains []Chain
	// Shared are the chains that plans may have entries in; their Rules come after all entries.
	Shared []Chain
	// Jumps are rules at the head of built-in chains (INPUT, PREROUTING…) of tables nat and filter.
	Jumps []Entry
	// Prefixes mark the chains of plans by name: a chain with such a name that no plan has is removed by Sync.
	Prefixes []string
}

// OwnerErrors says whose plans the kernel refused; those owners have no rules, the others' were written.
type OwnerErrors map[string]error

func (e OwnerErrors) Error() string {
	for o, err := range e {
		return fmt.Sprintf("%d refused, one of them %s: %v", len(e), o, err)
	}
	return "none refused"
}

type chainKey struct{ table, name string }

// held is a chain of ours as the kernel has it.
type held struct {
	prints  []fingerprint          // in order
	handles map[fingerprint]uint64 // of shared chains only
}

// sharedRef is one owner's entry in a shared chain.
type sharedRef struct {
	key   chainKey
	print fingerprint
}

// ownerState is what was written for one owner.
type ownerState struct {
	chains []chainKey
	shared []sharedRef
}

// Writer keeps rules of one family in the kernel. One caller at a time, but for Rules.
type Writer struct {
	c      *conn
	family Family
	base   Base
	shared map[chainKey]bool

	plans  map[string]*Plan // wanted
	have   map[chainKey]*held
	owners map[string]*ownerState
	known  bool   // have is what the kernel holds
	gen    uint32 // the tables' generation that our last write led to, if nobody else wrote
	rules  atomic.Int64
}

// Open makes a Writer for the network namespace of the calling thread. Nothing is written before Sync.
func Open(f Family, base Base) (*Writer, error) {
	c, err := dial()
	if err != nil {
		return nil, err
	}
	w := &Writer{c: c, family: f, plans: map[string]*Plan{}}
	w.SetBase(base)
	return w, nil
}

// SetBase replaces the Base; the next Sync writes it.
func (w *Writer) SetBase(base Base) {
	w.base, w.known, w.shared = base, false, map[chainKey]bool{}
	for _, s := range base.Shared {
		w.shared[chainKey{s.Table, s.Name}] = true
	}
}

// Close closes the socket; the rules stay.
func (w *Writer) Close() error { return w.c.close() }

// Rules is how many rules of plans and fixed chains the kernel holds.
func (w *Writer) Rules() int { return int(w.rules.Load()) }

// Empty says whether the Writer has no plan.
func (w *Writer) Empty() bool { return len(w.plans) == 0 }

// Apply replaces the plans of the owners in set and drops those in del, in one transaction. After an error nothing
// has been written and Sync has to be called, with these plans in force.
func (w *Writer) Apply(ctx context.Context, set map[string]*Plan, del []string) error {
	for o, p := range set {
		w.plans[o] = p
	}
	for _, o := range del {
		delete(w.plans, o)
	}
	if !w.known {
		return errors.New("iptables rules have not been read yet: sync first")
	}
	d := newDiff(w)
	for _, o := range slices.Sorted(keys(set)) {
		d.own(o, set[o])
	}
	for _, o := range del {
		d.disown(o)
	}
	d.finish()
	if err := w.write(ctx, d, 0); err != nil {
		w.known = false
		return fmt.Errorf("write iptables rules of %d services: %w", len(set)+len(del), err)
	}
	return nil
}

func keys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// Sync makes all the plans that exist: reads the kernel, writes what differs, removes chains of ours that no plan
// has. Plans that the kernel refuses are left out and reported as OwnerErrors.
func (w *Writer) Sync(ctx context.Context, all map[string]*Plan) error {
	w.plans = all
	w.known = false
	refused := OwnerErrors{}
	const attempts = 10
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := w.syncOnce(ctx, refused)
		var ops opErrors
		switch {
		case err == nil && len(refused) > 0:
			return refused
		case err == nil:
			return nil
		case try == attempts:
			return fmt.Errorf("sync iptables rules: %w", err)
		case errors.Is(err, errInterrupted) || errors.Is(err, unix.ERESTART):
			continue // someone else changed the tables meanwhile
		case errors.As(err, &ops) && ops.blame(refused):
			continue
		}
		return fmt.Errorf("sync iptables rules: %w", err)
	}
}

// opErrors are the refusals of one transaction.
type opErrors []*opError

func (e opErrors) Error() string {
	s := e[0].Error()
	if len(e) > 1 {
		s = fmt.Sprintf("%s (and %d more)", s, len(e)-1)
	}
	return s
}
func (e opErrors) Unwrap() error { return e[0] }

// blame adds the owners of refused operations to refused; false if some operation had no owner, or none is new.
func (e opErrors) blame(refused OwnerErrors) bool {
	n := len(refused)
	for _, o := range e {
		if o.owner == "" {
			return false
		}
		if refused[o.owner] == nil {
			refused[o.owner] = o
		}
	}
	return len(refused) > n
}

func (w *Writer) syncOnce(ctx context.Context, refused OwnerErrors) error {
	k, err := w.read()
	if err != nil {
		return err
	}
	w.have, w.owners = map[chainKey]*held{}, map[string]*ownerState{}
	d := newDiff(w)
	d.adopt(k)
	for _, o := range slices.Sorted(keys(w.plans)) {
		if refused[o] == nil {
			d.own(o, w.plans[o])
		}
	}
	d.prune()
	d.finish()
	if err := w.write(ctx, d, k.generation); err != nil {
		return err
	}
	w.known = true
	return nil
}

// owned says whether a chain is one that this Writer may change as a whole.
func (w *Writer) owned(k chainKey) bool {
	if w.shared[k] || w.fixed(k) {
		return true
	}
	if k.table != "nat" && k.table != "filter" {
		return false
	}
	return slices.ContainsFunc(w.base.Prefixes, func(p string) bool { return strings.HasPrefix(k.name, p) })
}

func (w *Writer) fixed(k chainKey) bool {
	return slices.ContainsFunc(w.base.Chains, func(c Chain) bool { return c.Table == k.table && c.Name == k.name })
}

// Drifted says whether someone else has changed tables since the last Sync or Apply: a firewall tool that was
// restarted may have flushed everything. It costs one small request. A Writer that holds nothing has not drifted.
func (w *Writer) Drifted() (bool, error) {
	if !w.known {
		return false, nil
	}
	g, err := w.c.generation()
	if err != nil {
		return false, fmt.Errorf("ask for the nf_tables generation: %w", err)
	}
	return g != w.gen, nil
}

// Repair is Sync with the plans in force.
func (w *Writer) Repair(ctx context.Context) error { return w.Sync(ctx, w.plans) }

// Cleanup removes the Writer's chains and jumps, and a table of which nothing is left then.
func (w *Writer) Cleanup(ctx context.Context) error {
	w.known, w.plans = false, map[string]*Plan{}
	const attempts = 10
	for try := 0; ; try++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		k, err := w.read()
		if err == nil {
			d := newDiff(w)
			d.remove(k)
			err = w.write(ctx, d, k.generation)
		}
		if err == nil {
			w.rules.Store(0)
			return nil
		}
		if try < attempts && (errors.Is(err, errInterrupted) || errors.Is(err, unix.ERESTART)) {
			continue
		}
		return fmt.Errorf("remove iptables rules: %w", err)
	}
}
