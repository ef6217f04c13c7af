package legacytokencleaner

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/runtime"
)

const (
	roundKey = "round"
	// every is how often tokens are looked at: labels count days.
	every = 24 * time.Hour

	trackingConfigMap = "kube-apiserver-legacy-service-account-token-tracking"
)

type controller struct {
	client   kubernetes.Interface
	accounts corelisters.ServiceAccountLister
	pods     corelisters.PodLister
	clock    clock.PassiveClock
	log      *slog.Logger
}

// New builds the controller.
func New(d runtime.Deps, q runtime.Queue) (runtime.Controller, error) {
	core := d.Informers.Core().V1()
	c := &controller{d.Client, core.ServiceAccounts().Lister(), core.Pods().Lister(), d.Clock, d.Log}
	q.Add(roundKey)
	return runtime.Controller{
		Workers:   1,
		Synced:    []cache.InformerSynced{core.ServiceAccounts().Informer().HasSynced, core.Pods().Informer().HasSynced},
		Reconcile: c.reconcile,
	}, nil
}

func (c *controller) reconcile(ctx context.Context, _ string) (time.Duration, error) {
	now := c.clock.Now().UTC()
	tracked, err := c.trackedSince(ctx)
	if err != nil {
		return 0, err
	}
	if tracked.IsZero() || now.Before(tracked.Add(unusedFor)) {
		return every, nil // a use before the tracking would be missed
	}
	secrets, err := c.client.CoreV1().Secrets(metav1.NamespaceAll).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("type", string(corev1.SecretTypeServiceAccountToken)).String(),
	})
	if err != nil {
		return 0, fmt.Errorf("list service account tokens: %w", err)
	}
	mounted, err := c.mounted()
	if err != nil {
		return 0, err
	}
	for i := range secrets.Items {
		s := &secrets.Items[i]
		account, err := c.account(s)
		if err != nil {
			return 0, err
		}
		api := c.client.CoreV1().Secrets(s.Namespace)
		switch judge(s, account, mounted[s.Namespace+"/"+s.Name], now) {
		case mark:
			patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
				"uid": s.UID, "resourceVersion": s.ResourceVersion, "labels": map[string]string{invalidSince: now.Format(dateFormat)},
			}})
			if err != nil {
				return 0, err
			}
			if _, err := api.Patch(ctx, s.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil && !apierrors.IsNotFound(err) {
				return 0, fmt.Errorf("mark unused token %s/%s: %w", s.Namespace, s.Name, err)
			}
			c.log.Info("service account token unused for a year marked as invalid", "secret", s.Namespace+"/"+s.Name)
		case remove:
			err := api.Delete(ctx, s.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &s.UID, ResourceVersion: &s.ResourceVersion}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return 0, fmt.Errorf("delete unused token %s/%s: %w", s.Namespace, s.Name, err)
			}
			c.log.Info("service account token marked a year ago deleted", "secret", s.Namespace+"/"+s.Name)
		}
	}
	return every, nil
}

// trackedSince returns from when on every use of a token is on record, or the
// zero time while it is not known.
func (c *controller) trackedSince(ctx context.Context) (time.Time, error) {
	m, err := c.client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Get(ctx, trackingConfigMap, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return time.Time{}, nil
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read since when tokens are tracked: %w", err)
	}
	since, err := time.Parse(dateFormat, m.Data["since"])
	if err != nil {
		return time.Time{}, fmt.Errorf("config map %s/%s: since: %w", m.Namespace, m.Name, err)
	}
	return since.AddDate(0, 0, 1), nil // it began in the course of that day
}

// mounted returns the Secrets that pods name.
func (c *controller) mounted() (map[string]bool, error) {
	pods, err := c.pods.List(labels.Everything())
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for _, pod := range pods {
		for _, name := range named(pod) {
			out[pod.Namespace+"/"+name] = true
		}
	}
	return out, nil
}

func (c *controller) account(s *corev1.Secret) (*corev1.ServiceAccount, error) {
	a, err := c.accounts.ServiceAccounts(s.Namespace).Get(s.Annotations[corev1.ServiceAccountNameKey])
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if uid := s.Annotations[corev1.ServiceAccountUIDKey]; uid != "" && uid != string(a.UID) {
		return nil, nil
	}
	return a, nil
}
