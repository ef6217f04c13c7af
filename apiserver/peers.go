package apiserver

import (
	"context"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/kubernetes/pkg/controlplane/reconcilers"

	"github.com/tripod-cluster/tripod/apiserver/storage"
	"github.com/tripod-cluster/tripod/store"
)

// A peer that dies leaves the `kubernetes` Service when its lease has run out
// and another peer has looked: after 10 to 15 seconds. One that stops leaves
// at once.
const (
	peerTTL      = 10 * time.Second
	peerInterval = 5 * time.Second
	peerPrefix   = "/registry/masterleases/" // where upstream's are
)

// peerLeases is the set of live API servers: one key per peer, under a lease
// that its owner renews. A renewal is no write to the store.
type peerLeases struct {
	client *clientv3.Client
	leaser store.Leaser
	close  func()

	mu    sync.Mutex
	lease int64 // of our own key; 0: none
}

var _ reconcilers.Leases = (*peerLeases)(nil)

func newPeerLeases(b *storage.Backend, l store.Leaser) *peerLeases {
	c, stop := b.Client()
	return &peerLeases{client: c.Client, leaser: l, close: stop}
}

// peerContext bounds one exchange: the reconciler's interface carries none.
func peerContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), peerInterval)
}

// ListLeases returns the addresses of the live peers.
func (p *peerLeases) ListLeases() ([]string, error) {
	ctx, cancel := peerContext()
	defer cancel()
	resp, err := p.client.Get(ctx, peerPrefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil {
		return nil, fmt.Errorf("list live peers: %w", err)
	}
	var ips []string
	for _, kv := range resp.Kvs {
		ips = append(ips, strings.TrimPrefix(string(kv.Key), peerPrefix))
	}
	return ips, nil
}

// UpdateLease keeps the key of ip alive, or makes it again when it is gone.
func (p *peerLeases) UpdateLease(ip string) error {
	ctx, cancel := peerContext()
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lease != 0 {
		_, err := p.leaser.KeepAlive(ctx, p.lease)
		if err == nil {
			return nil
		}
		if rpctypes.Error(err) != rpctypes.ErrLeaseNotFound {
			return fmt.Errorf("renew the lease of peer %s: %w", ip, err)
		}
		p.lease = 0
	}
	granted, err := p.leaser.Grant(ctx, 0, int64(peerTTL/time.Second))
	if err != nil {
		return fmt.Errorf("lease of peer %s: %w", ip, err)
	}
	if _, err := p.client.Put(ctx, path.Join(peerPrefix, ip), ip, clientv3.WithLease(clientv3.LeaseID(granted.ID))); err != nil {
		return fmt.Errorf("register peer %s: %w", ip, err)
	}
	p.lease = granted.ID
	return nil
}

// RemoveLease takes ip out of the set. As in upstream, an absent one is a
// not-found error.
func (p *peerLeases) RemoveLease(ip string) error {
	ctx, cancel := peerContext()
	defer cancel()
	p.mu.Lock()
	defer p.mu.Unlock()
	key := path.Join(peerPrefix, ip)
	resp, err := p.client.Delete(ctx, key)
	if err != nil {
		return fmt.Errorf("deregister peer %s: %w", ip, err)
	}
	if p.lease != 0 {
		// It would end by itself; its end here spares the leader a timer.
		_, _ = p.leaser.Revoke(ctx, p.lease)
		p.lease = 0
	}
	if resp.Deleted == 0 {
		return kstorage.NewKeyNotFoundError(key, 0)
	}
	return nil
}

// Destroy ends the client. It may be called more than once.
func (p *peerLeases) Destroy() { p.close() }
