package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/tripod-cluster/tripod/raftfsm"
)

const stateExisting = "existing"

// ownID is the ID in the data directory; before there is one, a founder's, or the one that the cluster made for
// the URL at which this peer is reached.
func ownID(ctx context.Context, o *options, dir string) (raftfsm.PeerID, error) {
	switch _, err := os.Stat(filepath.Join(dir, "peer.json")); {
	case err == nil:
		return raftfsm.EnsureID(dir)
	case !errors.Is(err, fs.ErrNotExist):
		return 0, fmt.Errorf("look for this peer's identity: %w", err)
	case o.state == stateExisting:
		return lookUp(ctx, o)
	}
	list, err := founders(o)
	if err != nil {
		return 0, err
	}
	for _, f := range list {
		if f.Name == o.name {
			return f.ID, nil
		}
	}
	return 0, fmt.Errorf("--initial-cluster does not name %q", o.name)
}

// lookUp asks the others until one knows this peer.
func lookUp(ctx context.Context, o *options) (raftfsm.PeerID, error) {
	list, err := founders(o)
	if err != nil {
		return 0, err
	}
	peers, err := peerTLS(o.name)
	if err != nil {
		return 0, err
	}
	_, client, err := peers()
	if err != nil {
		return 0, err
	}
	for {
		for _, f := range list {
			if f.Name == o.name {
				continue
			}
			_, members, err := raftfsm.Roster(ctx, f.PeerAddr, client)
			if err != nil {
				continue // it may be away; another one may answer
			}
			for _, m := range members {
				if slices.ContainsFunc(m.PeerURLs, func(u string) bool { return slices.Contains(strings.Split(o.advertisePeer, ","), u) }) {
					return m.ID, nil
				}
			}
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// belong returns when this peer belongs to its cluster and the cluster knows its name.
func belong(ctx context.Context, o *options, node *raftfsm.Node) error {
	list, err := founders(o)
	if err != nil {
		return err
	}
	if o.state != stateExisting && slices.ContainsFunc(list, func(f raftfsm.Member) bool { return f.ID == node.ID() }) {
		return node.BootstrapTogether(ctx, clusterID(list), list)
	}
	for {
		err := node.ReadIndex(ctx)
		if err == nil && slices.ContainsFunc(node.Members(), func(m raftfsm.Member) bool {
			return m.ID == node.ID() && m.Name != "" && (m.Voter || !m.WantsVote)
		}) {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// founders are the members that --initial-cluster names.
func founders(o *options) ([]raftfsm.Member, error) {
	if o.initialCluster == "" {
		o.initialCluster = o.name + "=" + strings.Split(o.advertisePeer, ",")[0]
	}
	list, err := parseInitialCluster(o.initialCluster)
	if err != nil {
		return nil, err
	}
	var out []raftfsm.Member
	for _, f := range list {
		addr, err := hostPort("--initial-cluster", f.urls[0])
		if err != nil {
			return nil, err
		}
		out = append(out, raftfsm.Member{ID: founderID(o.token, f.urls), Name: f.name, PeerAddr: addr, PeerURLs: f.urls})
	}
	return out, nil
}
