package disruption

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/apps/poddisruptionbudget"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// grantTimeout is how long a granted eviction may take to delete its pod, and
// staleAfter how long a pod may be marked as about to be disrupted; upstream's
// values.
const (
	grantTimeout = 2 * time.Minute
	staleAfter   = 2 * time.Minute
)

// state is what is seen of a budget.
type state struct {
	pdb  *policyv1.PodDisruptionBudget
	pods []*corev1.Pod // that it selects
	// scale is how many pods their controllers want; scaleErr why that is unknown.
	// They count where scaled says so.
	scale    int
	scaleErr error
	now      time.Time
}

// scaled reports whether the budget depends on the wanted scale.
func scaled(pdb *policyv1.PodDisruptionBudget) bool {
	return pdb.Spec.MaxUnavailable != nil || pdb.Spec.MinAvailable != nil && pdb.Spec.MinAvailable.Type == intstr.String
}

// expected returns how many pods there should be, and how many must be healthy.
func (s state) expected() (count, healthy int, err error) {
	spec := s.pdb.Spec
	if !scaled(s.pdb) {
		if spec.MinAvailable == nil {
			return len(s.pods), len(s.pods), nil
		}
		return len(s.pods), int(spec.MinAvailable.IntVal), nil
	}
	if s.scaleErr != nil {
		return 0, 0, s.scaleErr
	}
	if spec.MaxUnavailable != nil {
		n, err := intstr.GetScaledValueFromIntOrPercent(spec.MaxUnavailable, s.scale, true)
		if err != nil {
			return 0, 0, fmt.Errorf("maxUnavailable: %w", err)
		}
		return s.scale, max(0, s.scale-n), nil
	}
	n, err := intstr.GetScaledValueFromIntOrPercent(spec.MinAvailable, s.scale, true)
	if err != nil {
		return 0, 0, fmt.Errorf("minAvailable: %w", err)
	}
	return s.scale, n, nil
}

// status computes the status, and when a granted eviction expires, or 0. expired
// are pods whose eviction was granted and that were not deleted in time.
func (s state) status() (out policyv1.PodDisruptionBudgetStatus, again time.Duration, expired []string) {
	pdb := s.pdb.DeepCopy()
	out = pdb.Status
	count, desired, err := s.expected()
	if err != nil {
		out.ObservedGeneration = pdb.Generation
		out.DisruptionsAllowed = 0
		pdb.Status = out
		fail(&pdb.Status, err, s.now)
		return pdb.Status, 0, nil
	}
	granted := map[string]metav1.Time{}
	healthy := 0
	for _, p := range s.pods {
		if p.DeletionTimestamp != nil {
			continue
		}
		if at, ok := s.pdb.Status.DisruptedPods[p.Name]; ok {
			if left := at.Add(grantTimeout).Sub(s.now); left > 0 {
				granted[p.Name] = at
				if again == 0 || left < again {
					again = left
				}
				continue
			}
			expired = append(expired, p.Name)
		}
		if podstate.Ready(p) {
			healthy++
		}
	}
	allowed := max(0, healthy-desired)
	if count <= 0 {
		allowed = 0
	}
	out.ObservedGeneration = pdb.Generation
	out.ExpectedPods, out.CurrentHealthy, out.DesiredHealthy = int32(count), int32(healthy), int32(desired)
	out.DisruptionsAllowed = int32(allowed)
	out.DisruptedPods = granted
	if len(granted) == 0 {
		out.DisruptedPods = nil
	}
	pdb.Status = out
	poddisruptionbudget.UpdateDisruptionAllowedCondition(pdb)
	return pdb.Status, again, expired
}

// fail sets the condition that says why nothing is allowed.
func fail(s *policyv1.PodDisruptionBudgetStatus, err error, now time.Time) {
	c := metav1.Condition{
		Type: policyv1.DisruptionAllowedCondition, Status: metav1.ConditionFalse, Reason: policyv1.SyncFailedReason,
		Message: err.Error(), ObservedGeneration: s.ObservedGeneration, LastTransitionTime: metav1.NewTime(now),
	}
	for i := range s.Conditions {
		if s.Conditions[i].Type == c.Type {
			if s.Conditions[i].Status == c.Status {
				c.LastTransitionTime = s.Conditions[i].LastTransitionTime
			}
			s.Conditions[i] = c
			return
		}
	}
	s.Conditions = append(s.Conditions, c)
}

// stale returns how long it is until a pod's mark as about to be disrupted is
// taken back, or false when it has none to take back.
func stale(p *corev1.Pod, now time.Time) (time.Duration, bool) {
	c := podstate.Condition(p, corev1.DisruptionTarget)
	if c == nil || c.Status != corev1.ConditionTrue || !podstate.Active(p) {
		return 0, false
	}
	return max(0, c.LastTransitionTime.Add(staleAfter).Sub(now)), true
}
