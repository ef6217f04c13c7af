package enroll

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/controlplane/peer"
)

func voter(name string) peer.PeerStatus {
	return peer.PeerStatus{ID: "00000000000000" + name, Name: name, Voter: true, Reachable: true}
}

func down(p peer.PeerStatus) peer.PeerStatus    { p.Reachable = false; return p }
func learner(p peer.PeerStatus) peer.PeerStatus { p.Voter = false; return p }

func TestPlanReplace(t *testing.T) {
	p1, p2, p3, p4 := voter("p1"), voter("p2"), voter("p3"), voter("p4")
	for name, c := range map[string]struct {
		peers     []peer.PeerStatus
		old, with string
		want      replaceStep
		err       string
	}{
		"the new one has not joined":   {[]peer.PeerStatus{p1, p2, down(p3)}, "p3", "p4", replaceStep{waits: "p4 joins", join: true}, ""},
		"it learns":                    {[]peer.PeerStatus{p1, p2, down(p3), learner(p4)}, "p3", "p4", replaceStep{waits: "p4 has caught up and votes"}, ""},
		"it is away":                   {[]peer.PeerStatus{p1, p2, down(p3), down(p4)}, "p3", "p4", replaceStep{waits: "p4 answers"}, ""},
		"it votes":                     {[]peer.PeerStatus{p1, p2, down(p3), p4}, "p3", "p4", replaceStep{remove: p3.ID}, ""},
		"by ID":                        {[]peer.PeerStatus{p1, p2, p3, p4}, p3.ID, p4.ID, replaceStep{remove: p3.ID}, ""},
		"the old one is gone":          {[]peer.PeerStatus{p1, p2, p4}, "p3", "p4", replaceStep{done: true}, ""},
		"gone before the new one came": {[]peer.PeerStatus{p1, p2, learner(p4)}, "p3", "p4", replaceStep{waits: "p4 has caught up and votes"}, ""},
		"it would cost the majority":   {[]peer.PeerStatus{down(p1), down(p2), p3, p4}, "p3", "p4", replaceStep{}, "without p3 only 1 of 3"},
		"itself":                       {[]peer.PeerStatus{p1, p2, p3}, "p3", p3.ID, replaceStep{}, "its own place"},
		"nobody knows either":          {[]peer.PeerStatus{p1, p2, p3}, "x", "y", replaceStep{}, "neither a peer x nor a peer y"},
	} {
		got, err := planReplace(c.peers, c.old, c.with)
		if got != c.want || c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
			t.Errorf("%s: %+v, %v; want %+v, %q", name, got, err, c.want, c.err)
		}
	}
}

// staged is a cluster that changes with each look at it.
type staged struct {
	looks   [][]peer.PeerStatus
	removed []string
	tokens  int
}

func (s *staged) Status(context.Context) (peer.Status, error) {
	p := s.looks[0]
	if len(s.looks) > 1 {
		s.looks = s.looks[1:]
	}
	return peer.Status{Peers: p}, nil
}

func (s *staged) Token(context.Context, peer.TokenRequest) (peer.TokenResponse, error) {
	s.tokens++
	return peer.TokenResponse{Word: "WORD", Host: "h"}, nil
}

func (s *staged) RemovePeer(_ context.Context, id string) error {
	s.removed = append(s.removed, id)
	return nil
}

func TestReplaceGoesOnUntilItIsDone(t *testing.T) {
	p1, p2, p3, p4 := voter("p1"), voter("p2"), voter("p3"), voter("p4")
	s := &staged{looks: [][]peer.PeerStatus{{p1, p2, p3}, {p1, p2, p3, learner(p4)}, {p1, p2, p3, p4}, {p1, p2, p4}}}
	var out strings.Builder
	if err := Replace(context.Background(), s, "p3", "p4", &out); err != nil {
		t.Fatal(err)
	}
	if len(s.removed) != 1 || s.removed[0] != p3.ID || s.tokens != 1 || !strings.Contains(out.String(), "controld join --name p4 WORD@h") {
		t.Errorf("removed %v, %d tokens:\n%s", s.removed, s.tokens, out.String())
	}
	ended, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("enough"))
	s = &staged{looks: [][]peer.PeerStatus{{p1, p2, p3}}}
	if err := Replace(ended, s, "p3", "p4", &out); err == nil || !strings.Contains(err.Error(), "run this again to go on") {
		t.Errorf("interrupted: %v", err)
	}
}
