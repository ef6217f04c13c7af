package engine_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/profile"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

// workload is a kind of pods. perSecond is what kube-scheduler's own tests ask of
// it for such pods at 5000 nodes (scheduler_perf of 1.37), API server included; 0
// where they ask nothing.
type workload struct {
	name      string
	perSecond float64
	full      bool // the nodes are full of less important pods
	pod       func(i int) *corev1.Pod
}

func replica(i int, with ...func(*corev1.Pod)) *corev1.Pod {
	set := fmt.Sprint("rs", i/1000)
	return Pod(fmt.Sprint("p", i), "100m", "256Mi", append([]func(*corev1.Pod){OwnedBy(set), Labels(map[string]string{"app": set})}, with...)...)
}

func workloads() []workload {
	sizes := [][2]string{{"50m", "64Mi"}, {"100m", "128Mi"}, {"250m", "512Mi"}, {"500m", "1Gi"}, {"1", "4Gi"}, {"2", "2Gi"}}
	return []workload{
		{name: "plain", perSecond: 680, pod: func(i int) *corev1.Pod { return replica(i) }},
		{name: "spread", perSecond: 460, pod: func(i int) *corev1.Pod {
			return replica(i, spread(5, corev1.LabelTopologyZone, fmt.Sprint("rs", i/1000)))
		}},
		{name: "spread-hosts", pod: func(i int) *corev1.Pod {
			return replica(i, spread(1, corev1.LabelHostname, fmt.Sprint("rs", i/1000)))
		}},
		{name: "anti-affinity", perSecond: 180, pod: func(i int) *corev1.Pod { return replica(i, antiAffine(fmt.Sprint("rs", i/1000))) }},
		{name: "affinity", perSecond: 70, pod: func(i int) *corev1.Pod { return replica(i, affine(fmt.Sprint("rs", i/1000))) }},
		{name: "preferred", pod: func(i int) *corev1.Pod {
			return replica(i, func(p *corev1.Pod) {
				sel := &metav1.LabelSelector{MatchLabels: p.Labels}
				p.Spec.Affinity = &corev1.Affinity{
					NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 10,
						Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelTopologyZone, Operator: corev1.NodeSelectorOpIn, Values: []string{"z1", "z2"}}}}}}},
					PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 50,
						PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelTopologyZone, LabelSelector: sel}}}},
					PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{Weight: 50,
						PodAffinityTerm: corev1.PodAffinityTerm{TopologyKey: corev1.LabelHostname, LabelSelector: sel}}}},
				}
			})
		}},
		{name: "many-shapes", pod: func(i int) *corev1.Pod {
			return Pod(fmt.Sprint("p", i), fmt.Sprint(10+i, "m"), fmt.Sprint(64+i%700, "Mi"))
		}},
		{name: "mixed-sizes", pod: func(i int) *corev1.Pod {
			s := sizes[(i*7)%len(sizes)]
			return Pod(fmt.Sprint("p", i), s[0], s[1], OwnedBy(fmt.Sprint("rs", i%40)), Labels(map[string]string{"app": fmt.Sprint(i % 40)}))
		}},
		{name: "preemption", perSecond: 570, full: true, pod: func(i int) *corev1.Pod {
			prio := int32(100)
			return Pod(fmt.Sprint("p", i), "9", "1Gi", OwnedBy("high"), func(p *corev1.Pod) { p.Spec.Priority = &prio })
		}},
	}
}

// BenchmarkEngine places pods on nodes that are as in kube-scheduler's own
// benchmarks, decision and bookkeeping alone. It reports pods per second, and the
// median and the 99th percentile of one decision in microseconds.
func BenchmarkEngine(b *testing.B) {
	for _, w := range workloads() {
		for _, size := range []int{100, 1000, 5000} {
			pods := 2 * size
			b.Run(fmt.Sprintf("%s/%dnodes", w.name, size), func(b *testing.B) {
				var took []time.Duration
				for b.Loop() {
					b.StopTimer()
					e, prof := full(size, w.full)
					queue := make([]*corev1.Pod, pods)
					for i := range queue {
						queue[i] = w.pod(i)
					}
					b.StartTimer()
					for _, raw := range queue {
						at := time.Now()
						p := cluster.NewPod(raw)
						d := e.Decide(p, prof)
						switch {
						case d.Node != nil:
							e.Assume(p, d.Node.Name)
						case w.full:
							if v := e.Preempt(p, prof, d.Refusal); v != nil {
								e.Nominate(p, v.Node.Name)
								for _, q := range v.Pods {
									e.RemovePod(q.UID)
								}
								e.Nominate(p, "")
								e.Assume(p, v.Node.Name)
							}
						case w.name != "anti-affinity" && w.name != "spread-hosts":
							b.Fatal(d.Refusal)
						}
						took = append(took, time.Since(at))
					}
				}
				var sum time.Duration
				for _, t := range took {
					sum += t
				}
				slices.Sort(took)
				perSecond := float64(len(took)) / sum.Seconds()
				b.ReportMetric(perSecond, "pods/s")
				b.ReportMetric(float64(took[len(took)/2].Nanoseconds())/1000, "p50-us")
				b.ReportMetric(float64(took[len(took)*99/100].Nanoseconds())/1000, "p99-us")
				b.ReportMetric(float64(took[len(took)-1].Nanoseconds())/1000, "worst-us")
				if w.perSecond > 0 && size == 5000 {
					b.ReportMetric(perSecond/w.perSecond, "x-upstream-threshold")
				}
			})
		}
	}
}

// full makes a cluster of nodes in ten zones; with low, each has no CPU left for
// pods of priority 0.
func full(size int, low bool) (*engine.Engine, *engine.Profile) {
	var nodes []*corev1.Node
	var pods []*corev1.Pod
	zero := int32(0)
	for i := range size {
		n := Node(fmt.Sprint("n", i), "32", "128Gi", label(corev1.LabelTopologyZone, fmt.Sprint("z", i%10)))
		nodes = append(nodes, n)
		if low {
			for j := range 4 {
				pods = append(pods, Pod(fmt.Sprintf("low%d-%d", i, j), "8", "1Gi", On(n.Name), func(p *corev1.Pod) { p.Spec.Priority = &zero }))
			}
		}
	}
	o := &Objects{SelectorOf: func(p *corev1.Pod) labels.Selector {
		if len(p.Labels) == 0 {
			return nil
		}
		return labels.SelectorFromSet(p.Labels)
	}}
	return engine.New(Cluster(nodes, pods...), o), profile.Default().Profiles[0]
}
