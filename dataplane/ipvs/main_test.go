package ipvs

import (
	"testing"

	"github.com/tripod-cluster/tripod/dataplane/nettest"
)

func TestMain(m *testing.M) { nettest.Main(m) }
