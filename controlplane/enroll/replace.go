package enroll

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

// Members is what Replace asks of a peer; peer.Admin is one.
type Members interface {
	Status(ctx context.Context) (peer.Status, error)
	Token(ctx context.Context, r peer.TokenRequest) (peer.TokenResponse, error)
	RemovePeer(ctx context.Context, nameOrID string) error
}

// Replace exchanges the peer old for the peer with (names or IDs): it waits until that one has
// joined, votes and has caught up, and removes the other. What is next is read from the cluster
// alone, so one that was interrupted is simply run again.
func Replace(ctx context.Context, a Members, old, with string, out io.Writer) error {
	said := ""
	for {
		st, err := a.Status(ctx)
		if err != nil {
			return err
		}
		step, err := planReplace(st.Peers, old, with)
		if err != nil {
			return err
		}
		switch {
		case step.done:
			fmt.Fprintf(out, "%s has the place of %s\n", with, old)
			return nil
		case step.remove != "":
			fmt.Fprintf(out, "%s votes and has caught up; removing %s\n", with, old)
			if err := a.RemovePeer(ctx, step.remove); err != nil {
				return err
			}
			continue
		}
		if step.waits != said {
			said = step.waits
			fmt.Fprintf(out, "waiting until %s\n", said)
			if step.join {
				t, err := a.Token(ctx, peer.TokenRequest{Role: pki.RolePeer})
				if err != nil {
					return err
				}
				fmt.Fprintf(out, "run on its host: controld join --name %s %s@%s\n", with, t.Word, t.Host)
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("gave up waiting until %s; run this again to go on", said)
		case <-time.After(time.Second):
		}
	}
}

// replaceStep is what is next in an exchange: it is done, a peer is to be removed, or
// something must come first.
type replaceStep struct {
	done   bool
	remove string // ID
	waits  string
	join   bool // what is waited for is a join
}

// planReplace decides what is next from the state of the cluster alone.
func planReplace(peers []peer.PeerStatus, old, with string) (replaceStep, error) {
	find := func(nameOrID string) *peer.PeerStatus {
		for i, p := range peers {
			if p.Name == nameOrID || strings.EqualFold(p.ID, nameOrID) {
				return &peers[i]
			}
		}
		return nil
	}
	o, w := find(old), find(with)
	switch {
	case old == with || o != nil && w != nil && o.ID == w.ID:
		return replaceStep{}, fmt.Errorf("%s cannot take its own place: for a host that was installed anew, run `controld member remove %s`, and then `controld join` on it", old, old)
	case o == nil && w == nil:
		return replaceStep{}, fmt.Errorf("there is neither a peer %s nor a peer %s: `controld member list` shows the peers", old, with)
	case w == nil:
		return replaceStep{waits: with + " joins", join: true}, nil
	case !w.Reachable:
		return replaceStep{waits: with + " answers"}, nil
	case !w.Voter:
		return replaceStep{waits: with + " has caught up and votes"}, nil
	case o == nil:
		return replaceStep{done: true}, nil
	}
	voters, live := 0, 0
	for _, p := range peers {
		if p.Voter && p.ID != o.ID {
			voters++
			if p.Reachable {
				live++
			}
		}
	}
	if live < voters/2+1 {
		return replaceStep{}, fmt.Errorf("without %s only %d of %d voting peers answer, which is no majority: bring the others back first (`controld status`)", old, live, voters)
	}
	return replaceStep{remove: o.ID}, nil
}
