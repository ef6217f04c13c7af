package controlplane

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tripod-cluster/tripod/apiserver"
	"github.com/tripod-cluster/tripod/controlplane/peer"
	"github.com/tripod-cluster/tripod/pki"
)

const (
	defaultTokenTTL = 24 * time.Hour
	maxTokenTTL     = 365 * 24 * time.Hour
	// tokenPatience is how long the making of a token is tried.
	tokenPatience = 20 * time.Second
)

// makeToken makes a join token: a bootstrap token Secret that expires, in the
// form of https://kubernetes.io/docs/reference/access-authn-authz/bootstrap-tokens/.
func (p *Peer) makeToken(ctx context.Context, q peer.TokenRequest) (peer.TokenResponse, error) {
	var out peer.TokenResponse
	if q.TTL == 0 {
		q.TTL = defaultTokenTTL
	}
	if q.TTL < time.Second || q.TTL > maxTokenTTL {
		return out, fmt.Errorf("a token lives from 1s to %v, not %v", maxTokenTTL, q.TTL)
	}
	client, err := p.client()
	if err != nil {
		return out, err
	}
	ca, err := p.pki.Authority()
	if err != nil {
		return out, err
	}
	tok, err := pki.NewToken(q.Role, pki.HashCA(ca.Cert))
	if err != nil {
		return out, err
	}
	out.Expires = time.Now().Add(q.TTL).UTC().Truncate(time.Second)
	data := map[string]string{
		"token-id": tok.ID, "token-secret": tok.Secret,
		"expiration":                     out.Expires.Format(time.RFC3339),
		"usage-bootstrap-authentication": "true",
		"description":                    "join token for a " + string(q.Role) + ", made by controld",
	}
	switch q.Role {
	case pki.RolePeer:
		data["auth-extra-groups"] = apiserver.GroupPeerBootstrappers
	case pki.RoleNode:
	default:
		return out, fmt.Errorf("unknown role %q (known: peer, node)", q.Role)
	}
	s := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "bootstrap-token-" + tok.ID, Namespace: metav1.NamespaceSystem},
		Type:       corev1.SecretTypeBootstrapToken,
		StringData: data,
	}
	// A peer that has just started, or an election under way, is no reason to send
	// an operator away: the Secret has a name of its own and can be made again.
	ctx, cancel := context.WithTimeout(ctx, tokenPatience)
	defer cancel()
	for {
		_, err = client.CoreV1().Secrets(s.Namespace).Create(ctx, s, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			break
		}
		select {
		case <-ctx.Done():
			return out, fmt.Errorf("store the join token: %w", err)
		case <-time.After(500 * time.Millisecond):
		}
	}
	out.Word = tok.Word()
	// A peer is asked by its own address, not by the vip: the cluster may be without
	// a leader that holds it, just when a peer is to be added.
	out.Host = p.id.Address
	if p.cfg.APIPort != apiserver.DefaultPort {
		out.Host = net.JoinHostPort(out.Host, strconv.Itoa(p.cfg.APIPort))
	}
	return out, nil
}
