// Package standalone runs the scheduler as a process of its own, beside the one
// of the control plane: for pods that name it, as one of several that elect one
// by a Lease.
package standalone

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/tripod-cluster/tripod/scheduling"
	"github.com/tripod-cluster/tripod/scheduling/profile"
)

// Options of a run.
type Options struct {
	// Kubeconfig is the path of the file that says how to reach the API.
	Kubeconfig string
	// Profiles say how to place pods, and by clientConnection and leaderElection how
	// to behave as a process.
	Profiles *profile.Config
	Log      *slog.Logger
}

// What holds where the configuration says nothing: kube-scheduler's figures, but
// for the client's rates, which its API server bounds.
const (
	leaseNamespace = metav1.NamespaceSystem
	leaseName      = "tripod-scheduler"
	leaseDuration  = 15 * time.Second
	renewDeadline  = 10 * time.Second
	retryPeriod    = 2 * time.Second
	clientQPS      = 1000
	clientBurst    = 2000
)

// Run places pods until ctx ends, while it holds the Lease. It returns an error
// when it has lost that: the process ends then, and is started again.
func Run(ctx context.Context, o Options) error {
	src := &o.Profiles.Source
	conf, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return fmt.Errorf("read kubeconfig %s: %w", o.Kubeconfig, err)
	}
	conf.QPS, conf.Burst, conf.UserAgent = clientQPS, clientBurst, "controld-scheduler"
	if c := src.ClientConnection; c.QPS != 0 {
		conf.QPS, conf.Burst = c.QPS, int(max(c.Burst, 1))
	}
	client, err := kubernetes.NewForConfig(conf)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	run := func(ctx context.Context) error {
		factory := informers.NewSharedInformerFactory(client, 0)
		s, err := scheduling.New(scheduling.Config{Client: client, Informers: factory, Profiles: o.Profiles, Log: o.Log})
		if err != nil {
			return err
		}
		defer factory.Shutdown()
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		return s.Run(ctx)
	}
	le := src.LeaderElection
	if le.LeaderElect != nil && !*le.LeaderElect {
		return run(ctx)
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("no host name: %w", err)
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: or(le.ResourceNamespace, leaseNamespace), Name: or(le.ResourceName, leaseName)},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}
	o.Log.Info("waits for the lease", "lease", lock.Describe(), "as", lock.Identity())
	ended := make(chan error, 1)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, Name: leaseName, ReleaseOnCancel: true,
		LeaseDuration: or(le.LeaseDuration.Duration, leaseDuration), RenewDeadline: or(le.RenewDeadline.Duration, renewDeadline), RetryPeriod: or(le.RetryPeriod.Duration, retryPeriod),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				ended <- run(leading)
				cancel()
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	outer := ctx
	elector.Run(ctx)
	select {
	case err := <-ended:
		if err == nil && outer.Err() == nil {
			err = errors.New("the lease was lost: another scheduler leads, or the API was away for too long")
		}
		return err
	default:
		return nil // it never led
	}
}

func or[T comparable](v, byDefault T) T {
	var zero T
	if v == zero {
		return byDefault
	}
	return v
}
