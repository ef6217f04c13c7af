package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// options are the flags of etcd that mean something here.
type options struct {
	name, dataDir                    string
	listenClient, advertiseClient    string
	listenHTTP, listenMetrics        string
	listenPeer, advertisePeer        string
	initialCluster, state, token     string
	certFile, keyFile, caFile, crl   string
	cipherSuites                     string
	tlsMin, tlsMax                   string
	clientCertAuth, autoTLS          bool
	snapshotCount                    uint64
	quota                            int64
	maxRequestBytes, maxTxnOps       uint
	maxLearners                      int
	maxStreams                       uint
	election                         uint // milliseconds
	strictReconfig, forceNew, pprof  bool
	progressInterval                 string
	compactionMode, compactionRetain string
	authToken                        string
	featureGates                     string
	authTokenTTL, bcryptCost         uint
	logLevel                         string
	logOutputs                       string
	version                          bool

	ignored []string // flags that were set and mean nothing here
}

// Flags of etcd that are accepted and mean nothing here: what they tune does not exist, or is not on a
// client's side.
var (
	ignoredBools = strings.Fields(`enable-grpc-gateway discovery-insecure-skip-tls-verify discovery-insecure-transport enable-distributed-tracing
		enable-log-rotation initial-election-tick-advance memory-mlock peer-auto-tls peer-client-cert-auth
		peer-skip-client-san-verification pre-vote socket-reuse-address socket-reuse-port unsafe-no-fsync`)
	ignoredValues = strings.Fields(`backend-batch-interval backend-batch-limit backend-bbolt-freelist-type
		bootstrap-defrag-threshold-megabytes client-cert-allowed-hostname client-cert-file client-key-file
		compact-hash-check-time compaction-batch-limit compaction-sleep-interval config-file corrupt-check-time cors
		discovery-cacert discovery-cert discovery-dial-timeout discovery-endpoints discovery-fallback discovery-keepalive-time
		discovery-keepalive-timeout discovery-key discovery-password discovery-request-timeout discovery-srv discovery-srv-name
		discovery-token discovery-user distributed-tracing-address distributed-tracing-instance-id
		distributed-tracing-sampling-rate distributed-tracing-service-name downgrade-check-time
		grpc-keepalive-interval heartbeat-interval snapshot-catchup-entries grpc-keepalive-min-time grpc-keepalive-timeout host-whitelist log-format
		log-rotation-config-json logger max-snapshots max-wals metrics peer-cert-allowed-cn peer-cert-allowed-hostname
		peer-cert-file peer-client-cert-file peer-client-key-file peer-crl-file peer-key-file peer-trusted-ca-file
		raft-read-timeout raft-write-timeout self-signed-cert-validity v2-deprecation wal-dir
		warning-apply-duration warning-unary-request-duration`)
)

// parseFlags reads etcd's flags. One that etcd does not have is an error.
func parseFlags(args []string) (*options, error) {
	o := &options{}
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.name, "name", "default", "")
	fs.StringVar(&o.dataDir, "data-dir", "", "")
	fs.StringVar(&o.listenClient, "listen-client-urls", "http://localhost:2379", "")
	fs.StringVar(&o.listenHTTP, "listen-client-http-urls", "", "")
	fs.StringVar(&o.listenMetrics, "listen-metrics-urls", "", "")
	fs.StringVar(&o.advertiseClient, "advertise-client-urls", "", "")
	fs.StringVar(&o.listenPeer, "listen-peer-urls", "http://localhost:2380", "")
	fs.StringVar(&o.advertisePeer, "initial-advertise-peer-urls", "", "")
	fs.StringVar(&o.initialCluster, "initial-cluster", "", "")
	fs.StringVar(&o.state, "initial-cluster-state", "new", "")
	fs.StringVar(&o.token, "initial-cluster-token", "etcd-cluster", "")
	fs.StringVar(&o.certFile, "cert-file", "", "")
	fs.StringVar(&o.keyFile, "key-file", "", "")
	fs.StringVar(&o.caFile, "trusted-ca-file", "", "")
	fs.StringVar(&o.crl, "client-crl-file", "", "")
	fs.StringVar(&o.cipherSuites, "cipher-suites", "", "")
	fs.StringVar(&o.tlsMin, "tls-min-version", "TLS1.2", "")
	fs.StringVar(&o.tlsMax, "tls-max-version", "", "")
	fs.BoolVar(&o.clientCertAuth, "client-cert-auth", false, "")
	fs.BoolVar(&o.autoTLS, "auto-tls", false, "")
	fs.Uint64Var(&o.snapshotCount, "snapshot-count", 10000, "")
	fs.Int64Var(&o.quota, "quota-backend-bytes", 0, "")
	fs.UintVar(&o.maxRequestBytes, "max-request-bytes", 1536<<10, "")
	fs.UintVar(&o.maxTxnOps, "max-txn-ops", 128, "")
	fs.UintVar(&o.maxStreams, "max-concurrent-streams", 1<<32-1, "")
	fs.IntVar(&o.maxLearners, "max-learners", 1, "")
	fs.UintVar(&o.election, "election-timeout", 1000, "")
	fs.BoolVar(&o.strictReconfig, "strict-reconfig-check", true, "")
	fs.BoolVar(&o.forceNew, "force-new-cluster", false, "")
	fs.BoolVar(&o.pprof, "enable-pprof", false, "")
	fs.StringVar(&o.progressInterval, "watch-progress-notify-interval", "10m", "")
	fs.StringVar(&o.compactionMode, "auto-compaction-mode", "periodic", "")
	fs.StringVar(&o.compactionRetain, "auto-compaction-retention", "0", "")
	fs.StringVar(&o.authToken, "auth-token", "simple", "")
	fs.StringVar(&o.featureGates, "feature-gates", "", "")
	fs.UintVar(&o.authTokenTTL, "auth-token-ttl", 300, "")
	fs.UintVar(&o.bcryptCost, "bcrypt-cost", 10, "")
	fs.StringVar(&o.logLevel, "log-level", "info", "")
	fs.StringVar(&o.logOutputs, "log-outputs", "default", "")
	fs.BoolVar(&o.version, "version", false, "")
	ignored := map[string]bool{}
	for _, name := range ignoredBools {
		ignored[name] = true
		fs.Bool(name, false, "")
	}
	for _, name := range ignoredValues {
		ignored[name] = true
		fs.String(name, "", "")
	}
	if err := fs.Parse(args); err != nil {
		return nil, fmt.Errorf("flags: %w", err)
	}
	if fs.NArg() > 0 {
		return nil, fmt.Errorf("%q is not a valid flag", fs.Arg(0))
	}
	fs.Visit(func(f *flag.Flag) {
		if ignored[f.Name] {
			o.ignored = append(o.ignored, f.Name)
		}
	})
	if o.dataDir == "" {
		o.dataDir = o.name + ".etcd"
	}
	return o, nil
}
