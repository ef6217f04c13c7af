package horizontalpodautoscaler

import (
	"testing"
	"time"

	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestStabilization(t *testing.T) {
	up, down := behavior(&autoscalingv2.HorizontalPodAutoscaler{})
	m := &memory{}
	for _, step := range []struct{ minute, current, proposal, want int }{
		{0, 5, 2, 5},    // right after a start nothing goes down
		{4, 5, 2, 5},    // nor within the window
		{6, 5, 2, 2},    // after it, it does
		{7, 2, 8, 8},    // up at once
		{8, 8, 3, 8},    // a flap does not bring it down
		{9, 8, 4, 8},    //
		{13, 8, 3, 4},   // the highest of the last five minutes
		{20, 4, 3, 3},   //
		{21, 3, 10, 10}, //
	} {
		if got := m.stabilize(step.current, step.proposal, up, down, now.Add(time.Duration(step.minute)*time.Minute)); got != step.want {
			t.Errorf("minute %d: %d of %d, want %d", step.minute, got, step.proposal, step.want)
		}
	}
	// A window for going up takes the lowest.
	up.stabilization = time.Minute
	m = &memory{}
	for _, step := range []struct{ second, proposal, want int }{{0, 9, 5}, {30, 7, 5}, {61, 8, 7}} {
		if got := m.stabilize(5, step.proposal, up, down, now.Add(time.Duration(step.second)*time.Second)); got != step.want {
			t.Errorf("second %d: %d, want %d", step.second, got, step.want)
		}
	}
}

func TestRateLimits(t *testing.T) {
	policy := func(t autoscalingv2.HPAScalingPolicyType, value int32) autoscalingv2.HPAScalingPolicy {
		return autoscalingv2.HPAScalingPolicy{Type: t, Value: value, PeriodSeconds: 60}
	}
	const pods, percent = autoscalingv2.PodsScalingPolicy, autoscalingv2.PercentScalingPolicy
	both := []autoscalingv2.HPAScalingPolicy{policy(pods, 4), policy(percent, 10)}
	for _, c := range []struct {
		name             string
		sel              autoscalingv2.ScalingPolicySelect
		ups, downs       int // half a minute ago
		current, up, low int
	}{
		{"max", autoscalingv2.MaxChangePolicySelect, 0, 0, 10, 14, 6},
		{"max, by percent", autoscalingv2.MaxChangePolicySelect, 0, 0, 100, 110, 90},
		{"min", autoscalingv2.MinChangePolicySelect, 0, 0, 10, 11, 9},
		{"disabled", autoscalingv2.DisabledPolicySelect, 0, 0, 10, 10, 10},
		{"part of it done", autoscalingv2.MaxChangePolicySelect, 3, 0, 13, 14, 6},
		{"all of it done", autoscalingv2.MaxChangePolicySelect, 4, 0, 14, 14, 6},
		{"down, part of it done", autoscalingv2.MaxChangePolicySelect, 0, 3, 7, 14, 6},
	} {
		m := &memory{}
		if c.ups > 0 {
			m.scaled(c.current-c.ups, c.current, now.Add(-30*time.Second))
		}
		if c.downs > 0 {
			m.scaled(c.current+c.downs, c.current, now.Add(-30*time.Second))
		}
		r := rules{selectPolicy: c.sel, policies: both}
		if up, low := m.upLimit(c.current, r, now), m.downLimit(c.current, r, now); up != c.up || low != c.low {
			t.Errorf("%s: from %d to %d, want from %d to %d", c.name, low, up, c.low, c.up)
		}
	}
}

func TestBounds(t *testing.T) {
	up, down := behavior(&autoscalingv2.HorizontalPodAutoscaler{})
	for _, c := range []struct {
		current, want, got int
		reason             string
	}{
		{5, 6, 6, "DesiredWithinRange"},
		{5, 100, 10, "ScaleUpLimit"}, // doubled at most
		{15, 100, 20, "TooManyReplicas"},
		{5, 0, 2, "TooFewReplicas"},
		{5, 5, 5, "DesiredWithinRange"},
	} {
		if got, why := (&memory{}).limit(c.current, c.want, 2, 20, up, down, now); got != c.got || why.reason != c.reason {
			t.Errorf("from %d to %d: %d, %s; want %d, %s", c.current, c.want, got, why.reason, c.got, c.reason)
		}
	}
}

func TestBehaviorOverridesDefaults(t *testing.T) {
	seconds, disabled, tol := int32(7), autoscalingv2.DisabledPolicySelect, resource.MustParse("0.05")
	up, down := behavior(&autoscalingv2.HorizontalPodAutoscaler{Spec: autoscalingv2.HorizontalPodAutoscalerSpec{Behavior: &autoscalingv2.HorizontalPodAutoscalerBehavior{
		ScaleUp:   &autoscalingv2.HPAScalingRules{Tolerance: &tol},
		ScaleDown: &autoscalingv2.HPAScalingRules{StabilizationWindowSeconds: &seconds, SelectPolicy: &disabled},
	}}})
	if up.tolerance != 0.05 || len(up.policies) != 2 || down.stabilization != 7*time.Second || down.selectPolicy != disabled || down.tolerance != 0.1 {
		t.Errorf("up %+v, down %+v", up, down)
	}
}
