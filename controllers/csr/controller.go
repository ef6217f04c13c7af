package csr

import (
	"context"
	"crypto"
	"crypto/x509"
	"fmt"
	"log/slog"
	"slices"
	"time"

	authzv1 "k8s.io/api/authorization/v1"
	certv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	certlisters "k8s.io/client-go/listers/certificates/v1"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

var signers = map[string]bool{
	certv1.KubeAPIServerClientKubeletSignerName: true,
	certv1.KubeletServingSignerName:             true,
	certv1.KubeAPIServerClientSignerName:        true,
}

type controller struct {
	client    kubernetes.Interface
	requests  certlisters.CertificateSigningRequestLister
	authority *authority // nil: approve only
	clock     clock.PassiveClock
	log       *slog.Logger
}

// New builds the controller. key and certPEM are the cluster CA; with a nil key
// nothing is signed. No certificate lives longer than maxAge.
func New(d runtime.Deps, q runtime.Queue, key crypto.Signer, certPEM []byte, maxAge time.Duration) (runtime.Controller, error) {
	var a *authority
	if key != nil {
		var err error
		if a, err = newAuthority(key, certPEM, maxAge); err != nil {
			return runtime.Controller{}, err
		}
	}
	requests := d.Informers.Certificates().V1().CertificateSigningRequests()
	c := &controller{client: d.Client, requests: requests.Lister(), authority: a, clock: d.Clock, log: d.Log}
	return runtime.Controller{
		Sources:   []runtime.Source{runtime.Own(q, requests.Informer())},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, name string) (time.Duration, error) {
	csr, err := c.requests.Get(name)
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	left := expiresIn(csr, c.clock.Now())
	if left <= 0 {
		err := c.client.CertificatesV1().CertificateSigningRequests().Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(csr.UID))})
		if err != nil && !apierrors.IsNotFound(err) {
			return 0, fmt.Errorf("delete certificate request %s: %w", name, err)
		}
		return 0, nil
	}
	o := outcomeOf(csr)
	if !signers[csr.Spec.SignerName] || o.denied || o.failed || len(csr.Status.Certificate) > 0 {
		return left, nil
	}
	req, err := parse(csr)
	if err == nil {
		err = checkSubject(csr.Spec.SignerName, req, csr.Spec.Usages)
	}
	if err != nil {
		if !o.approved {
			return left, nil // not ours to judge; a person may still deny it
		}
		return left, c.fail(ctx, csr, err)
	}
	if !o.approved {
		wait, err := c.approve(ctx, csr, req)
		if wait <= 0 {
			wait = left
		}
		return min(wait, left), err
	}
	if c.authority == nil {
		return left, nil
	}
	return left, c.sign(ctx, csr, req)
}

// approve judges a pending request. A positive duration asks to look again.
func (c *controller) approve(ctx context.Context, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest) (time.Duration, error) {
	switch csr.Spec.SignerName {
	case certv1.KubeAPIServerClientKubeletSignerName:
		return c.approveClient(ctx, csr, req)
	case certv1.KubeletServingSignerName:
		return c.approveServing(ctx, csr, req)
	}
	return 0, nil
}

func (c *controller) approveClient(ctx context.Context, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest) (time.Duration, error) {
	if csr.Spec.Username == req.Subject.CommonName {
		ok, err := c.may(ctx, csr, "selfnodeclient")
		if err != nil || !ok {
			return 0, err
		}
		return 0, c.decide(ctx, csr, certv1.CertificateApproved, "AutoApproved", "The node renews its own client certificate.")
	}
	ok, err := c.may(ctx, csr, "nodeclient")
	if err != nil || !ok {
		return 0, err
	}
	name, err := nodeName(req)
	if err != nil {
		return 0, err
	}
	// A live node of the name would be impersonated. Read past the cache.
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return 0, fmt.Errorf("look up node %s: %w", name, err)
	case nodeAlive(node):
		return 0, c.decide(ctx, csr, certv1.CertificateDenied, "NodeNameTaken",
			fmt.Sprintf("Node %s is in the cluster and ready. Join under another name, or stop that node and delete it first (kubectl delete node %s).", name, name))
	}
	return 0, c.decide(ctx, csr, certv1.CertificateApproved, "AutoApproved", "The requestor may make client certificates for nodes.")
}

func (c *controller) approveServing(ctx context.Context, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest) (time.Duration, error) {
	name, err := nodeName(req)
	if err != nil {
		return 0, err
	}
	if csr.Spec.Username != nodePrefix+name || !slices.Contains(csr.Spec.Groups, nodesGroup) {
		c.log.Warn("serving certificate requested by another than the node", "request", csr.Name, "node", name, "user", csr.Spec.Username)
		return 0, nil
	}
	node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("look up node %s: %w", name, err)
	}
	if err == nil {
		err = covered(req, node)
	}
	if err != nil {
		// The node may register, or report the address, in a moment.
		wait := 2 * time.Second
		if c.clock.Since(csr.CreationTimestamp.Time) > time.Minute {
			wait = time.Minute
			c.log.Warn("serving certificate is not approved", "request", csr.Name, "node", name, "err", err)
		}
		return wait, nil
	}
	return 0, c.decide(ctx, csr, certv1.CertificateApproved, "AutoApproved", "The node reports every name and address that the certificate is for.")
}

// may asks the authorizer whether the requestor may create the subresource.
func (c *controller) may(ctx context.Context, csr *certv1.CertificateSigningRequest, subresource string) (bool, error) {
	extra := map[string]authzv1.ExtraValue{}
	for k, v := range csr.Spec.Extra {
		extra[k] = authzv1.ExtraValue(v)
	}
	r, err := c.client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authzv1.SubjectAccessReview{
		Spec: authzv1.SubjectAccessReviewSpec{
			User: csr.Spec.Username, UID: csr.Spec.UID, Groups: csr.Spec.Groups, Extra: extra,
			ResourceAttributes: &authzv1.ResourceAttributes{
				Group: certv1.GroupName, Resource: "certificatesigningrequests", Subresource: subresource, Verb: "create", Version: "*",
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return false, fmt.Errorf("ask whether %s may have certificate request %s approved: %w", csr.Spec.Username, csr.Name, err)
	}
	if !r.Status.Allowed {
		c.log.Info("certificate request is left to a person: its requestor may not have it approved", "request", csr.Name, "user", csr.Spec.Username, "needs", subresource)
	}
	return r.Status.Allowed, nil
}

func (c *controller) decide(ctx context.Context, csr *certv1.CertificateSigningRequest, t certv1.RequestConditionType, reason, message string) error {
	csr = c.withCondition(csr, t, reason, message)
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateApproval(ctx, csr.Name, csr, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write approval of certificate request %s: %w", csr.Name, err)
	}
	c.log.Info("certificate request decided", "request", csr.Name, "user", csr.Spec.Username, "signer", csr.Spec.SignerName, "decision", string(t), "reason", message)
	return nil
}

func (c *controller) fail(ctx context.Context, csr *certv1.CertificateSigningRequest, why error) error {
	csr = c.withCondition(csr, certv1.CertificateFailed, "SignerValidationFailure", why.Error())
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write failure of certificate request %s: %w", csr.Name, err)
	}
	return nil
}

func (c *controller) withCondition(csr *certv1.CertificateSigningRequest, t certv1.RequestConditionType, reason, message string) *certv1.CertificateSigningRequest {
	csr = csr.DeepCopy()
	now := metav1.NewTime(c.clock.Now())
	csr.Status.Conditions = append(csr.Status.Conditions, certv1.CertificateSigningRequestCondition{
		Type: t, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	})
	return csr
}

func (c *controller) sign(ctx context.Context, csr *certv1.CertificateSigningRequest, req *x509.CertificateRequest) error {
	pem, err := c.authority.sign(req, csr.Spec.Usages, c.authority.lifetime(csr.Spec.ExpirationSeconds), c.clock.Now())
	if err != nil {
		return fmt.Errorf("certificate request %s: %w", csr.Name, err)
	}
	csr = csr.DeepCopy()
	csr.Status.Certificate = pem
	if _, err := c.client.CertificatesV1().CertificateSigningRequests().UpdateStatus(ctx, csr, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write certificate of request %s: %w", csr.Name, err)
	}
	return nil
}
