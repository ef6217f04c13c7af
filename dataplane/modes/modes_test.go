package modes

import (
	"errors"
	"strings"
	"testing"

	"github.com/tripod-cluster/tripod/dataplane"
	"github.com/tripod-cluster/tripod/dataplane/ipvs"
	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestOpen(t *testing.T) {
	b, err := Open(Options{Mode: IPTables})
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	if b.Name() != IPTables {
		t.Errorf("mode %s opened %s", IPTables, b.Name())
	}
	if _, err := Open(Options{Mode: "userspace"}); err == nil || !strings.Contains(err.Error(), IPTables) {
		t.Errorf("an unknown mode gave %v", err)
	}
	v, err := Open(Options{Mode: IPVS})
	switch {
	case err == nil:
		if v.Name() != IPVS {
			t.Errorf("mode %s opened %s", IPVS, v.Name())
		}
		v.Close()
	case ipvs.Present() || !errors.Is(err, dataplane.ErrUnsupported):
		t.Errorf("mode %s gave %v", IPVS, err)
	}
}

func TestOthersAreTheModesThatCouldHaveLeftSomething(t *testing.T) {
	got, err := Others(Options{Mode: IPVS})
	if err != nil || len(got) != 1 || got[0].Name() != IPTables {
		t.Fatalf("beside %s: %v, %v", IPVS, got, err)
	}
	got[0].Close()
	want := 0
	if ipvs.Present() {
		want = 1
	}
	got, err = Others(Options{Mode: IPTables})
	if err != nil || len(got) != want {
		t.Errorf("beside %s: %d backends, %v; want %d", IPTables, len(got), err, want)
	}
	for _, b := range got {
		b.Close()
	}
}
