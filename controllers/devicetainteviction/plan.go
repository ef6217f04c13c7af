package devicetainteviction

import (
	"cmp"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
)

// device names a device in the cluster.
type device struct{ driver, pool, name string }

// taints returns the taints of a device: its own, from the newest generation of
// its pool, and those of the rules that select it.
func taints(d device, slices []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule) (out []resourcev1.DeviceTaint) {
	newest := int64(-1)
	for _, s := range slices {
		if s.Spec.Driver == d.driver && s.Spec.Pool.Name == d.pool {
			newest = max(newest, s.Spec.Pool.Generation)
		}
	}
	for _, s := range slices {
		if s.Spec.Driver != d.driver || s.Spec.Pool.Name != d.pool || s.Spec.Pool.Generation != newest {
			continue
		}
		for i := range s.Spec.Devices {
			if s.Spec.Devices[i].Name == d.name {
				out = append(out, s.Spec.Devices[i].Taints...)
			}
		}
	}
	for _, r := range rules {
		if selects(r, d) {
			out = append(out, r.Spec.Taint)
		}
	}
	return out
}

// selects reports whether the rule is for the device. A rule without a selector
// is for none, one with an empty selector for all.
func selects(r *resourcev1.DeviceTaintRule, d device) bool {
	s := r.Spec.DeviceSelector
	return s != nil && (s.Driver == nil || *s.Driver == d.driver) && (s.Pool == nil || *s.Pool == d.pool) && (s.Device == nil || *s.Device == d.name)
}

// evictAt returns when a taint evicts those who have the device with these
// tolerations, or false for never. now is taken for a taint without a time.
func evictAt(t resourcev1.DeviceTaint, tolerations []resourcev1.DeviceToleration, now time.Time) (time.Time, bool) {
	added := now
	if t.TimeAdded != nil {
		added = t.TimeAdded.Time
	}
	if t.Effect != resourcev1.DeviceTaintEffectNoExecute {
		return time.Time{}, false
	}
	tolerated, forever := false, true
	var least int64
	for i := range tolerations {
		o := &tolerations[i]
		if !tolerates(o, &t) {
			continue
		}
		if o.TolerationSeconds != nil {
			if s := max(0, *o.TolerationSeconds); forever || s < least {
				least = s
			}
			forever = false
		}
		tolerated = true
	}
	switch {
	case !tolerated:
		return added, true
	case forever:
		return time.Time{}, false
	}
	return added.Add(time.Duration(least) * time.Second), true
}

func tolerates(o *resourcev1.DeviceToleration, t *resourcev1.DeviceTaint) bool {
	if o.Effect != "" && o.Effect != t.Effect || o.Key != "" && o.Key != t.Key {
		return false
	}
	if cmp.Or(o.Operator, resourcev1.DeviceTolerationOpEqual) == resourcev1.DeviceTolerationOpExists {
		return true
	}
	return o.Key != "" && o.Value == t.Value
}

// verdict is when the users of a claim are to be evicted.
type verdict struct {
	at    time.Time
	evict bool
}

// judge looks at all devices of a claim.
func judge(claim *resourcev1.ResourceClaim, slices []*resourcev1.ResourceSlice, rules []*resourcev1.DeviceTaintRule, now time.Time) (v verdict) {
	if claim.Status.Allocation == nil {
		return v
	}
	for _, r := range claim.Status.Allocation.Devices.Results {
		for _, t := range taints(device{r.Driver, r.Pool, r.Device}, slices, rules) {
			if at, ok := evictAt(t, r.Tolerations, now); ok && (!v.evict || at.Before(v.at)) {
				v = verdict{at, true}
			}
		}
	}
	return v
}
