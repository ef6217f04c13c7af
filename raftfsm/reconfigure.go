package raftfsm

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// healthyFor is how long peers must have been in unbroken contact with the leader to count as healthy where
// Rules.Strict asks for it; etcd's health interval. See contactEnough.
const healthyFor = 5 * time.Second

// Rules are what a change of members by Create, PromoteBy or RemoveBy must keep to.
type Rules struct {
	// Strict refuses a change after which a majority would not be sure: ErrNotStarted, ErrUnhealthy.
	Strict bool
	// MaxLearners is how many members may learn without wanting to vote; 0 is no limit.
	MaxLearners int
}

var (
	// ErrNotStarted means that too few of the voters that there would be have ever started.
	ErrNotStarted = errors.New("too few of the voters have started")
	// ErrUnhealthy means that the leader was not in contact with enough voters for the last five seconds, or since
	// it leads.
	ErrUnhealthy = errors.New("too few of the voters were in contact for the last five seconds")
	// ErrAddressTaken means that another member has the peer address.
	ErrAddressTaken = errors.New("another member has the peer address")
	// ErrNotLearner means that a member that is to be promoted votes already, or will by itself.
	ErrNotLearner = errors.New("the member is not a learner")
	// ErrTooManyLearners means that Rules.MaxLearners are there.
	ErrTooManyLearners = errors.New("there are too many learners")
)

// Create adds a member that has not started and whose name is not known yet: its ID is made here, and the peer
// learns it with Roster. Of m, PeerAddr and PeerURLs count, and WantsVote: such a member is made a voter by
// the leader as soon as it has caught up, so that it never counts against a majority before that. It may be called
// on any member. Errors: ErrAddressTaken, ErrTooManyLearners, those of Rules, or of the proposal.
func (n *Node) Create(ctx context.Context, m Member, r Rules) (Member, error) {
	m = Member{ID: PeerID(randomID()), PeerAddr: m.PeerAddr, PeerURLs: m.PeerURLs, WantsVote: m.WantsVote}
	if err := n.change(ctx, memberOp{Op: "create", Member: m, Rules: r}); err != nil {
		return Member{}, err
	}
	return m, nil
}

// PromoteBy is Promote under rules, where a member that votes already is ErrNotLearner.
func (n *Node) PromoteBy(ctx context.Context, id PeerID, r Rules) error {
	return n.change(ctx, memberOp{Op: "promote-by", Member: Member{ID: id}, Rules: r})
}

// RemoveBy is Remove under rules, where a peer that is no member is ErrNotMember.
func (n *Node) RemoveBy(ctx context.Context, id PeerID, r Rules) error {
	// The rules are asked of whoever leads now: a leader that is to be removed hands over, and the next one has
	// not been in contact with anyone for long.
	if err := n.change(ctx, memberOp{Op: "may-remove", Member: Member{ID: id}, Rules: r}); err != nil {
		return err
	}
	return n.Remove(ctx, id)
}

// Readdress has the others reach a member at m.PeerAddr from now on, whatever the member's own configuration
// said until now; when that changes, it counts again. PeerURLs are told with it. Errors: ErrNotMember,
// ErrAddressTaken, or of the proposal.
func (n *Node) Readdress(ctx context.Context, m Member) error {
	return n.change(ctx, memberOp{Op: "readdress", Member: m})
}

func (n *Node) createHere(ctx context.Context, m Member, r Rules) error {
	if _, ok := n.server(m.ID); ok {
		return nil // sent again
	}
	members := n.Members()
	if err := addressTaken(members, m); err != nil {
		return err
	}
	learners := 0
	for _, o := range members {
		if !o.votes() {
			learners++
		}
	}
	if !m.WantsVote && r.MaxLearners > 0 && learners >= r.MaxLearners {
		return fmt.Errorf("%w: %d of %d", ErrTooManyLearners, learners, r.MaxLearners)
	}
	if r.Strict {
		if err := n.mayAdd(members, m.WantsVote); err != nil {
			return fmt.Errorf("add a peer at %s: %w", m.PeerAddr, err)
		}
	}
	if err := n.recordMember(ctx, m); err != nil {
		return fmt.Errorf("add peer %v: %w", m.ID, err)
	}
	f := n.raft.AddNonvoter(raft.ServerID(m.ID.String()), raft.ServerAddress(m.PeerAddr), 0, timeLeft(ctx, n.cfg.RequestTimeout))
	if err := n.raftDone(ctx, f); err != nil {
		return fmt.Errorf("add peer %v at %s: %w", m.ID, m.PeerAddr, err)
	}
	return nil
}

func addressTaken(members []Member, m Member) error {
	for _, o := range members {
		shared := o.PeerAddr == m.PeerAddr || slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(o.PeerURLs, u) })
		if o.ID != m.ID && shared {
			return fmt.Errorf("%w: %s is of member %v (%s)", ErrAddressTaken, m.PeerAddr, o.ID, o.Name)
		}
	}
	return nil
}

// votes tells whether m votes, or will when it has caught up.
func (m Member) votes() bool { return m.Voter || m.WantsVote }

// started counts the voters, apart from one, and those of them that have told their name.
func started(members []Member, apart PeerID) (voters, started int) {
	for _, m := range members {
		if m.ID == apart || !m.votes() {
			continue
		}
		voters++
		if m.Name != "" {
			started++
		}
	}
	return voters, started
}

// mayAdd holds the rules of etcd for a new member, which counts as a voter that is away.
func (n *Node) mayAdd(members []Member, voter bool) error {
	voters, up := started(members, 0)
	if voter && (voters != 1 || up != 1) && up < (voters+1)/2+1 {
		return fmt.Errorf("%w: %d of %d", ErrNotStarted, up, voters+1)
	}
	if voters == 1 {
		return nil
	}
	if healthy := n.healthy(members); healthy < (voters+1)/2+1 {
		return fmt.Errorf("%w: %d of %d", ErrUnhealthy, healthy, voters+1)
	}
	return nil
}

// mayRemove holds the rules of etcd for the removal of a voter.
func (n *Node) mayRemove(members []Member, id PeerID) error {
	i := slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
	if i < 0 || !members[i].votes() {
		return nil
	}
	voters, up := started(members, id)
	if up < voters/2+1 {
		return fmt.Errorf("%w: %d of %d", ErrNotStarted, up, voters)
	}
	if id != n.id && !n.trans.inTouch(raft.ServerID(id.String()), contactGap) {
		return nil // it is away: the majority does not rest on it
	}
	if healthy := n.healthy(members); healthy-1 < voters/2+1 {
		return fmt.Errorf("%w: %d of %d", ErrUnhealthy, healthy-1, voters)
	}
	return nil
}

// healthy counts the voters that were in contact with this leader for long enough, itself among them.
func (n *Node) healthy(members []Member) int {
	count, enough := 0, contactEnough(n.lead.since())
	for _, m := range members {
		if m.votes() && (m.ID == n.id || n.trans.touchedSince(raft.ServerID(m.ID.String()), enough)) {
			count++
		}
	}
	return count
}

// contactEnough is how long a peer must have been in contact with a leader that began to lead some time ago, in a
// process that has known a leader for some time. etcd's members are in contact with each other whoever leads. Here
// it is the leader alone, so that a peer that answered a new leader from the beginning counts at once; in a cluster
// that has only just begun, nobody does.
func contactEnough(known, led time.Duration) time.Duration {
	if known < healthyFor {
		return healthyFor
	}
	return min(healthyFor, max(0, led-contactGap))
}

func (n *Node) promoteBy(ctx context.Context, id PeerID, r Rules) error {
	members := n.Members()
	i := slices.IndexFunc(members, func(m Member) bool { return m.ID == id })
	switch {
	case i < 0:
		return fmt.Errorf("promote peer %v: %w", id, ErrNotMember)
	case members[i].votes():
		return fmt.Errorf("promote peer %v: %w", id, ErrNotLearner)
	}
	if voters, up := started(members, 0); r.Strict && up+1 < (voters+1)/2+1 {
		return fmt.Errorf("promote peer %v: %w: %d of %d", id, ErrNotStarted, up+1, voters+1)
	}
	return n.promoteHere(ctx, id)
}

func (n *Node) mayRemoveBy(id PeerID, r Rules) error {
	if _, ok := n.server(id); !ok {
		return fmt.Errorf("remove peer %v: %w", id, ErrNotMember)
	}
	if r.Strict {
		if err := n.mayRemove(n.Members(), id); err != nil {
			return fmt.Errorf("remove peer %v: %w", id, err)
		}
	}
	return nil
}

func (n *Node) readdressHere(ctx context.Context, to Member) error {
	s, ok := n.server(to.ID)
	if !ok {
		return fmt.Errorf("change the address of peer %v: %w", to.ID, ErrNotMember)
	}
	if err := addressTaken(n.Members(), to); err != nil {
		return fmt.Errorf("change the address of peer %v: %w", to.ID, err)
	}
	m, ok := n.fsm.member(to.ID)
	if !ok {
		m = Member{ID: to.ID}
	}
	if m.Overrides == "" && m.Name != "" {
		m.Overrides = string(s.Address)
	}
	m.PeerAddr, m.PeerURLs = to.PeerAddr, to.PeerURLs
	if err := n.recordMember(ctx, m); err != nil {
		return fmt.Errorf("change the address of peer %v: %w", to.ID, err)
	}
	if string(s.Address) == to.PeerAddr {
		return nil
	}
	change := n.raft.AddNonvoter
	if s.Suffrage == raft.Voter {
		change = n.raft.AddVoter
	}
	if err := n.raftDone(ctx, change(s.ID, raft.ServerAddress(to.PeerAddr), 0, timeLeft(ctx, n.cfg.RequestTimeout))); err != nil {
		return fmt.Errorf("change the address of peer %v to %s: %w", to.ID, to.PeerAddr, err)
	}
	return nil
}

// promoteWaiting makes members that want to vote voters while this peer leads.
func (n *Node) promoteWaiting() {
	const every = 250 * time.Millisecond
	for {
		select {
		case <-n.stop:
			return
		case <-time.After(every):
		}
		if !n.IsLeader() {
			continue
		}
		for _, m := range n.Members() {
			if m.WantsVote && !m.Voter {
				n.promoteIfReady(m.ID)
			}
		}
	}
}

func (n *Node) promoteIfReady(id PeerID) {
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.RequestTimeout)
	defer cancel()
	// Asked before it counts as a change: one that is away must not hold up other changes.
	ask, done := context.WithTimeout(ctx, time.Second)
	_, err := n.askStatus(ask, id)
	done()
	if err != nil {
		return
	}
	if err := n.changeHere(ctx, memberOp{Op: "promote", Member: Member{ID: id}}); err != nil && !errors.Is(err, ErrLagging) && !n.stopping() {
		n.log.Warn("a member that has caught up could not be made a voter; tried again", "peer", id.String(), "error", err)
	}
}
