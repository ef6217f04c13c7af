package legacytokencleaner

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	lastUsed     = "kubernetes.io/legacy-token-last-used"
	invalidSince = "kubernetes.io/legacy-token-invalid-since"
	dateFormat   = "2006-01-02"
	// unusedFor is how long a token is unused before it is marked, and marked
	// before it is deleted.
	unusedFor = 365 * 24 * time.Hour
)

type verdict string

const (
	keep   verdict = "keep"
	mark   verdict = "mark"
	remove verdict = "remove"
)

// judge says what to do with a token. account is its ServiceAccount, nil when
// there is none; mounted whether a pod names the Secret.
func judge(s *corev1.Secret, account *corev1.ServiceAccount, mounted bool, now time.Time) verdict {
	limit := now.Add(-unusedFor)
	if s.Type != corev1.SecretTypeServiceAccountToken || s.DeletionTimestamp != nil || !s.CreationTimestamp.Time.Before(limit) {
		return keep
	}
	if label, ok := s.Labels[lastUsed]; ok {
		if _, err := time.Parse(dateFormat, label); err != nil || label >= limit.Format(dateFormat) {
			return keep
		}
	}
	if account == nil || mounted || !slices.ContainsFunc(account.Secrets, func(r corev1.ObjectReference) bool { return r.Name == s.Name }) {
		return keep
	}
	since := s.Labels[invalidSince]
	if _, err := time.Parse(dateFormat, since); err != nil {
		return mark
	}
	if since >= limit.Format(dateFormat) {
		return keep
	}
	return remove
}

// named returns the names of the Secrets that a pod names.
func named(pod *corev1.Pod) (names []string) {
	for _, r := range pod.Spec.ImagePullSecrets {
		names = append(names, r.Name)
	}
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		if v.Secret != nil {
			names = append(names, v.Secret.SecretName)
		}
		if v.Projected != nil {
			for _, s := range v.Projected.Sources {
				if s.Secret != nil {
					names = append(names, s.Secret.Name)
				}
			}
		}
		if v.CSI != nil && v.CSI.NodePublishSecretRef != nil {
			names = append(names, v.CSI.NodePublishSecretRef.Name)
		}
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	for i := range pod.Spec.EphemeralContainers {
		all = append(all, corev1.Container(pod.Spec.EphemeralContainers[i].EphemeralContainerCommon))
	}
	for i := range all {
		for _, e := range all[i].EnvFrom {
			if e.SecretRef != nil {
				names = append(names, e.SecretRef.Name)
			}
		}
		for _, e := range all[i].Env {
			if e.ValueFrom != nil && e.ValueFrom.SecretKeyRef != nil {
				names = append(names, e.ValueFrom.SecretKeyRef.Name)
			}
		}
	}
	return names
}
