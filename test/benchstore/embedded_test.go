package benchstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"

	"github.com/tripod-cluster/tripod/raftfsm"
	"github.com/tripod-cluster/tripod/store"
	"github.com/tripod-cluster/tripod/test/figure"
)

// embedded has callers in the process of the servers, without gRPC: store.Proposer on three nodes, as the API server
// uses it, beside the client that etcd gives who embeds it. Processor time is the whole process's, callers included.
func embedded(t *testing.T, s scale) []figure.Figure {
	a, b := embedOurs(t), embedEtcd(t)
	var figures []figure.Figure
	v := value(256)
	for _, n := range s.clients {
		x, y := inTurn(s.rounds,
			func() result {
				return drive(t, n, s.limits, selfCPU, func(i int, call int64) error {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					res, err := a[i%members].Propose(ctx, &pb.InternalRaftRequest{Put: &pb.PutRequest{Key: []byte(key(call)), Value: []byte(v)}})
					return errors.Join(err, res.Err)
				})
			},
			func() result {
				return drive(t, n, s.limits, selfCPU, func(i int, call int64) error {
					ctx, cancel := context.WithTimeout(context.Background(), patience)
					defer cancel()
					_, err := b[i%members].Put(ctx, key(call), v)
					return err
				})
			})
		figures = append(figures, compared(fmt.Sprintf("embedded put, 256 B, %d callers", n), x, y)...)
	}
	return figures
}

func selfCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func embedOurs(t *testing.T) [members]store.Proposer {
	t.Helper()
	tls := newPeerCA(t)
	dir := t.TempDir()
	var nodes [members]*raftfsm.Node
	var out [members]store.Proposer
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	for i := range nodes {
		id := raftfsm.PeerID(i + 1)
		addr := "127.0.0.1:" + freePort(t)
		n, err := raftfsm.Open(raftfsm.Config{
			Dir: filepath.Join(dir, fmt.Sprint(i)), ID: id, Name: fmt.Sprint("m", i), Store: store.New(store.Options{}),
			ListenPeer: addr, AdvertisePeer: addr, TLS: tls(t, id), Version: "bench",
			Logger:  slog.New(slog.DiscardHandler),
			OnFatal: func(err error) { t.Errorf("peer %d: %v", i, err) },
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		nodes[i], out[i] = n, n
		if i == 0 {
			if err := n.Bootstrap(ctx); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if err := nodes[0].AddNonvoter(ctx, raftfsm.Member{ID: id, Name: fmt.Sprint("m", i), PeerAddr: addr, Version: "bench"}); err != nil {
			t.Fatal(err)
		}
		for {
			err := nodes[0].Promote(ctx, id)
			if err == nil {
				break
			}
			if !errors.Is(err, raftfsm.ErrLagging) || ctx.Err() != nil {
				t.Fatal(err)
			}
			time.Sleep(5 * time.Millisecond)
		}
	}
	return out
}

func embedEtcd(t *testing.T) [members]*clientv3.Client {
	t.Helper()
	dir := t.TempDir()
	var cfgs [members]*embed.Config
	initial := ""
	for i := range cfgs {
		c := embed.NewConfig()
		c.Name, c.Dir = fmt.Sprint("m", i), filepath.Join(dir, fmt.Sprint(i))
		client, peer := localURL(t, "http"), localURL(t, "https")
		c.ListenClientUrls, c.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
		c.ListenPeerUrls, c.AdvertisePeerUrls = []url.URL{peer}, []url.URL{peer}
		c.PeerAutoTLS = true
		c.LogLevel, c.LogOutputs = "error", []string{filepath.Join(dir, c.Name+".log")}
		initial += "," + c.Name + "=" + peer.String()
		cfgs[i] = c
	}
	var servers [members]*embed.Etcd
	for i, c := range cfgs {
		c.InitialCluster = initial[1:]
		e, err := embed.StartEtcd(c)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(e.Close)
		servers[i] = e
	}
	var out [members]*clientv3.Client
	for i, e := range servers {
		select {
		case <-e.Server.ReadyNotify():
		case <-time.After(patience):
			t.Fatalf("etcd %d is not ready", i)
		}
		out[i] = v3client.New(e.Server)
	}
	return out
}

func localURL(t *testing.T, scheme string) url.URL {
	return url.URL{Scheme: scheme, Host: "127.0.0.1:" + freePort(t)}
}
