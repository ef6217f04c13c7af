package attachdetach

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func nodeWith(isReady bool, inUse ...corev1.UniqueVolumeName) *corev1.Node {
	status := corev1.ConditionFalse
	if isReady {
		status = corev1.ConditionTrue
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n1", Annotations: map[string]string{managed: "true"}},
		Status: corev1.NodeStatus{
			VolumesInUse: inUse,
			Conditions:   []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}},
		},
	}
}

func TestDecide(t *testing.T) {
	now := time.Now()
	v := attachable{persistent: "v", driver: "csi.example.com", handle: "h"}
	shared := v
	shared.several = true
	name := attachmentName("h", "csi.example.com", "n1")
	va := func(attached bool) *storagev1.VolumeAttachment {
		return &storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: storagev1.VolumeAttachmentStatus{Attached: attached}}
	}
	leaving := va(true)
	leaving.DeletionTimestamp = &metav1.Time{Time: now}
	have := func(va *storagev1.VolumeAttachment, idle time.Duration) []held {
		return []held{{va: va, unique: v.unique(), since: now.Add(-idle)}}
	}
	out := nodeWith(false, v.unique())
	out.Spec.Taints = []corev1.Taint{{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute}}
	for what, x := range map[string]struct {
		node      *corev1.Node
		want      *attachable
		have      []held
		elsewhere string
		expect    string
	}{
		"needed":                     {nodeWith(true), &v, nil, "", "attach"},
		"needed, attached elsewhere": {nodeWith(true), &v, nil, "n2", "blocked by n2"},
		"needed, for several, attached elsewhere": {nodeWith(true), &shared, nil, "n2", "attach"},
		"needed, under way":                       {nodeWith(true), &v, have(va(false), 0), "", ""},
		"needed, attached":                        {nodeWith(true), &v, have(va(true), 0), "", "attached"},
		"needed, but on its way out":              {nodeWith(true), &v, have(leaving, 0), "", ""},
		"unneeded":                                {nodeWith(true), nil, have(va(true), 0), "", "detach"},
		"unneeded, mounted":                       {nodeWith(true, v.unique()), nil, have(va(true), time.Hour), "", "waiting attached"},
		"unneeded, mounted, node silent":          {nodeWith(false, v.unique()), nil, have(va(true), time.Minute), "", "waiting attached again 5m0s"},
		"unneeded, mounted, node silent for long": {nodeWith(false, v.unique()), nil, have(va(true), maxWaitForUnmount), "", "detach"},
		"unneeded, mounted, node out of service":  {out, nil, have(va(true), 0), "", "detach"},
		"the node is gone":                        {nil, nil, have(va(true), 0), "", "waiting attached again 6m0s"},
		"the node is gone for long":               {nil, nil, have(va(true), maxWaitForUnmount), "", "detach"},
	} {
		want := map[string]attachable{}
		if x.want != nil {
			want[name] = *x.want
		}
		p := decide(x.node, want, x.have, func(attachable) string { return x.elsewhere }, now)
		var got []string
		if len(p.attach) > 0 {
			got = append(got, "attach")
		}
		for _, at := range slices.Sorted(maps.Keys(p.blocked)) {
			node, _, _ := strings.Cut(at, "/")
			got = append(got, "blocked by "+node)
		}
		if len(p.detach) > 0 {
			got = append(got, "detach")
		}
		if len(p.waiting) > 0 {
			got = append(got, "waiting")
		}
		if len(p.attached) > 0 {
			got = append(got, "attached")
		}
		if p.again > 0 {
			got = append(got, fmt.Sprintf("again %s", p.again))
		}
		if s := strings.Join(got, " "); s != x.expect {
			t.Errorf("%s: %q, want %q", what, s, x.expect)
		}
	}
}
