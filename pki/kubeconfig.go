package pki

import (
	"encoding/json"
	"fmt"
	"time"
)

// AdminKubeconfig makes a kubeconfig of the group system:masters for an operator
// called user, towards server (an https URL). It holds a private key: write it
// 0600.
func AdminKubeconfig(ca *Authority, server, user string, now time.Time) ([]byte, error) {
	cert, key, err := ca.Issue(Leaf{CommonName: user, Organizations: []string{"system:masters"}, Client: true}, now)
	if err != nil {
		return nil, err
	}
	return Kubeconfig("tripod", server, user, ca.CertPEM(), cert, key)
}

// Kubeconfig writes a kubeconfig with one cluster, one user and one context, as
// JSON, which is YAML. The certificate is verified against the name `kubernetes`,
// which every peer's serving certificate carries, so that server can be any
// address of any peer.
func Kubeconfig(cluster, server, user string, caPEM, certPEM, keyPEM []byte) ([]byte, error) {
	type m = map[string]any
	b, err := json.MarshalIndent(m{
		"apiVersion": "v1", "kind": "Config", "current-context": user + "@" + cluster,
		"clusters": []m{{"name": cluster, "cluster": m{"server": server, "certificate-authority-data": caPEM, "tls-server-name": ServerName}}},
		"users":    []m{{"name": user, "user": m{"client-certificate-data": certPEM, "client-key-data": keyPEM}}},
		"contexts": []m{{"name": user + "@" + cluster, "context": m{"cluster": cluster, "user": user}}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode kubeconfig: %w", err)
	}
	return append(b, '\n'), nil
}
