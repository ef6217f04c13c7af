package apiserver

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	utilversion "k8s.io/apimachinery/pkg/util/version"
	apimachineryversion "k8s.io/apimachinery/pkg/version"
	"k8s.io/apiserver/pkg/storage/etcd3/metrics"
	"k8s.io/component-base/compatibility"

	"github.com/tripod-cluster/tripod/store"
)

// version tells, at /version, the release whose API is served: upstream takes
// it from variables that only a linker sets. What upstream's own decisions go
// by stays as it was built.
type version struct {
	compatibility.EffectiveVersion
	info apimachineryversion.Info
}

func newVersion(built compatibility.EffectiveVersion, release string) (version, error) {
	v, err := utilversion.ParseSemantic(release)
	if err != nil {
		return version{}, fmt.Errorf("version %q: %w", release, err)
	}
	info := *built.Info()
	info.GitVersion = release
	info.Major, info.Minor = strconv.Itoa(int(v.Major())), strconv.Itoa(int(v.Minor()))
	if strings.HasPrefix(info.GitCommit, "$Format") {
		info.GitCommit = ""
	}
	return version{EffectiveVersion: built, info: info}, nil
}

// Info is what /version answers.
func (v version) Info() *apimachineryversion.Info {
	i := v.info
	return &i
}

// storeMonitor gives the size of the store to upstream's metric
// apiserver_storage_size_bytes.
type storeMonitor struct{ store *store.Store }

func (m storeMonitor) Monitor(context.Context) (metrics.StorageMetrics, error) {
	return metrics.StorageMetrics{Size: m.store.Size()}, nil
}

func (storeMonitor) Close() error { return nil }
