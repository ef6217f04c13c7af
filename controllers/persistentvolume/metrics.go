package persistentvolume

import (
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// Collector counts volumes and claims under the names of Kubernetes' own
// controller manager. It reads the caches when it is scraped.
type Collector struct {
	volumes corelisters.PersistentVolumeLister
	claims  corelisters.PersistentVolumeClaimLister
}

// NewCollector makes a collector over the shared caches.
func NewCollector(f informers.SharedInformerFactory) *Collector {
	core := f.Core().V1()
	return &Collector{core.PersistentVolumes().Lister(), core.PersistentVolumeClaims().Lister()}
}

func count(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("pv_collector_"+name, help, labels, nil)
}

var (
	totalVolumes   = count("total_pv_count", "Volumes.", "plugin_name", "volume_mode")
	boundVolumes   = count("bound_pv_count", "Volumes that are bound.", "storage_class")
	unboundVolumes = count("unbound_pv_count", "Volumes that are not bound.", "storage_class")
	boundClaims    = count("bound_pvc_count", "Claims that are bound.", "namespace", "storage_class", "volume_attributes_class")
	unboundClaims  = count("unbound_pvc_count", "Claims that are not bound.", "namespace", "storage_class", "volume_attributes_class")
)

// Describe sends the metrics that there are.
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{totalVolumes, boundVolumes, unboundVolumes, boundClaims, unboundClaims} {
		ch <- d
	}
}

type sample struct {
	desc   *prometheus.Desc
	labels [3]string
}

// Collect counts.
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	counts := map[sample]int{}
	volumes, err := c.volumes.List(everything)
	if err != nil {
		return
	}
	for _, v := range volumes {
		counts[sample{totalVolumes, [3]string{plugin(v), string(ptr.Deref(v.Spec.VolumeMode, corev1.PersistentVolumeFilesystem))}}]++
		desc := unboundVolumes
		if v.Status.Phase == corev1.VolumeBound {
			desc = boundVolumes
		}
		counts[sample{desc, [3]string{v.Spec.StorageClassName}}]++
	}
	claims, err := c.claims.List(everything)
	if err != nil {
		return
	}
	for _, claim := range claims {
		desc := unboundClaims
		if claim.Status.Phase == corev1.ClaimBound {
			desc = boundClaims
		}
		counts[sample{desc, [3]string{claim.Namespace, volume.GetPersistentVolumeClaimClass(claim), ptr.Deref(claim.Spec.VolumeAttributesClassName, "")}}]++
	}
	for s, n := range counts {
		labels := s.labels[:]
		switch s.desc {
		case totalVolumes:
			labels = labels[:2]
		case boundVolumes, unboundVolumes:
			labels = labels[:1]
		}
		ch <- prometheus.MustNewConstMetric(s.desc, prometheus.GaugeValue, float64(n), labels...)
	}
}

// plugin names the kind of a volume as Kubernetes' own volume plugins do.
func plugin(v *corev1.PersistentVolume) string {
	switch s := v.Spec.PersistentVolumeSource; {
	case s.CSI != nil:
		return "kubernetes.io/csi:" + s.CSI.Driver
	case s.HostPath != nil:
		return "kubernetes.io/host-path"
	case s.Local != nil:
		return "kubernetes.io/local-volume"
	case s.NFS != nil:
		return "kubernetes.io/nfs"
	case s.ISCSI != nil:
		return "kubernetes.io/iscsi"
	case s.FC != nil:
		return "kubernetes.io/fc"
	}
	return "N/A"
}
