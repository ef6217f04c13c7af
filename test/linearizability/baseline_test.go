package linearizability

import (
	"os"
	"testing"
	"time"

	"go.uber.org/zap"

	"go.etcd.io/etcd/tests/v3/robustness/model"
	"go.etcd.io/etcd/tests/v3/robustness/report"
)

func TestBaseline(t *testing.T) {
	bin := os.Getenv("ETCD")
	p := plan{seed: 1, binary: bin, load: loads[1], faults: faults, count: 5, rest: time.Second, dir: t.TempDir() + "/h",
		extra:  []string{"--snapshot-count=100", "--heartbeat-interval=100", "--election-timeout=1000", "--log-level=warn", "--watch-progress-notify-interval=100ms"},
		export: func(dirs []string) ([]model.EtcdRequest, error) { return report.PersistedRequests(zap.NewNop(), dirs) }}
	v, err := p.run(t.Context())
	t.Logf("%+v %v", v, err)
	if v.violation != nil {
		b, _ := os.ReadFile(v.dir + "/test.log")
		t.Errorf("%s", b)
	}
}
