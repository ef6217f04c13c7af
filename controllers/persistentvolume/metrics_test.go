package persistentvolume

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"github.com/tripod-cluster/tripod/controllers/runtime/runtimetest"
)

func TestVolumesAndClaimsAreCounted(t *testing.T) {
	c := runtimetest.New(t)
	core := c.Informers.Core().V1()
	bound := newVolume("b", "1Gi", func(v *corev1.PersistentVolume) { v.Status.Phase = corev1.VolumeBound })
	for _, v := range []*corev1.PersistentVolume{newVolume("a", "1Gi"), bound} {
		if err := core.PersistentVolumes().Informer().GetStore().Add(v); err != nil {
			t.Fatal(err)
		}
	}
	if err := core.PersistentVolumeClaims().Informer().GetStore().Add(newClaim("c", ofStorageClass("fast"))); err != nil {
		t.Fatal(err)
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(NewCollector(c.Informers))
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			got[f.GetName()] += m.GetGauge().GetValue()
		}
	}
	for name, want := range map[string]float64{"pv_collector_total_pv_count": 2, "pv_collector_bound_pv_count": 1, "pv_collector_unbound_pv_count": 1, "pv_collector_unbound_pvc_count": 1, "pv_collector_bound_pvc_count": 0} {
		if got[name] != want {
			t.Errorf("%s is %v, want %v", name, got[name], want)
		}
	}
}
