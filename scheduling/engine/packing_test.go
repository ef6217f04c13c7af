package engine_test

import (
	"fmt"
	"math/rand/v2"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/tripod-cluster/tripod/scheduling/cluster"
	"github.com/tripod-cluster/tripod/scheduling/engine"
	"github.com/tripod-cluster/tripod/scheduling/profile"
	. "github.com/tripod-cluster/tripod/scheduling/schedtest"
)

// TestPackingLeavesLittleInPieces: a cluster that is filled with pods of mixed
// sizes, which in sum ask for CPU and memory as the nodes have them, has little
// left that is of no use when not even small ones fit any more.
func TestPackingLeavesLittleInPieces(t *testing.T) {
	cfg, err := profile.Load([]byte(`
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
profiles:
- plugins:
    score:
      disabled: [{name: "*"}]
      enabled: [{name: Packing}]
`))
	if err != nil {
		t.Fatal(err)
	}
	cpus := []int{50, 50, 100, 100, 250, 250, 500, 1000, 2000, 4000} // thousandths
	var nodes []*corev1.Node
	for i := range 60 {
		n := Node(fmt.Sprint("n", i), "16", "64Gi")
		n.Status.Allocatable["pods"] = *resource.NewQuantity(250, resource.DecimalSI)
		nodes = append(nodes, n)
	}
	e := engine.New(Cluster(nodes), &Objects{})
	r := rand.New(rand.NewPCG(1, 1))
	misses, cpu := 0, 0
	for i := 0; misses < 3000; i++ {
		perCPU := 6 // GiB of memory for each
		if i%2 == 0 {
			cpu, perCPU = cpus[r.IntN(len(cpus))], 2 // and then one that evens it out: the nodes have 4
		}
		p := cluster.NewPod(Pod(fmt.Sprint("p", i), fmt.Sprint(cpu, "m"), fmt.Sprint(cpu*perCPU*1024/1000, "Mi")))
		if d := e.Decide(p, cfg.Profiles[0]); d.Node != nil {
			e.Assume(p, d.Node.Name)
		} else {
			misses++
		}
	}
	f := e.Fragmentation()
	t.Logf("fragmentation when full: cpu %.1f %%, memory %.1f %%", 100*f.CPU, 100*f.Memory)
	if f.CPU > 0.05 || f.Memory > 0.05 {
		t.Errorf("fragmentation %+v, want at most 5 %%", f)
	}
}
