package csr

import (
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
)

const (
	nodesGroup = "system:nodes"
	nodePrefix = "system:node:"
)

// After these times a request is deleted; upstream's values.
const (
	keepApproved = time.Hour
	keepDenied   = time.Hour
	keepPending  = 24 * time.Hour
)

// parse reads and checks the PEM of a request: it must be signed with the key
// that it asks a certificate for.
func parse(csr *certv1.CertificateSigningRequest) (*x509.CertificateRequest, error) {
	block, _ := pem.Decode(csr.Spec.Request)
	if block == nil || block.Type != "CERTIFICATE REQUEST" {
		return nil, errors.New("the request is not a PEM block of type CERTIFICATE REQUEST")
	}
	req, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("the request cannot be read: %w", err)
	}
	if err := req.CheckSignature(); err != nil {
		return nil, fmt.Errorf("the request is not signed by its own key: %w", err)
	}
	return req, nil
}

// nodeName returns the node that a subject of the form of a node's names.
func nodeName(req *x509.CertificateRequest) (string, error) {
	name, ok := strings.CutPrefix(req.Subject.CommonName, nodePrefix)
	if !ok || name == "" {
		return "", fmt.Errorf("the common name %q does not begin with %s", req.Subject.CommonName, nodePrefix)
	}
	if !slices.Equal(req.Subject.Organization, []string{nodesGroup}) {
		return "", fmt.Errorf("the organization %q is not %s alone", req.Subject.Organization, nodesGroup)
	}
	return name, nil
}

// checkSubject tells why a request is not fit for its signer, or nil.
func checkSubject(signer string, req *x509.CertificateRequest, usages []certv1.KeyUsage) error {
	switch signer {
	case certv1.KubeAPIServerClientKubeletSignerName:
		if _, err := nodeName(req); err != nil {
			return err
		}
		if len(req.DNSNames)+len(req.IPAddresses)+len(req.EmailAddresses)+len(req.URIs) > 0 {
			return errors.New("a node's client certificate has no subject alternative names")
		}
		return checkUsages(usages, certv1.UsageClientAuth)
	case certv1.KubeletServingSignerName:
		if _, err := nodeName(req); err != nil {
			return err
		}
		if len(req.DNSNames)+len(req.IPAddresses) == 0 {
			return errors.New("a serving certificate needs a DNS name or an address")
		}
		if len(req.EmailAddresses)+len(req.URIs) > 0 {
			return errors.New("a serving certificate has no email address and no URI")
		}
		return checkUsages(usages, certv1.UsageServerAuth)
	case certv1.KubeAPIServerClientSignerName:
		return checkUsages(usages, certv1.UsageClientAuth)
	}
	return fmt.Errorf("signer %s is not ours", signer)
}

// checkUsages wants auth, and besides it at most digital signature and key
// encipherment.
func checkUsages(usages []certv1.KeyUsage, auth certv1.KeyUsage) error {
	if !slices.Contains(usages, auth) {
		return fmt.Errorf("the usage %q is missing", auth)
	}
	for _, u := range usages {
		if u != auth && u != certv1.UsageDigitalSignature && u != certv1.UsageKeyEncipherment {
			return fmt.Errorf("the usage %q is not allowed", u)
		}
	}
	return nil
}

// covered tells which name or address of the request the node does not report,
// or nil.
func covered(req *x509.CertificateRequest, node *corev1.Node) error {
	names := map[string]bool{strings.ToLower(node.Name): true}
	var ips []net.IP
	for _, a := range node.Status.Addresses {
		switch a.Type {
		case corev1.NodeInternalIP, corev1.NodeExternalIP:
			if ip := net.ParseIP(a.Address); ip != nil {
				ips = append(ips, ip)
			}
		default:
			names[strings.ToLower(a.Address)] = true
		}
	}
	for _, n := range req.DNSNames {
		if !names[strings.ToLower(n)] {
			return fmt.Errorf("node %s does not report the name %q", node.Name, n)
		}
	}
	for _, ip := range req.IPAddresses {
		if !slices.ContainsFunc(ips, ip.Equal) {
			return fmt.Errorf("node %s does not report the address %s", node.Name, ip)
		}
	}
	return nil
}

// outcome is what has been said about a request.
type outcome struct{ approved, denied, failed bool }

func outcomeOf(csr *certv1.CertificateSigningRequest) (o outcome) {
	for _, c := range csr.Status.Conditions {
		switch c.Type {
		case certv1.CertificateApproved:
			o.approved = true
		case certv1.CertificateDenied:
			o.denied = true
		case certv1.CertificateFailed:
			o.failed = true
		}
	}
	return o
}

// expiresIn returns how long the request is to be kept; zero or less: delete it.
func expiresIn(csr *certv1.CertificateSigningRequest, now time.Time) time.Duration {
	o := outcomeOf(csr)
	since, keep := csr.CreationTimestamp.Time, keepPending
	switch {
	case o.denied || o.failed:
		keep = keepDenied
	case o.approved && len(csr.Status.Certificate) > 0:
		keep = keepApproved
	}
	for _, c := range csr.Status.Conditions {
		if keep != keepPending && c.LastUpdateTime.After(since) {
			since = c.LastUpdateTime.Time
		}
	}
	return since.Add(keep).Sub(now)
}

// nodeAlive reports whether node is there and ready.
func nodeAlive(node *corev1.Node) bool {
	return node != nil && slices.ContainsFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool {
		return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	})
}
