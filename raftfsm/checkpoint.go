package raftfsm

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/protobuf/proto"
)

// maxCheckpoints is how many leases are recorded by one proposal; etcd's.
const maxCheckpoints = 1000

// checkpoints records what is left of long leases, as long as this peer leads, until the Node stops.
func (l *lessor) checkpoints() {
	interval := l.n.cfg.LeaseCheckpointInterval
	if interval <= 0 {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-l.n.stop:
			return
		case <-ticker.C:
		}
		if err := l.checkpoint(interval); err != nil {
			l.n.log.Warn("what is left of leases could not be recorded; it is tried again", "error", err)
		}
	}
}

// checkpoint records what is left of the leases that are due.
func (l *lessor) checkpoint(interval time.Duration) error {
	l.recording.Lock()
	defer l.recording.Unlock()
	term, due := l.due(interval)
	for batch := range slices.Chunk(due, maxCheckpoints) {
		err := l.record(l.n.ctx, term, batch)
		switch {
		case err == nil, errors.Is(err, rpctypes.ErrGRPCLeaseNotFound):
		case errors.Is(err, errNotReady), errors.Is(err, ErrStopped):
			return nil // another leads, or nobody does
		default:
			return err
		}
	}
	return nil
}

// due returns the leases that run longer than interval and have run for some time, ordered by ID, and notes
// that they are recorded. The caller holds recording.
func (l *lessor) due(interval time.Duration) (term uint64, due []*pb.LeaseCheckpoint) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.n.cfg.faults.clock()
	for _, t := range l.leases {
		left := t.expiry.Sub(now)
		seconds := int64((left + time.Second - 1) / time.Second)
		if !t.revoked && left > interval && seconds < t.ttl && seconds != t.recorded {
			t.recorded = seconds
			due = append(due, &pb.LeaseCheckpoint{ID: t.id, Remaining_TTL: seconds})
		}
	}
	slices.SortFunc(due, func(a, b *pb.LeaseCheckpoint) int { return cmp.Compare(a.ID, b.ID) })
	return l.term, due
}

// unrecord takes back what was recorded of a lease.
func (l *lessor) unrecord(ctx context.Context, id int64) error {
	l.recording.RLock()
	defer l.recording.RUnlock()
	l.mu.Lock()
	term := l.term
	l.mu.Unlock()
	return l.record(ctx, term, []*pb.LeaseCheckpoint{{ID: id}})
}

// record proposes checkpoints. They hold only while this peer leads in term: the next leader knows better.
func (l *lessor) record(ctx context.Context, term uint64, cs []*pb.LeaseCheckpoint) error {
	req, err := proto.Marshal(&pb.InternalRaftRequest{LeaseCheckpoint: &pb.LeaseCheckpointRequest{Checkpoints: cs}})
	if err != nil {
		return err
	}
	res, err := l.n.prop.propose(ctx, record{kind: recRequest, payload: req, term: term})
	if err == nil {
		err = res.Err
	}
	if errors.Is(err, errStaleTerm) {
		return errNotReady
	}
	return err
}
