package bootstrap

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// csrPoll is how often a pending request is looked at.
	csrPoll = 500 * time.Millisecond
	// sayAfter is how long anything may take before it says what it waits for.
	sayAfter = 5 * time.Second
)

// ErrDenied means that the cluster refused to sign a certificate; the error that
// wraps it has the reason.
var ErrDenied = errors.New("the cluster refused the certificate request")

// certificateRequest is what to ask a signer for.
type certificateRequest struct {
	signer string
	node   string // the subject is this node's user
	dns    []string
	ips    []net.IP
}

func (r certificateRequest) usages() []certificatesv1.KeyUsage {
	u := []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}
	if r.signer == certificatesv1.KubeletServingSignerName {
		return append(u, certificatesv1.UsageServerAuth)
	}
	return append(u, certificatesv1.UsageClientAuth)
}

// request makes a key, has its certificate signed and returns both in PEM. It
// waits for the signature until ctx ends; waiting is told to say now and then.
func request(ctx context.Context, client kubernetes.Interface, r certificateRequest, say func(string)) ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{
		Subject:  pkix.Name{CommonName: UserPrefix + r.node, Organization: []string{NodesGroup}},
		DNSNames: r.dns, IPAddresses: r.ips,
	}, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate request: %w", err)
	}
	csrs := client.CertificatesV1().CertificateSigningRequests()
	obj, err := csrs.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "node-csr-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: r.signer,
			Usages:     r.usages(),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	began, said := time.Now(), time.Now()
	t := time.NewTicker(csrPoll)
	defer t.Stop()
	state := "approval"
	for {
		for _, c := range obj.Status.Conditions {
			if c.Status == v1.ConditionFalse {
				continue
			}
			switch c.Type {
			case certificatesv1.CertificateDenied:
				return nil, fmt.Errorf("%w %s: %s", ErrDenied, obj.Name, reason(c))
			case certificatesv1.CertificateFailed:
				return nil, fmt.Errorf("certificate request %s could not be signed: %s", obj.Name, reason(c))
			case certificatesv1.CertificateApproved:
				state = "the signature"
			}
		}
		if len(obj.Status.Certificate) > 0 {
			pair := append(append([]byte{}, obj.Status.Certificate...), keyPEM...)
			if _, err := ParsePair(pair); err != nil {
				return nil, fmt.Errorf("certificate request %s: %w", obj.Name, err)
			}
			return pair, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("certificate request %s got no %s in %s: see `kubectl get csr` and the csr controller in `controld status`", obj.Name, state, time.Since(began).Round(time.Second))
		case <-t.C:
		}
		if say != nil && time.Since(said) > sayAfter {
			said = time.Now()
			say(fmt.Sprintf("waiting for %s of certificate request %s (%s so far)", state, obj.Name, time.Since(began).Round(time.Second)))
		}
		next, err := csrs.Get(ctx, obj.Name, metav1.GetOptions{})
		switch {
		case err == nil:
			obj = next
		case apierrors.IsNotFound(err):
			return nil, fmt.Errorf("certificate request %s was deleted before it was signed", obj.Name)
		case apierrors.IsUnauthorized(err), apierrors.IsForbidden(err):
			return nil, fmt.Errorf("look at certificate request %s: %w", obj.Name, err)
		}
	}
}

func reason(c certificatesv1.CertificateSigningRequestCondition) string {
	switch {
	case c.Message == "":
		return c.Reason
	case c.Reason == "":
		return c.Message
	}
	return c.Reason + ": " + c.Message
}
