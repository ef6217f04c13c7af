package devicetainteviction

import (
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestJudge(t *testing.T) {
	now := time.Now()
	added := metav1.NewTime(now.Add(-time.Minute))
	taint := func(effect resourcev1.DeviceTaintEffect) resourcev1.DeviceTaint {
		return resourcev1.DeviceTaint{Key: "broken", Value: "yes", Effect: effect, TimeAdded: &added}
	}
	slice := func(generation int64, taints ...resourcev1.DeviceTaint) *resourcev1.ResourceSlice {
		return &resourcev1.ResourceSlice{Spec: resourcev1.ResourceSliceSpec{
			Driver: "d", Pool: resourcev1.ResourcePool{Name: "p", Generation: generation}, Devices: []resourcev1.Device{{Name: "gpu0", Taints: taints}},
		}}
	}
	driver, other := "d", "x"
	rule := func(of *string) *resourcev1.DeviceTaintRule {
		return &resourcev1.DeviceTaintRule{Spec: resourcev1.DeviceTaintRuleSpec{DeviceSelector: &resourcev1.DeviceTaintSelector{Driver: of}, Taint: taint("NoExecute")}}
	}
	seconds := func(n int64) *int64 { return &n }
	for name, x := range map[string]struct {
		slices      []*resourcev1.ResourceSlice
		rules       []*resourcev1.DeviceTaintRule
		tolerations []resourcev1.DeviceToleration
		evict       bool
		in          time.Duration
	}{
		"no taint":                     {[]*resourcev1.ResourceSlice{slice(1)}, nil, nil, false, 0},
		"a taint of the driver":        {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil, nil, true, -time.Minute},
		"another effect":               {[]*resourcev1.ResourceSlice{slice(1, taint("NoSchedule"))}, nil, nil, false, 0},
		"a taint of an old generation": {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute")), slice(2)}, nil, nil, false, 0},
		"a taint by a rule":            {nil, []*resourcev1.DeviceTaintRule{rule(&driver)}, nil, true, -time.Minute},
		"a rule for all":               {nil, []*resourcev1.DeviceTaintRule{rule(nil)}, nil, true, -time.Minute},
		"a rule for others":            {nil, []*resourcev1.DeviceTaintRule{rule(&other)}, nil, false, 0},
		"tolerated":                    {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil, []resourcev1.DeviceToleration{{Key: "broken", Operator: "Exists"}}, false, 0},
		"tolerated by its value":       {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil, []resourcev1.DeviceToleration{{Key: "broken", Value: "yes", Effect: "NoExecute"}}, false, 0},
		"another value tolerated":      {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil, []resourcev1.DeviceToleration{{Key: "broken", Value: "no"}}, true, -time.Minute},
		"tolerated for a while":        {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil, []resourcev1.DeviceToleration{{Operator: "Exists", TolerationSeconds: seconds(300)}}, true, 4 * time.Minute},
		"the shortest counts": {[]*resourcev1.ResourceSlice{slice(1, taint("NoExecute"))}, nil,
			[]resourcev1.DeviceToleration{{Operator: "Exists"}, {Operator: "Exists", TolerationSeconds: seconds(300)}, {Operator: "Exists", TolerationSeconds: seconds(60)}}, true, 0},
	} {
		claim := &resourcev1.ResourceClaim{Status: resourcev1.ResourceClaimStatus{Allocation: &resourcev1.AllocationResult{
			Devices: resourcev1.DeviceAllocationResult{Results: []resourcev1.DeviceRequestAllocationResult{{Driver: "d", Pool: "p", Device: "gpu0", Tolerations: x.tolerations}}},
		}}}
		v := judge(claim, x.slices, x.rules, now)
		if v.evict != x.evict || v.evict && !v.at.Equal(now.Add(x.in).Truncate(time.Nanosecond)) && v.at.Sub(now.Add(x.in)).Abs() > time.Second {
			t.Errorf("%s: evict %v in %s, want %v in %s", name, v.evict, v.at.Sub(now), x.evict, x.in)
		}
	}
}
