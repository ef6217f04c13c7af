package horizontalpodautoscaler

import (
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
)

// The defaults of the behavior, as the API documents them.
const (
	downStabilization = 5 * time.Minute
	defaultTolerance  = 0.1
)

// timed is a size, or a change of it, at a time.
type timed struct {
	n  int
	at time.Time
}

// memory is what is remembered of one autoscaler, from its first look on.
type memory struct {
	proposals  []timed
	ups, downs []timed // sizes of changes made
}

// rules are the behavior for one direction.
type rules struct {
	stabilization time.Duration
	selectPolicy  autoscalingv2.ScalingPolicySelect
	policies      []autoscalingv2.HPAScalingPolicy
	tolerance     float64
}

// behavior returns the rules with the defaults filled in.
func behavior(hpa *autoscalingv2.HorizontalPodAutoscaler) (up, down rules) {
	up = rules{selectPolicy: autoscalingv2.MaxChangePolicySelect, tolerance: defaultTolerance, policies: []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PodsScalingPolicy, Value: 4, PeriodSeconds: 15},
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	}}
	down = rules{stabilization: downStabilization, selectPolicy: autoscalingv2.MaxChangePolicySelect, tolerance: defaultTolerance, policies: []autoscalingv2.HPAScalingPolicy{
		{Type: autoscalingv2.PercentScalingPolicy, Value: 100, PeriodSeconds: 15},
	}}
	if hpa.Spec.Behavior != nil {
		up.override(hpa.Spec.Behavior.ScaleUp)
		down.override(hpa.Spec.Behavior.ScaleDown)
	}
	return up, down
}

func (r *rules) override(by *autoscalingv2.HPAScalingRules) {
	if by == nil {
		return
	}
	if by.StabilizationWindowSeconds != nil {
		r.stabilization = time.Duration(*by.StabilizationWindowSeconds) * time.Second
	}
	if by.SelectPolicy != nil {
		r.selectPolicy = *by.SelectPolicy
	}
	if len(by.Policies) > 0 {
		r.policies = by.Policies
	}
	if by.Tolerance != nil {
		r.tolerance = by.Tolerance.AsApproximateFloat64()
	}
}

// stabilize notes a proposal and returns what the windows make of it: the highest
// of the last time when going down, the lowest when going up.
func (m *memory) stabilize(current, proposal int, up, down rules, now time.Time) int {
	if len(m.proposals) == 0 {
		// Nothing is known of before: the size that is there was right till now.
		m.proposals = append(m.proposals, timed{current, now})
	}
	longest := max(up.stabilization, down.stabilization)
	kept := m.proposals[:0]
	for _, p := range m.proposals {
		if now.Sub(p.at) < longest {
			kept = append(kept, p)
		}
	}
	m.proposals = append(kept, timed{proposal, now})
	lowest, highest := proposal, proposal
	for _, p := range m.proposals {
		if now.Sub(p.at) < up.stabilization {
			lowest = min(lowest, p.n)
		}
		if now.Sub(p.at) < down.stabilization {
			highest = max(highest, p.n)
		}
	}
	switch {
	case current < lowest:
		return lowest
	case current > highest:
		return highest
	}
	return current
}

// upLimit is the largest size that the rate limits allow.
func (m *memory) upLimit(current int, r rules, now time.Time) int {
	if r.selectPolicy == autoscalingv2.DisabledPolicySelect {
		return current
	}
	limit := -1
	for _, p := range r.policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := current - sum(m.ups, period, now) + sum(m.downs, period, now)
		n := start + int(p.Value)
		if p.Type == autoscalingv2.PercentScalingPolicy {
			n = (start*(100+int(p.Value)) + 99) / 100 // rounded up
		}
		if limit < 0 || (n > limit) == (r.selectPolicy == autoscalingv2.MaxChangePolicySelect) {
			limit = n
		}
	}
	return max(limit, current)
}

// downLimit is the smallest size that the rate limits allow.
func (m *memory) downLimit(current int, r rules, now time.Time) int {
	if r.selectPolicy == autoscalingv2.DisabledPolicySelect {
		return current
	}
	limit := -1
	for _, p := range r.policies {
		period := time.Duration(p.PeriodSeconds) * time.Second
		start := current + sum(m.downs, period, now) - sum(m.ups, period, now)
		n := max(0, start-int(p.Value))
		if p.Type == autoscalingv2.PercentScalingPolicy {
			n = max(0, start*(100-int(p.Value))/100)
		}
		if limit < 0 || (n < limit) == (r.selectPolicy == autoscalingv2.MaxChangePolicySelect) {
			limit = n
		}
	}
	return min(max(limit, 0), current)
}

func sum(events []timed, period time.Duration, now time.Time) int {
	n := 0
	for _, e := range events {
		if now.Sub(e.at) < period {
			n += e.n
		}
	}
	return n
}

// scaled notes a change of the size. The longest period of a policy is half an
// hour.
func (m *memory) scaled(from, to int, now time.Time) {
	prune := func(events []timed) []timed {
		kept := events[:0]
		for _, e := range events {
			if now.Sub(e.at) < 30*time.Minute {
				kept = append(kept, e)
			}
		}
		return kept
	}
	m.ups, m.downs = prune(m.ups), prune(m.downs)
	if to > from {
		m.ups = append(m.ups, timed{to - from, now})
	} else {
		m.downs = append(m.downs, timed{from - to, now})
	}
}

// bound is why a size was limited: a reason and message of ScalingLimited.
type bound struct{ reason, message string }

var unbounded = bound{"DesiredWithinRange", "the desired count is within the acceptable range"}

// limit applies the rate limits and the bounds to a stabilized size.
func (m *memory) limit(current, want, least, most int, up, down rules, now time.Time) (int, bound) {
	why := unbounded
	switch {
	case want > current:
		if n := m.upLimit(current, up, now); want > n && n < most {
			want, why = n, bound{"ScaleUpLimit", "the desired replica count is increasing faster than the maximum scale rate"}
		}
	case want < current:
		if n := m.downLimit(current, down, now); want < n && n > least {
			want, why = n, bound{"ScaleDownLimit", "the desired replica count is decreasing faster than the maximum scale rate"}
		}
	}
	switch {
	case want > most:
		return most, bound{"TooManyReplicas", "the desired replica count is more than the maximum replica count"}
	case want < least:
		return least, bound{"TooFewReplicas", "the desired replica count is less than the minimum replica count"}
	}
	return want, why
}
