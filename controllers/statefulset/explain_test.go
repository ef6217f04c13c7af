package statefulset

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

func TestWaits(t *testing.T) {
	for name, x := range map[string]struct {
		change func(*appsv1.StatefulSet)
		pods   string
		want   string // words of the only wait, "" for none
		by     string
	}{
		"all is well":              {nil, "0 1 2", "", ""},
		"a pod blocks the order":   {nil, "0 1:unready", "pods are made in order, and web-1 is not available", "controller statefulset"},
		"no order":                 {parallel, "0:unready 1", "1 pods to be made", "controller statefulset"},
		"rolls":                    {nil, "0:old 1:old 2", "2 pods to be replaced by revision new", "controller statefulset"},
		"rolls, a pod is not well": {nil, "0:old 1 2:unready", "web-2 is not available first", "controller statefulset"},
		"held by the partition":    {partition(2), "0:old 1:old 2", "below the partition, 2", "you"},
		"replaced by hand":         {onDelete, "0:old 1 2", "to be deleted by hand", "you"},
		"one too many":             {nil, "0 1 2 3", "1 pods to go", "controller statefulset"},
	} {
		set := newSet(3)
		set.Status.ObservedGeneration = set.Generation
		if x.change != nil {
			x.change(set)
		}
		waits := observe(set, "old", "new", parsePods(t, x.pods), now).waits()
		if x.want == "" {
			if len(waits) > 0 {
				t.Errorf("%s: %v", name, waits)
			}
			continue
		}
		if len(waits) != 1 || !strings.Contains(waits[0].For, x.want) || waits[0].By != x.by {
			t.Errorf("%s: %v", name, waits)
		}
	}
}
