package storage

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/version"
	clientv3 "go.etcd.io/etcd/client/v3"
	kstorage "k8s.io/apiserver/pkg/storage"
	"k8s.io/apiserver/pkg/storage/feature"
)

// declareFeatures tells upstream, for the whole process, that consistent reads
// from the watch cache are safe here. Upstream finds out in the background by
// asking each endpoint's version, and a client without endpoints would leave
// the answer at no.
var declareFeatures = sync.OnceFunc(func() {
	c := feature.DefaultFeatureSupportChecker
	c.CheckClient(context.Background(), inProcess{}, kstorage.RequestWatchProgress)
	for range 1000 {
		if c.Supports(kstorage.RequestWatchProgress) {
			return
		}
		time.Sleep(time.Millisecond)
	}
})

// inProcess is the endpoint of this process, for that question only.
type inProcess struct{}

func (inProcess) Endpoints() []string { return []string{"in-process"} }

func (inProcess) Status(context.Context, string) (*clientv3.StatusResponse, error) {
	return (*clientv3.StatusResponse)(&pb.StatusResponse{Version: version.Version}), nil
}
