package etcdapi

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3election/v3electionpb"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3lock/v3lockpb"
	"golang.org/x/crypto/bcrypt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"

	"github.com/tripod-cluster/tripod/backup/etcddb"
	"github.com/tripod-cluster/tripod/store"
)

const (
	// DefaultMaxRequestBytes is the largest request that is proposed; etcd's.
	DefaultMaxRequestBytes = 1536 << 10
	// DefaultMaxTxnOps is how many operations or comparisons one list of a
	// transaction may have, nested ones counted with their parents; etcd's.
	DefaultMaxTxnOps = 128
	// DefaultProgressInterval is how often a quiet watch that asked for
	// progress notifications gets one; etcd's.
	DefaultProgressInterval = 10 * time.Minute
	// DefaultRequestTimeout is how long a request waits for the cluster.
	DefaultRequestTimeout = 7 * time.Second
	// DefaultLeaderCheckInterval is how often streams that require a leader
	// look for one; they end after three looks in vain.
	DefaultLeaderCheckInterval = time.Second

	// DefaultMaxResponseBytes is how large an answer may become: what gRPC can
	// carry in one message.
	DefaultMaxResponseBytes = math.MaxInt32
	// MaxApplyLag is how many log entries the store may be behind the log before
	// requests are refused with ErrGRPCRequestTooManyRequests; etcd's.
	MaxApplyLag = 5000

	// requestOverhead is what a message may be larger than the request in it.
	requestOverhead = 512 << 10
)

// Member is one member of the cluster.
type Member struct {
	ID         uint64
	Name       string // empty until the member has started
	PeerURLs   []string
	ClientURLs []string
	Learner    bool // replicates, does not vote
}

// Cluster tells about the cluster as this member sees it. All methods return
// at once.
type Cluster interface {
	// ClusterID is the same on all members, and not 0.
	ClusterID() uint64
	// Self is this member's ID, not 0.
	Self() uint64
	// Learner tells whether this member replicates and does not vote.
	Learner() bool
	// Leader is the leader's ID; 0 when none is known.
	Leader() uint64
	// Term is the raft term.
	Term() uint64
	// Index is the index of the last committed raft entry known here.
	Index() uint64
	// AppliedIndex is the index of the last applied raft entry.
	AppliedIndex() uint64
	// Members are all members, ordered by ID.
	Members() []Member
}

// MemberChanger changes the cluster's members. Errors are rpctypes gRPC errors
// (ErrGRPCMemberNotFound, ErrGRPCMemberExist, ErrGRPCLearnerNotReady, ...).
type MemberChanger interface {
	AddMember(ctx context.Context, peerURLs []string, learner bool) (Member, error)
	RemoveMember(ctx context.Context, id uint64) error
	UpdateMember(ctx context.Context, id uint64, peerURLs []string) error
	PromoteMember(ctx context.Context, id uint64) error
	// MoveLeader hands leadership, which this member must have, to another.
	MoveLeader(ctx context.Context, id uint64) error
}

// Config says what a Server serves. Store, Proposer, Leaser and Cluster are
// required.
type Config struct {
	Store    *store.Store
	Proposer store.Proposer
	Leaser   store.Leaser
	Cluster  Cluster
	// Members, when set, lets clients change the membership; else they are
	// told to use controld.
	Members MemberChanger
	// Logger gets what operators should know; nil is slog.Default().
	Logger *slog.Logger

	// The limits; 0 is the default of the name.
	MaxRequestBytes     int
	MaxTxnOps           int
	MaxResponseBytes    int
	ProgressInterval    time.Duration
	RequestTimeout      time.Duration
	LeaderCheckInterval time.Duration
	// Tokens are what users get for their password; nil is simple ones.
	Tokens Tokens
	// BcryptCost is how costly it is to check a password, from
	// bcrypt.MinCost to bcrypt.MaxCost; what is not is bcrypt.DefaultCost.
	BcryptCost int
	// ClientCertAuth lets the common name of a verified client certificate
	// stand for the user of that name where a request has no token.
	ClientCertAuth bool
	// QuotaBytes is what Status reports as quota; store.WithQuota enforces
	// it. 0 is none.
	QuotaBytes int64
	// Metrics are served at /metrics beside the Server's own; nil is none.
	Metrics prometheus.Gatherer
	// SnapshotOrigin says what a snapshot that a client asked for tells of this
	// cluster; nil tells what Cluster does.
	SnapshotOrigin func() etcddb.Origin
}

// Server implements etcd's gRPC services. Its methods may be called at any
// time, by anyone.
type Server struct {
	cfg     Config
	log     *slog.Logger
	health  *health.Server
	tokens  tokenService
	events  *eventCache
	metrics *metrics
	led     leaderWatch
	stop    chan struct{}
	once    sync.Once
	// unfollow ends the store's reports to tokens.
	unfollow func()
}

// New returns a server. Serve it with NewGRPCServer, or give ServerOptions to
// a gRPC server of your own and Register it there. Close it after that.
func New(cfg Config) *Server {
	def(&cfg.MaxRequestBytes, DefaultMaxRequestBytes)
	def(&cfg.MaxTxnOps, DefaultMaxTxnOps)
	def(&cfg.MaxResponseBytes, DefaultMaxResponseBytes)
	def(&cfg.ProgressInterval, DefaultProgressInterval)
	def(&cfg.RequestTimeout, DefaultRequestTimeout)
	def(&cfg.LeaderCheckInterval, DefaultLeaderCheckInterval)
	if cfg.BcryptCost < bcrypt.MinCost || cfg.BcryptCost > bcrypt.MaxCost {
		cfg.BcryptCost = bcrypt.DefaultCost
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	s := &Server{cfg: cfg, log: cfg.Logger.With("component", "etcdapi"), health: health.NewServer(), stop: make(chan struct{}), events: newEventCache()}
	s.metrics = newServerMetrics(s)
	s.led.init(cfg.Cluster, cfg.LeaderCheckInterval)
	if cfg.Tokens == nil {
		cfg.Tokens = newSimpleTokens(0)
	}
	s.tokens = tokenService{Tokens: cfg.Tokens, s: s}
	s.unfollow = cfg.Store.FollowTokens(cfg.Tokens.follow)
	return s
}

func def[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Register adds all services to g, which must have been made with
// ServerOptions.
func (s *Server) Register(g *grpc.Server) {
	pb.RegisterKVServer(g, &kvServer{s: s})
	pb.RegisterWatchServer(g, &watchServer{s: s})
	pb.RegisterLeaseServer(g, &leaseServer{s: s})
	pb.RegisterClusterServer(g, &clusterServer{s: s})
	pb.RegisterMaintenanceServer(g, &maintenanceServer{s: s})
	pb.RegisterAuthServer(g, &authServer{s: s})
	v3lockpb.RegisterLockServer(g, &lockServer{s: s})
	v3electionpb.RegisterElectionServer(g, &electionServer{s: s})
	healthpb.RegisterHealthServer(g, s.health)
}

// ServerOptions returns the options that the services need: etcd's message
// limits and keepalive policy, and the handling of clients that require a
// leader or a user's rights. They use the chained interceptors, so others can be added.
func (s *Server) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ForceServerCodecV2(newCodec()),
		// A call on a goroutine that exists has its stack grown already. Calls beyond these get goroutines of their own.
		grpc.NumStreamWorkers(uint32(4 * runtime.GOMAXPROCS(0))),
		grpc.MaxRecvMsgSize(s.cfg.MaxRequestBytes + requestOverhead),
		grpc.MaxSendMsgSize(math.MaxInt32),
		grpc.MaxConcurrentStreams(math.MaxUint32),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second}),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 2 * time.Hour, Timeout: 20 * time.Second}),
		grpc.ChainUnaryInterceptor(s.metrics.rpc.UnaryServerInterceptor(), s.unaryLeader, s.unaryAuth),
		grpc.ChainStreamInterceptor(s.metrics.rpc.StreamServerInterceptor(), s.streamLeader, s.streamAuth),
	}
}

// NewGRPCServer returns a gRPC server with all services. Credentials are for
// the caller to add.
func (s *Server) NewGRPCServer(more ...grpc.ServerOption) *grpc.Server {
	return s.newGRPCServer(append(s.ServerOptions(), more...)...)
}

func (s *Server) newGRPCServer(options ...grpc.ServerOption) *grpc.Server {
	g := grpc.NewServer(options...)
	s.Register(g)
	return g
}

// Close ends watch streams, so that a graceful stop of the gRPC server does
// not wait for them, and reports not serving to health checks.
func (s *Server) Close() {
	s.once.Do(func() {
		s.health.Shutdown()
		s.unfollow()
		close(s.stop)
	})
}
