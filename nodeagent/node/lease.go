package node

import (
	"context"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	leaseSeconds = 40
	renewEvery   = 10 * time.Second
	renewRetry   = time.Second
	renewTimeout = 5 * time.Second
)

// renewLease renews the node's Lease until ctx ends. A renewal that failed is
// tried again soon: three lost in a row would make the node look dead.
func (m *Manager) renewLease(ctx context.Context) {
	var held *coordinationv1.Lease
	for {
		next := renewEvery
		l, err := m.renew(ctx, held)
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			m.cfg.Log.Warn("lease of the node not renewed, will try again", "node", m.cfg.Name, "err", err)
			next, l = renewRetry, nil // read it anew
		}
		held = l
		if !sleep(ctx, next) {
			return
		}
	}
}

func (m *Manager) renew(ctx context.Context, held *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	ctx, cancel := context.WithTimeout(ctx, renewTimeout)
	defer cancel()
	leases := m.cfg.Client.CoordinationV1().Leases(v1.NamespaceNodeLease)
	m.mu.Lock()
	ref := m.ref
	m.mu.Unlock()
	if held == nil {
		cur, err := leases.Get(ctx, m.cfg.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			l := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: m.cfg.Name, Namespace: v1.NamespaceNodeLease}}
			m.stamp(l, ref)
			if cur, err = leases.Create(ctx, l, metav1.CreateOptions{}); err != nil {
				return nil, fmt.Errorf("create lease: %w", err)
			}
			return cur, nil
		}
		if err != nil {
			return nil, fmt.Errorf("get lease: %w", err)
		}
		held = cur
	}
	l := held.DeepCopy()
	m.stamp(l, ref)
	got, err := leases.Update(ctx, l, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("update lease: %w", err)
	}
	return got, nil
}

func (m *Manager) stamp(l *coordinationv1.Lease, ref *metav1.OwnerReference) {
	now, seconds, name := metav1.NowMicro(), int32(leaseSeconds), m.cfg.Name
	l.Spec.RenewTime, l.Spec.LeaseDurationSeconds, l.Spec.HolderIdentity = &now, &seconds, &name
	if ref != nil && ref.UID != "" {
		l.OwnerReferences = []metav1.OwnerReference{*ref}
	}
}
