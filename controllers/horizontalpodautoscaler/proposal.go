package horizontalpodautoscaler

import (
	"errors"
	"fmt"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/podstate"
)

// How long the CPU use of a pod that starts says little: upstream's defaults.
const (
	cpuInitialization = 5 * time.Minute
	initialReadiness  = 30 * time.Second
)

// sample is one pod's value of a metric, in thousandths of its unit, and when it
// was taken over what time.
type sample struct {
	value  int64
	at     time.Time
	window time.Duration
}

// tolerances are how far the ratio of a metric to its target may be from 1.
type tolerances struct{ up, down float64 }

// within reports whether a ratio calls for no change.
func (t tolerances) within(ratio float64) bool { return 1-t.down <= ratio && ratio <= 1+t.up }

// pool is what is known of the pods of a target for one metric.
type pool struct {
	current int // replicas of the scale
	pods    []*corev1.Pod
	samples map[string]sample // by pod
	// goal is what each pod's use is to be, in thousandths; fallback what a pod
	// without a sample counts as when scaling down, 0 for the goal.
	goal, fallback func(*corev1.Pod) (int64, error)
	cpu            bool
	now            time.Time
}

// group sorts the pods: serving with a sample, not ready, without a sample.
func (p pool) group() (ready, unready, missing []*corev1.Pod) {
	for _, pod := range p.pods {
		s, ok := p.samples[pod.Name]
		switch {
		case pod.DeletionTimestamp != nil || podstate.Terminal(pod):
		case pod.Status.Phase == corev1.PodPending:
			unready = append(unready, pod)
		case !ok:
			missing = append(missing, pod)
		case p.cpu && p.starting(pod, s):
			unready = append(unready, pod)
		default:
			ready = append(ready, pod)
		}
	}
	return ready, unready, missing
}

// starting reports whether a pod's CPU use is that of its start.
func (p pool) starting(pod *corev1.Pod, s sample) bool {
	c := podstate.Condition(pod, corev1.PodReady)
	if c == nil || pod.Status.StartTime == nil {
		return true
	}
	if pod.Status.StartTime.Add(cpuInitialization).After(p.now) {
		return c.Status == corev1.ConditionFalse || s.at.Before(c.LastTransitionTime.Add(s.window))
	}
	return c.Status == corev1.ConditionFalse && pod.Status.StartTime.Add(initialReadiness).After(c.LastTransitionTime.Time)
}

// propose returns the size at which the pods' use meets the goal, the sum of the
// use and of the goals of the pods that serve, and their number.
func (p pool) propose(t tolerances) (replicas int, used, goal int64, serving int, err error) {
	ready, unready, missing := p.group()
	if len(ready) == 0 {
		return 0, 0, 0, 0, errors.New("no metrics of pods that are ready")
	}
	for _, pod := range ready {
		g, err := p.goal(pod)
		if err != nil {
			return 0, 0, 0, 0, err
		}
		used += p.samples[pod.Name].value
		goal += g
	}
	if goal <= 0 {
		return 0, 0, 0, 0, errors.New("the target comes to nothing")
	}
	ratio := float64(used) / float64(goal)
	if len(missing) == 0 && (len(unready) == 0 || ratio <= 1) {
		if t.within(ratio) {
			return p.current, used, goal, len(ready), nil
		}
		return int(math.Ceil(ratio * float64(len(ready)))), used, goal, len(ready), nil
	}
	// What is not known counts so that it damps the change.
	all, allUsed, allGoal := len(ready), used, goal
	add := func(pods []*corev1.Pod, value func(*corev1.Pod) (int64, error)) error {
		for _, pod := range pods {
			g, err := p.goal(pod)
			if err != nil {
				return err
			}
			v := int64(0)
			if value != nil {
				if v, err = value(pod); err != nil {
					return err
				}
			}
			all, allUsed, allGoal = all+1, allUsed+v, allGoal+g
		}
		return nil
	}
	full := p.goal
	if p.fallback != nil {
		full = p.fallback
	}
	switch {
	case ratio < 1:
		err = add(missing, full)
	case ratio > 1:
		if err = add(missing, nil); err == nil {
			err = add(unready, nil)
		}
	}
	if err != nil {
		return 0, 0, 0, 0, err
	}
	damped := float64(allUsed) / float64(allGoal)
	if t.within(damped) || ratio < 1 && damped > 1 || ratio > 1 && damped < 1 {
		return p.current, used, goal, len(ready), nil
	}
	replicas = int(math.Ceil(damped * float64(all)))
	if damped < 1 && replicas > p.current || damped > 1 && replicas < p.current {
		replicas = p.current
	}
	return replicas, used, goal, len(ready), nil
}

// proposeWhole returns the size for one value of the whole target: perPod is
// whether goal is for each pod. serving is how many pods are ready.
func proposeWhole(current, serving int, used, goal int64, perPod bool, t tolerances) int {
	if perPod {
		if current > 0 && t.within(float64(used)/(float64(goal)*float64(current))) {
			return current
		}
		return int(math.Ceil(float64(used) / float64(goal)))
	}
	ratio := float64(used) / float64(goal)
	if current == 0 {
		return int(math.Ceil(ratio))
	}
	if t.within(ratio) {
		return current
	}
	return int(math.Ceil(ratio * float64(serving)))
}

// request returns what a pod, or one container of it, requests of a resource, in
// thousandths.
func request(pod *corev1.Pod, resource corev1.ResourceName, container string) (int64, error) {
	var sum int64
	found := false
	add := func(c *corev1.Container) error {
		if container != "" && c.Name != container {
			return nil
		}
		found = true
		q, ok := c.Resources.Requests[resource]
		if !ok {
			return fmt.Errorf("missing request for %s in container %s of Pod %s", resource, c.Name, pod.Name)
		}
		sum += q.MilliValue()
		return nil
	}
	if q, ok := podRequest(pod, resource); ok && container == "" {
		return q, nil
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			if err := add(c); err != nil {
				return 0, err
			}
		}
	}
	for i := range pod.Spec.Containers {
		if err := add(&pod.Spec.Containers[i]); err != nil {
			return 0, err
		}
	}
	if !found {
		return 0, fmt.Errorf("container %s not found in Pod %s", container, pod.Name)
	}
	return sum, nil
}

// podRequest is what the pod requests as a whole.
func podRequest(pod *corev1.Pod, resource corev1.ResourceName) (int64, bool) {
	if pod.Spec.Resources == nil {
		return 0, false
	}
	q, ok := pod.Spec.Resources.Requests[resource]
	return q.MilliValue(), ok
}
