//go:build e2e

package etcdsuite

// etcd's tests are built from their module, not imported. What they import is named here, so that go.mod and
// go.sum keep what it takes when they are tidied.
import (
	_ "go.etcd.io/etcd/tests/v3/common"
	_ "go.etcd.io/etcd/tests/v3/framework/e2e"
	_ "go.etcd.io/etcd/tests/v3/framework/integration"
	_ "go.etcd.io/etcd/tests/v3/framework/testutils"
)
