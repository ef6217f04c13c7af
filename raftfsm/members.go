package raftfsm

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/hashicorp/raft"
)

// Member is a peer of the cluster.
type Member struct {
	ID       PeerID `json:"id"`
	Name     string `json:"name"`
	PeerAddr string `json:"peerAddr"` // host:port of raft and the peer RPC
	// PeerURLs are what clients of etcd's API are told of PeerAddr; empty means https://PeerAddr.
	PeerURLs   []string `json:"peerURLs,omitempty"`
	ClientURLs []string `json:"clientURLs,omitempty"`
	APIURLs    []string `json:"apiURLs,omitempty"`
	Version    string   `json:"version,omitempty"`
	// Voter is false while the peer only learns. It is taken from the raft configuration.
	Voter bool `json:"voter,omitempty"`
	// WantsVote asks the leader to make the peer a voter as soon as it has caught up; see Create.
	WantsVote bool `json:"wantsVote,omitempty"`
	// Overrides is the address that the peer's own configuration had when Readdress set another.
	Overrides string `json:"overrides,omitempty"`
}

func compareMembers(a, b Member) int { return cmp.Compare(a.ID, b.ID) }

func (m Member) equal(o Member) bool {
	return m.ID == o.ID && m.Name == o.Name && m.PeerAddr == o.PeerAddr && m.Version == o.Version &&
		m.WantsVote == o.WantsVote && m.Overrides == o.Overrides && slices.Equal(m.PeerURLs, o.PeerURLs) &&
		slices.Equal(m.ClientURLs, o.ClientURLs) && slices.Equal(m.APIURLs, o.APIURLs)
}

var (
	// ErrNameTaken means that another member has the name.
	ErrNameTaken = errors.New("the name is taken")
	// ErrNotMember means that there is no such member.
	ErrNotMember = errors.New("no such member")
	// ErrBootstrapped means that the peer already belongs to a cluster.
	ErrBootstrapped = errors.New("this peer already belongs to a cluster: to start anew, stop it and empty its raft directory")
	// ErrLagging means that a peer is not near enough to the leader to become a voter; try again.
	ErrLagging = errors.New("the peer has not caught up")
	// ErrQuorum means that removing a voter would leave no majority of live ones.
	ErrQuorum = errors.New("too few of the other voters are reachable")
)

// Bootstrap makes this peer the first member of a new cluster, and returns once it leads.
func (n *Node) Bootstrap(ctx context.Context) error {
	f := n.raft.BootstrapCluster(raft.Configuration{Servers: []raft.Server{{
		Suffrage: raft.Voter, ID: raft.ServerID(n.id.String()), Address: raft.ServerAddress(n.cfg.AdvertisePeer),
	}}})
	err := n.await(f)
	if errors.Is(err, raft.ErrCantBootstrap) {
		return ErrBootstrapped
	}
	if err != nil {
		return fmt.Errorf("bootstrap the cluster: %w", err)
	}
	if err := n.waitReady(ctx); err != nil {
		return fmt.Errorf("bootstrap the cluster: wait for leadership: %w", err)
	}
	id, _ := json.Marshal(randomID())
	if err := n.record(ctx, recClusterInit, id); err != nil {
		return fmt.Errorf("bootstrap the cluster: %w", err)
	}
	if err := n.recordMember(ctx, n.selfMember()); err != nil {
		return fmt.Errorf("bootstrap the cluster: %w", err)
	}
	n.log.Info("cluster bootstrapped", "cluster", fmt.Sprintf("%016x", n.ClusterID()), "peer", n.id.String())
	return nil
}

// BootstrapTogether makes this peer a founding voter of a new cluster. Every founder calls it, on its own
// Node, with the same cluster ID (not 0) and the same founders, of which ID and PeerAddr count; those of a
// majority suffice. It returns once the cluster knows this peer. On a peer that already has state it only sees to
// that, so it may be called at every start until it has returned nil once.
func (n *Node) BootstrapTogether(ctx context.Context, cluster uint64, founders []Member) error {
	founders = slices.Clone(founders)
	slices.SortFunc(founders, compareMembers) // all write the same first entry
	var conf raft.Configuration
	for _, m := range founders {
		conf.Servers = append(conf.Servers, raft.Server{Suffrage: raft.Voter, ID: raft.ServerID(m.ID.String()), Address: raft.ServerAddress(m.PeerAddr)})
	}
	if err := n.await(n.raft.BootstrapCluster(conf)); err != nil && !errors.Is(err, raft.ErrCantBootstrap) {
		return fmt.Errorf("bootstrap the cluster: %w", err)
	}
	id, err := json.Marshal(cluster)
	if err != nil {
		return fmt.Errorf("bootstrap the cluster: encode its ID: %w", err)
	}
	for {
		err := n.ReadIndex(ctx)
		if err == nil && n.ClusterID() == 0 {
			err = n.record(ctx, recClusterInit, id) // the first one counts
		}
		if _, known := n.fsm.member(n.id); err == nil && !known {
			err = n.recordMember(ctx, n.selfMember())
		}
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("bootstrap the cluster: a majority of its %d founders must be up: %w", len(founders), err)
		case <-n.stop:
			return ErrStopped
		case <-time.After(retryAfter):
		}
	}
}

func (n *Node) waitReady(ctx context.Context) error {
	for {
		who := n.lead.current()
		if n.lead.readyTerm() != 0 {
			return nil
		}
		select {
		case <-who.changed:
		case <-ctx.Done():
			return ctx.Err()
		case <-n.stop:
			return ErrStopped
		case <-time.After(50 * time.Millisecond): // readiness and raft's own state are not told together
		}
	}
}

// selfMember is what the cluster should know of this peer: what its configuration says, but for an address that
// was overridden while the configuration said the same.
func (n *Node) selfMember() Member {
	m := Member{ID: n.id, Name: n.cfg.Name, PeerAddr: n.cfg.AdvertisePeer, PeerURLs: n.cfg.PeerURLs, ClientURLs: n.cfg.ClientURLs, APIURLs: n.cfg.APIURLs, Version: n.cfg.Version}
	if rec, ok := n.fsm.member(n.id); ok {
		m.WantsVote = rec.WantsVote
		if rec.Overrides == n.cfg.AdvertisePeer {
			m.PeerAddr, m.PeerURLs, m.Overrides = rec.PeerAddr, rec.PeerURLs, rec.Overrides
		}
	}
	return m
}

func (n *Node) record(ctx context.Context, kind recordKind, payload []byte) error {
	res, err := n.prop.propose(ctx, record{kind: kind, payload: payload, vital: true})
	if err != nil {
		return err
	}
	return res.Err
}

func (n *Node) recordMember(ctx context.Context, m Member) error {
	b, err := json.Marshal(m)
	if err != nil {
		return fmt.Errorf("encode member %v: %w", m.ID, err)
	}
	return n.record(ctx, recMember, b)
}

// Members returns all members as this peer knows them, ordered by ID.
func (n *Node) Members() []Member {
	servers := n.raft.GetConfiguration().Configuration().Servers
	var out []Member
	for _, s := range servers {
		id, err := ParsePeerID(string(s.ID))
		if err != nil {
			continue
		}
		m, ok := n.fsm.member(id)
		if !ok {
			m = Member{ID: id}
		}
		m.PeerAddr = string(s.Address)
		m.Voter = s.Suffrage == raft.Voter
		out = append(out, m)
	}
	slices.SortFunc(out, compareMembers)
	return out
}

// memberOp is a change of the membership; it runs at the leader.
type memberOp struct {
	Op     string `json:"op"` // add, promote, remove, transfer; create, promote-by, may-remove, readdress
	Member Member `json:"member"`
	Rules  Rules  `json:"rules,omitzero"`
}

// AddNonvoter adds a peer that learns but does not vote yet. It may be called on any member, and again
// for the same peer to change what is known of it. The peer must be Open (not bootstrapped) at m.PeerAddr
// now or soon. Errors: ErrNameTaken, ErrRemoved, or of the proposal.
func (n *Node) AddNonvoter(ctx context.Context, m Member) error {
	return n.change(ctx, memberOp{Op: "add", Member: m})
}

// Promote makes a learning peer a voter, once its measured lag is at most Config.PromoteLag entries.
// ErrLagging, naming the lag, asks to try again. It may be called on any member.
func (n *Node) Promote(ctx context.Context, id PeerID) error {
	return n.change(ctx, memberOp{Op: "promote", Member: Member{ID: id}})
}

// Remove removes a peer for good: its ID is never accepted again. A leader that is to be removed hands
// over first. ErrQuorum refuses to remove a live voter when fewer than a majority of the remaining ones is
// reachable. It may be called on any member.
func (n *Node) Remove(ctx context.Context, id PeerID) error {
	return n.change(ctx, memberOp{Op: "remove", Member: Member{ID: id}})
}

// TransferLeadership hands the leadership to a voter, or with 0 to the one that is nearest. It returns nil
// when another peer leads.
func (n *Node) TransferLeadership(ctx context.Context, to PeerID) error {
	return n.change(ctx, memberOp{Op: "transfer", Member: Member{ID: to}})
}

func (n *Node) change(ctx context.Context, op memberOp) error {
	return n.atLeader(ctx, func(ctx context.Context, who leader) error {
		if who.self {
			return n.changeHere(ctx, op)
		}
		b, err := json.Marshal(op)
		if err != nil {
			return fmt.Errorf("encode the change of members: %w", err)
		}
		_, err = n.rpc.call(ctx, who.id, classControl, rpcMember, b)
		return err
	})
}

// changeHere runs a change at the leader, one at a time.
func (n *Node) changeHere(ctx context.Context, op memberOp) error {
	select {
	case n.changing <- struct{}{}:
		defer func() { <-n.changing }()
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := n.waitReady(ctx); err != nil {
		return err
	}
	n.log.Info("membership change", "op", op.Op, "peer", op.Member.ID.String(), "name", op.Member.Name)
	switch op.Op {
	case "add":
		return n.addHere(ctx, op.Member)
	case "promote":
		return n.promoteHere(ctx, op.Member.ID)
	case "remove":
		return n.removeHere(ctx, op.Member.ID)
	case "transfer":
		return n.transferHere(ctx, op.Member.ID)
	case "create":
		return n.createHere(ctx, op.Member, op.Rules)
	case "promote-by":
		return n.promoteBy(ctx, op.Member.ID, op.Rules)
	case "may-remove":
		return n.mayRemoveBy(op.Member.ID, op.Rules)
	case "readdress":
		return n.readdressHere(ctx, op.Member)
	}
	return fmt.Errorf("unknown change of members %q", op.Op)
}

func (n *Node) server(id PeerID) (raft.Server, bool) {
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		if string(s.ID) == id.String() {
			return s, true
		}
	}
	return raft.Server{}, false
}

func timeLeft(ctx context.Context, most time.Duration) time.Duration {
	if d, ok := ctx.Deadline(); ok {
		return max(min(time.Until(d), most), time.Millisecond)
	}
	return most
}

// raftDone waits for a change of the raft configuration, but no longer than ctx.
func (n *Node) raftDone(ctx context.Context, f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }() // see await
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-n.stop:
		return ErrStopped
	}
}

// await waits for raft, but not beyond the end of this Node: raft never answers what is still
// queued when it shuts down.
func (n *Node) await(f raft.Future) error {
	done := make(chan error, 1)
	go func() { done <- f.Error() }()
	select {
	case err := <-done:
		return err
	case <-n.stop:
		return raft.ErrRaftShutdown
	}
}

func (n *Node) addHere(ctx context.Context, m Member) error {
	if m.ID == 0 || m.Name == "" || m.PeerAddr == "" {
		return errors.New("a member needs an ID, a name and a peer address")
	}
	if n.fsm.isRemoved(m.ID) {
		return fmt.Errorf("peer %v: %w", m.ID, ErrRemoved)
	}
	for _, o := range n.Members() {
		if o.ID != m.ID && o.PeerAddr == m.PeerAddr {
			return fmt.Errorf("peer address %s belongs to member %v (%s): remove that one first (`controld member remove`)", m.PeerAddr, o.ID, o.Name)
		}
	}
	if err := n.recordMember(ctx, m); err != nil {
		return fmt.Errorf("add peer %v: %w", m.ID, err)
	}
	s, ok := n.server(m.ID)
	var f raft.Future
	switch {
	case ok && string(s.Address) == m.PeerAddr:
		return nil
	case ok && s.Suffrage == raft.Voter: // it moved
		f = n.raft.AddVoter(s.ID, raft.ServerAddress(m.PeerAddr), 0, timeLeft(ctx, n.cfg.RequestTimeout))
	default:
		f = n.raft.AddNonvoter(raft.ServerID(m.ID.String()), raft.ServerAddress(m.PeerAddr), 0, timeLeft(ctx, n.cfg.RequestTimeout))
	}
	if err := n.raftDone(ctx, f); err != nil {
		return fmt.Errorf("add peer %v at %s: %w", m.ID, m.PeerAddr, err)
	}
	return nil
}

func (n *Node) promoteHere(ctx context.Context, id PeerID) error {
	s, ok := n.server(id)
	if !ok {
		return fmt.Errorf("promote peer %v: %w", id, ErrNotMember)
	}
	if s.Suffrage == raft.Voter {
		return nil
	}
	st, err := n.askStatus(ctx, id)
	if err != nil {
		return fmt.Errorf("promote peer %v: %w: %v", id, ErrLagging, err)
	}
	commit := n.raft.CommitIndex()
	if lag := commit - min(st.Applied, commit); lag > n.cfg.PromoteLag || st.Term != n.raft.CurrentTerm() {
		return fmt.Errorf("promote peer %v: %w: it has applied %d of %d entries", id, ErrLagging, st.Applied, commit)
	}
	if err := n.raftDone(ctx, n.raft.AddVoter(s.ID, s.Address, 0, timeLeft(ctx, n.cfg.RequestTimeout))); err != nil {
		return fmt.Errorf("promote peer %v: %w", id, err)
	}
	return nil
}

func (n *Node) removeHere(ctx context.Context, id PeerID) error {
	s, ok := n.server(id)
	_, known := n.fsm.member(id)
	if !ok && !known && !slices.ContainsFunc(n.fsm.expected(), func(m Member) bool { return m.ID == id }) {
		if n.fsm.isRemoved(id) {
			return nil
		}
		return fmt.Errorf("remove peer %v: %w", id, ErrNotMember)
	}
	if ok {
		if err := n.quorumWithout(ctx, id); err != nil {
			return fmt.Errorf("remove peer %v: %w", id, err)
		}
		if id == n.id {
			if err := n.transferHere(ctx, 0); err != nil {
				return fmt.Errorf("remove peer %v, which leads: %w", id, err)
			}
			return raft.ErrNotLeader // the new leader removes it
		}
		if err := n.raftDone(ctx, n.raft.RemoveServer(s.ID, 0, timeLeft(ctx, n.cfg.RequestTimeout))); err != nil {
			return fmt.Errorf("remove peer %v: %w", id, err)
		}
	}
	b, err := json.Marshal(Member{ID: id})
	if err != nil {
		return fmt.Errorf("encode member %v: %w", id, err)
	}
	if err := n.record(ctx, recMemberGone, b); err != nil {
		return fmt.Errorf("remove peer %v: %w", id, err)
	}
	n.farewell(ctx, id)
	return nil
}

// farewell has a peer that was removed look around now: raft tells it nothing, and by itself it asks only
// after it missed heartbeats. One that does not hear of it still does that.
func (n *Node) farewell(ctx context.Context, id PeerID) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if _, err := n.rpc.call(ctx, id, classControl, rpcSeek, nil); err != nil {
		n.log.Debug("the removed peer was not told", "peer", id.String(), "error", err)
	}
}

// quorumWithout refuses when the voters other than id could not commit anything.
func (n *Node) quorumWithout(ctx context.Context, id PeerID) error {
	var voters, live int
	for _, p := range n.Status(ctx).Peers {
		if p.Member.ID == id || !p.Member.Voter {
			continue
		}
		voters++
		if p.Reachable {
			live++
		}
	}
	if live < voters/2+1 {
		return fmt.Errorf("%w: %d of %d; bring them back first", ErrQuorum, live, voters)
	}
	return nil
}

func (n *Node) transferHere(ctx context.Context, to PeerID) error {
	// hashicorp/raft's transfer can hang on a peer that is unreachable or installs a snapshot, and
	// refuses writes meanwhile: only a peer that was just measured to be near is asked.
	var best PeerStatus
	for _, p := range n.Status(ctx).Peers {
		if p.Member.ID == n.id || !p.Member.Voter || !p.Reachable || (to != 0 && p.Member.ID != to) {
			continue
		}
		if best.Member.ID == 0 || p.Applied > best.Applied {
			best = p
		}
	}
	switch {
	case best.Member.ID == 0:
		return errors.New("transfer the leadership: no voter that could take it is reachable")
	case best.Lag > n.cfg.PromoteLag:
		return fmt.Errorf("transfer the leadership to peer %v: %w: it is %d entries behind", best.Member.ID, ErrLagging, best.Lag)
	}
	f := n.raft.LeadershipTransferToServer(raft.ServerID(best.Member.ID.String()), raft.ServerAddress(best.Member.PeerAddr))
	if err := n.raftDone(ctx, f); err != nil && n.raft.State() == raft.Leader {
		return fmt.Errorf("transfer the leadership to peer %v: %w", best.Member.ID, err)
	}
	return nil
}

// announce tells the cluster what this peer's configuration says of it, when that differs from what is
// recorded: its version after an upgrade, its addresses after a move. A peer that no leader talks to asks the
// others why.
func (n *Node) announce() {
	for {
		pause := 2 * time.Second
		switch who := n.lead.current(); {
		case who.id != 0:
			if rec, ok := n.fsm.member(n.id); ok && !rec.equal(n.selfMember()) {
				ctx, cancel := context.WithTimeout(n.ctx, n.cfg.RequestTimeout)
				if err := n.AddNonvoter(ctx, n.selfMember()); err != nil && !n.stopping() {
					n.log.Warn("this peer could not announce its addresses and version", "error", err)
				}
				cancel()
			}
		case n.sinceContact() > 4*n.cfg.HeartbeatTimeout:
			n.seekLeader()
			pause = time.Second
		}
		select {
		case <-n.stop:
			return
		case <-n.seek:
			n.seekLeader()
		case <-n.lead.current().changed:
			pause = 0
		case <-time.After(pause):
		}
		if pause == 0 { // the leader changed: let that settle
			select {
			case <-n.stop:
				return
			case <-time.After(200 * time.Millisecond):
			}
		}
	}
}

// seekLeader asks the other members for the leader. They may say that this peer was removed; or the leader
// does not know where this peer is now, and is told.
func (n *Node) seekLeader() {
	ctx, cancel := context.WithTimeout(n.ctx, 2*time.Second)
	defer cancel()
	for _, s := range n.raft.GetConfiguration().Configuration().Servers {
		id, err := ParsePeerID(string(s.ID))
		if err != nil || id == n.id {
			continue
		}
		st, err := n.askStatus(ctx, id)
		if errors.Is(err, ErrRemoved) {
			n.wasRemoved()
			return
		}
		self, ok := n.server(n.id)
		if err != nil || st.Leader == 0 || st.Leader == n.id || !ok || string(self.Address) == n.selfMember().PeerAddr {
			continue
		}
		b, err := json.Marshal(memberOp{Op: "add", Member: n.selfMember()})
		if err == nil {
			_, err = n.rpc.call(ctx, st.Leader, classControl, rpcMember, b)
		}
		if err == nil {
			return
		}
		n.log.Warn("the leader could not be told this peer's new address", "leader", st.Leader.String(), "error", err)
	}
}
