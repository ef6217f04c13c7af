package serviceaccounttoken

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

// Sign makes the token of a Secret of a ServiceAccount. The token does not
// expire; it dies with the Secret.
type Sign func(ctx context.Context, account *corev1.ServiceAccount, secret *corev1.Secret) (string, error)

type controller struct {
	client   kubernetes.Interface
	secrets  corelisters.SecretLister
	accounts corelisters.ServiceAccountLister
	sign     Sign
	rootCA   []byte
}

// New builds the controller. rootCA is in PEM.
func New(d runtime.Deps, q runtime.Queue, sign Sign, rootCA []byte) (runtime.Controller, error) {
	// Only tokens are cached, not the cluster's secrets.
	informer := coreinformers.NewFilteredSecretInformer(d.Client, metav1.NamespaceAll, 0,
		cache.Indexers{cache.NamespaceIndex: cache.MetaNamespaceIndexFunc},
		func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String()
		})
	accounts := d.Informers.Core().V1().ServiceAccounts()
	c := &controller{d.Client, corelisters.NewSecretLister(informer.GetIndexer()), accounts.Lister(), sign, rootCA}
	ofAccount, err := runtime.NewIndex(informer, "account", func(s *corev1.Secret) []string {
		return []string{s.Namespace + "/" + s.Annotations[corev1.ServiceAccountNameKey]}
	})
	if err != nil {
		return runtime.Controller{}, err
	}
	return runtime.Controller{
		Private: []cache.SharedInformer{informer},
		Sources: []runtime.Source{
			runtime.Own(q, informer),
			runtime.On(accounts.Informer(), runtime.Handlers[*corev1.ServiceAccount]{Delete: func(a *corev1.ServiceAccount) {
				for _, s := range ofAccount.Get(a.Namespace + "/" + a.Name) {
					q.Add(s.Namespace + "/" + s.Name)
				}
			}}),
		},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, key string) (time.Duration, error) {
	namespace, name, err := runtime.SplitKey(key)
	if err != nil {
		return 0, err
	}
	s, err := c.secrets.Secrets(namespace).Get(name)
	if apierrors.IsNotFound(err) {
		return 0, c.unlist(ctx, namespace, name)
	}
	if err != nil {
		return 0, err
	}
	if s.Type != corev1.SecretTypeServiceAccountToken {
		return 0, nil
	}
	account, err := c.account(ctx, s)
	if err != nil {
		return 0, err
	}
	api := c.client.CoreV1().Secrets(namespace)
	if account == nil {
		err := api.Delete(ctx, name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(s.UID))})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			return 0, fmt.Errorf("delete token secret %s without a service account: %w", key, err)
		}
		return 0, nil
	}
	if c.filled(s) {
		return 0, nil
	}
	s, err = api.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return 0, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read token secret %s: %w", key, err)
	}
	if c.filled(s) || s.Type != corev1.SecretTypeServiceAccountToken {
		return 0, nil
	}
	if s.Data == nil {
		s.Data = map[string][]byte{}
	}
	if len(s.Data[corev1.ServiceAccountTokenKey]) == 0 {
		token, err := c.sign(ctx, account, s)
		if err != nil {
			return 0, fmt.Errorf("sign token of secret %s: %w", key, err)
		}
		s.Data[corev1.ServiceAccountTokenKey] = []byte(token)
	}
	if len(c.rootCA) > 0 {
		s.Data[corev1.ServiceAccountRootCAKey] = c.rootCA
	}
	if len(s.Data[corev1.ServiceAccountNamespaceKey]) == 0 {
		s.Data[corev1.ServiceAccountNamespaceKey] = []byte(namespace)
	}
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, corev1.ServiceAccountNameKey, account.Name)
	metav1.SetMetaDataAnnotation(&s.ObjectMeta, corev1.ServiceAccountUIDKey, string(account.UID))
	if _, err := api.Update(ctx, s, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
		return 0, fmt.Errorf("fill token secret %s: %w", key, err)
	}
	return 0, nil
}

func (c *controller) filled(s *corev1.Secret) bool {
	return len(s.Data[corev1.ServiceAccountTokenKey]) > 0 && len(s.Data[corev1.ServiceAccountNamespaceKey]) > 0 &&
		(len(c.rootCA) == 0 || bytes.Equal(s.Data[corev1.ServiceAccountRootCAKey], c.rootCA))
}

// account returns the ServiceAccount of a Secret, nil when there is none for
// sure.
func (c *controller) account(ctx context.Context, s *corev1.Secret) (*corev1.ServiceAccount, error) {
	name, uid := s.Annotations[corev1.ServiceAccountNameKey], types.UID(s.Annotations[corev1.ServiceAccountUIDKey])
	is := func(a *corev1.ServiceAccount) bool { return uid == "" || a.UID == uid }
	a, err := c.accounts.ServiceAccounts(s.Namespace).Get(name)
	if err == nil && is(a) {
		return a, nil
	}
	a, err = c.client.CoreV1().ServiceAccounts(s.Namespace).Get(ctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read service account %s/%s: %w", s.Namespace, name, err)
	case !is(a):
		return nil, nil
	}
	return a, nil
}

// unlist takes a Secret that is gone off the ServiceAccount that lists it.
func (c *controller) unlist(ctx context.Context, namespace, name string) error {
	accounts, err := c.accounts.ServiceAccounts(namespace).List(labels.Everything())
	if err != nil {
		return err
	}
	for _, a := range accounts {
		lists := func(r corev1.ObjectReference) bool { return r.Name == name }
		if !slices.ContainsFunc(a.Secrets, lists) {
			continue
		}
		next := a.DeepCopy()
		next.Secrets = slices.DeleteFunc(next.Secrets, lists)
		if _, err := c.client.CoreV1().ServiceAccounts(namespace).Update(ctx, next, metav1.UpdateOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("take secret %s off service account %s/%s: %w", name, namespace, a.Name, err)
		}
	}
	return nil
}
