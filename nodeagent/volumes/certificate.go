package volumes

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// renewalSpread is the most by which a renewal is put off, so that pods that
// started together do not ask together.
const renewalSpread = 5 * time.Minute

// certificate adds the files of a key that the signer has certified for the pod.
func (p *builder) certificate(volume string, index int, s *v1.PodCertificateProjection) error {
	c, err := p.m.certificates.get(p.ctx, p.pod, p.facts.NodeName, certificateKey{p.pod.UID, volume, index}, s)
	if err != nil {
		return err
	}
	if s.CredentialBundlePath != "" {
		p.out[s.CredentialBundlePath] = p.private(append(append([]byte{}, c.key...), c.chain...))
	}
	if s.KeyPath != "" {
		p.out[s.KeyPath] = p.private(c.key)
	}
	if s.CertificateChainPath != "" {
		p.out[s.CertificateChainPath] = p.private(c.chain)
	}
	return nil
}

// certificateKey is a source of a projected volume of a pod.
type certificateKey struct {
	uid    types.UID
	volume string
	index  int
}

// certificate is a key with its chain, as PEM.
type certificate struct {
	key, chain []byte
	renew      time.Time
}

// issuance is where a source's certificate stands: the one in use, if any, and
// the request that runs, if any. The signer's refusal is for good.
type issuance struct {
	mu      sync.Mutex
	current *certificate
	refused error
	key     []byte // of the request that runs
	request string // its name; empty: none
}

// certificates asks for the certificates of pods with PodCertificateRequests. It
// keeps them in memory alone: after a restart they are asked for anew, and the
// volumes keep what they have until the answer.
type certificates struct {
	client kubernetes.Interface
	now    func() time.Time
	mu     sync.Mutex
	have   map[certificateKey]*issuance
}

func newCertificates(c kubernetes.Interface) *certificates {
	return &certificates{client: c, now: time.Now, have: map[certificateKey]*issuance{}}
}

// get returns the certificate of a source and moves its issuance on by one step:
// asks for one, or looks at the answer. Until there is a first one, it returns an
// error that says for whom the pod waits; a later call goes on.
func (c *certificates) get(ctx context.Context, pod *v1.Pod, node string, key certificateKey, s *v1.PodCertificateProjection) (*certificate, error) {
	c.mu.Lock()
	i := c.have[key]
	if i == nil {
		i = &issuance{}
		c.have[key] = i
	}
	c.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()

	if i.refused == nil && i.request == "" && (i.current == nil || c.now().After(i.current.renew)) {
		if err := c.ask(ctx, pod, node, s, i); err != nil && i.current == nil {
			return nil, err
		}
	}
	if i.request != "" {
		if err := c.look(ctx, pod, i); err != nil && i.current == nil {
			return nil, err
		}
	}
	switch {
	case i.refused != nil:
		return nil, i.refused
	case i.current == nil:
		return nil, fmt.Errorf("signer %q has not answered PodCertificateRequest %s/%s yet", s.SignerName, pod.Namespace, i.request)
	}
	return i.current, nil
}

// ask makes a key and a request for it.
func (c *certificates) ask(ctx context.Context, pod *v1.Pod, node string, s *v1.PodCertificateProjection, i *issuance) error {
	account := pod.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	sa, err := c.client.CoreV1().ServiceAccounts(pod.Namespace).Get(ctx, account, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("pod certificate: service account %s/%s: %w", pod.Namespace, account, err)
	}
	n, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("pod certificate: node %s: %w", node, err)
	}
	key, request, err := newKey(s.KeyType)
	if err != nil {
		return err
	}
	pcr, err := c.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Create(ctx, &certificatesv1.PodCertificateRequest{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, GenerateName: "req-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}},
		},
		Spec: certificatesv1.PodCertificateRequestSpec{
			SignerName: s.SignerName,
			PodName:    pod.Name, PodUID: pod.UID,
			ServiceAccountName: account, ServiceAccountUID: sa.UID,
			NodeName: types.NodeName(node), NodeUID: n.UID,
			MaxExpirationSeconds:      s.MaxExpirationSeconds,
			StubPKCS10Request:         request,
			UnverifiedUserAnnotations: s.UserAnnotations,
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("pod certificate: create a PodCertificateRequest to signer %q: %w", s.SignerName, err)
	}
	i.key, i.request = key, pcr.Name
	return nil
}

// look takes over the answer to the request that runs, if there is one.
func (c *certificates) look(ctx context.Context, pod *v1.Pod, i *issuance) error {
	pcr, err := c.client.CertificatesV1().PodCertificateRequests(pod.Namespace).Get(ctx, i.request, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // somebody removed it: ask again
		gone := i.request
		i.request, i.key = "", nil
		return fmt.Errorf("PodCertificateRequest %s/%s is gone, asking again", pod.Namespace, gone)
	}
	if err != nil {
		return fmt.Errorf("PodCertificateRequest %s/%s: %w", pod.Namespace, i.request, err)
	}
	for _, cond := range pcr.Status.Conditions {
		switch cond.Type {
		case certificatesv1.PodCertificateRequestConditionTypeDenied, certificatesv1.PodCertificateRequestConditionTypeFailed:
			i.refused = definite("PodCertificateRequest %s/%s to signer %q: %s: %s: %s", pod.Namespace, pcr.Name, pcr.Spec.SignerName, cond.Type, cond.Reason, cond.Message)
			i.request, i.key = "", nil
			return nil
		case certificatesv1.PodCertificateRequestConditionTypeIssued:
			renew := c.now().Add(mathrand.N(renewalSpread))
			if pcr.Status.BeginRefreshAt != nil {
				renew = pcr.Status.BeginRefreshAt.Add(mathrand.N(renewalSpread))
			}
			i.current = &certificate{key: i.key, chain: blocksOnly(pcr.Status.CertificateChain), renew: renew}
			i.request, i.key = "", nil
			return nil
		}
	}
	return nil
}

// drop forgets the certificates of a pod.
func (c *certificates) drop(uid types.UID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := range c.have {
		if k.uid == uid {
			delete(c.have, k)
		}
	}
}

// newKey makes a key of the API's type name, as PKCS#8 in PEM, and the empty
// PKCS#10 request that proves it.
func newKey(kind string) (key, request []byte, err error) {
	var signer crypto.Signer
	switch kind {
	case "RSA3072":
		signer, err = rsa.GenerateKey(rand.Reader, 3072)
	case "RSA4096":
		signer, err = rsa.GenerateKey(rand.Reader, 4096)
	case "ECDSAP256":
		signer, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	case "ECDSAP384":
		signer, err = ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	case "ECDSAP521":
		signer, err = ecdsa.GenerateKey(elliptic.P521(), rand.Reader)
	case "ED25519":
		_, signer, err = ed25519.GenerateKey(rand.Reader)
	default:
		return nil, nil, definite("pod certificate: key type %q is not known to this node", kind)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("pod certificate: generate a key of type %s: %w", kind, err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(signer)
	if err != nil {
		return nil, nil, fmt.Errorf("pod certificate: encode the key: %w", err)
	}
	if request, err = x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, signer); err != nil {
		return nil, nil, fmt.Errorf("pod certificate: make the request: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), request, nil
}

// blocksOnly is a chain without what stands between its certificates and in their headers.
func blocksOnly(chain string) []byte {
	var out []byte
	for block, rest := pem.Decode([]byte(chain)); block != nil; block, rest = pem.Decode(rest) {
		out = append(out, pem.EncodeToMemory(&pem.Block{Type: block.Type, Bytes: block.Bytes})...)
	}
	return out
}
