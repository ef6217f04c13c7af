package controllers

import (
	"context"
	"crypto"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/tripod-cluster/tripod/controllers/horizontalpodautoscaler"
	"github.com/tripod-cluster/tripod/controllers/persistentvolume"
	"github.com/tripod-cluster/tripod/controllers/resourcequota"
	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/runtime/scales"
	"github.com/tripod-cluster/tripod/controllers/serviceaccounttoken"
	"github.com/tripod-cluster/tripod/controllers/validatingadmissionpolicystatus"
)

// Config says what the controllers work with. Client or RestConfig, Informers,
// Metadata (or RestConfig) and Discovery (or RestConfig) are needed; the rest
// has defaults.
type Config struct {
	// RestConfig reaches the API server with an administrator's rights. Each
	// controller makes its own client of it, with the user agent
	// "controld/NAME". A QPS of 0 means no limit on the client's side.
	RestConfig *rest.Config
	// Client is used in place of RestConfig when that is nil.
	Client kubernetes.Interface
	// Dynamic is made of RestConfig when nil; without either, custom resources
	// keep their old stored versions.
	Dynamic   dynamic.Interface
	Metadata  metadata.Interface
	Discovery discovery.DiscoveryInterface
	// Scales reads and writes the scale of objects of any kind; made of RestConfig
	// when nil. Without either the scale of custom resources is not known.
	Scales *scales.Client
	// Informers are the typed caches, shared with the scheduler. Run starts them
	// with its context. A factory cannot be started twice: make a new one for
	// each term of leadership, which also keeps what an earlier leader created
	// from being missed in an old cache.
	Informers informers.SharedInformerFactory

	// Signer is the key of the cluster CA and CACert its certificate in PEM; they
	// sign certificate requests. Without them requests are approved only.
	Signer crypto.Signer
	CACert []byte
	// SigningDuration is the longest life of a signed certificate: a year.
	SigningDuration time.Duration
	// RootCA is the bundle in PEM published in every namespace; CACert when nil.
	RootCA []byte
	// ClusterCIDR is the pods' network; each node gets a NodeCIDRMaskSize (24)
	// block of it. Without it nodes get none. IPv4 and IPv6.
	ClusterCIDR      netip.Prefix
	NodeCIDRMaskSize int
	// NodeMonitorGracePeriod is how long a node may be silent before it counts
	// as lost: 40 s.
	NodeMonitorGracePeriod time.Duration
	// TerminatedPodThreshold is how many ended pods are kept: 12500.
	TerminatedPodThreshold int

	// Metrics reads the metrics of pods and others; made of RestConfig when nil.
	// Without either, or without Scales, nothing is scaled by metrics.
	Metrics horizontalpodautoscaler.Metrics
	// QuotaUsage evaluates what objects use of resource quotas; without it quotas
	// are not recounted.
	QuotaUsage QuotaUsage

	// SignAccountToken signs the tokens of Secrets; without it they stay empty.
	SignAccountToken SignAccountToken
	// PolicyCheck checks the types of admission policies' expressions; without it
	// they are not checked.
	PolicyCheck PolicyCheck

	// Workers overrides how many objects a controller handles at once, by name.
	Workers map[string]int
	// Disabled names controllers that are not run.
	Disabled   []string
	Log        *slog.Logger
	Registerer prometheus.Registerer // nil: no metrics
	// Recorder receives all events in place of the API server (tests).
	Recorder record.EventRecorder
	Clock    clock.Clock
	// Runtime tunes supervision; zero values are right outside of tests.
	Runtime runtime.Options
}

// QuotaUsage returns what the objects of a namespace use of a resource quota,
// without plain counts of objects.
type QuotaUsage = resourcequota.Usage

// SignAccountToken makes the token of a Secret of a ServiceAccount.
type SignAccountToken = serviceaccounttoken.Sign

// PolicyCheck returns what is wrong with the types of a policy's expressions.
type PolicyCheck = validatingadmissionpolicystatus.Check

// Status is the health of one controller.
type Status = runtime.Status

// Manager owns the controllers of one term of leadership.
type Manager struct {
	cfg         Config
	group       *runtime.Group
	broadcaster record.EventBroadcaster
}

// New prepares the controllers; nothing runs and nothing is read before Run.
func New(cfg Config) (*Manager, error) {
	if err := cfg.complete(); err != nil {
		return nil, fmt.Errorf("controllers: %w", err)
	}
	if err := CheckNames(slices.Collect(maps.Keys(cfg.Workers))); err != nil {
		return nil, fmt.Errorf("controllers: workers: %w", err)
	}
	if err := CheckNames(cfg.Disabled); err != nil {
		return nil, fmt.Errorf("controllers: disabled: %w", err)
	}
	m := &Manager{cfg: cfg}
	o := cfg.Runtime
	o.Log, o.Registerer, o.Workers = cfg.Log, cfg.Registerer, cfg.Workers
	o.Start = func(ctx context.Context) { cfg.Informers.StartWithContext(ctx) }
	m.group = runtime.NewGroup(o)
	runtime.Replace(cfg.Registerer, persistentvolume.NewCollector(cfg.Informers))
	disabled := map[string]bool{}
	for _, name := range cfg.Disabled {
		disabled[name] = true
	}
	for _, r := range registrations {
		if disabled[r.name] {
			continue
		}
		if r.needs != nil && !r.needs(&cfg) {
			continue
		}
		client, err := m.client(r.name)
		if err != nil {
			return nil, err
		}
		m.group.Add(r.name, func(q runtime.Queue) (runtime.Controller, error) {
			return r.build(m.deps(r, client), q, &m.cfg)
		})
	}
	return m, nil
}

// CheckNames returns an error that names the first of names that is no
// controller, and the controllers that there are.
func CheckNames(names []string) error {
	var known []string
	for _, r := range registrations {
		known = append(known, r.name)
	}
	slices.Sort(known)
	for _, name := range slices.Sorted(slices.Values(names)) {
		if !slices.Contains(known, name) {
			return fmt.Errorf("there is no controller %q (there are: %s)", name, strings.Join(known, ", "))
		}
	}
	return nil
}

func (c *Config) complete() error {
	if c.Informers == nil {
		return errors.New("no informer factory: set Informers")
	}
	if c.Client == nil && c.RestConfig == nil {
		return errors.New("no way to the API server: set RestConfig or Client")
	}
	var err error
	if c.Metadata == nil && c.RestConfig != nil {
		if c.Metadata, err = metadata.NewForConfig(agent(c.RestConfig, "garbagecollector")); err != nil {
			return fmt.Errorf("metadata client: %w", err)
		}
	}
	if c.Dynamic == nil && c.RestConfig != nil {
		if c.Dynamic, err = dynamic.NewForConfig(agent(c.RestConfig, "storageversionmigration")); err != nil {
			return fmt.Errorf("dynamic client: %w", err)
		}
	}
	if c.Discovery == nil && c.RestConfig != nil {
		if c.Discovery, err = discovery.NewDiscoveryClientForConfig(agent(c.RestConfig, "discovery")); err != nil {
			return fmt.Errorf("discovery client: %w", err)
		}
	}
	if c.Scales == nil && c.RestConfig != nil {
		if c.Scales, err = scales.New(agent(c.RestConfig, "scales"), c.Discovery); err != nil {
			return err
		}
	}
	if c.Metrics == nil && c.RestConfig != nil {
		if c.Metrics, err = horizontalpodautoscaler.NewMetrics(agent(c.RestConfig, "horizontalpodautoscaler"), c.Discovery, c.Scales.Mapper); err != nil {
			return err
		}
	}
	if c.Metadata == nil || c.Discovery == nil {
		return errors.New("no metadata or discovery client: set RestConfig, or Metadata and Discovery")
	}
	if (c.Signer == nil) != (len(c.CACert) == 0) {
		return errors.New("one of Signer and CACert is missing: set both or none")
	}
	if c.RootCA == nil {
		c.RootCA = c.CACert
	}
	if c.SigningDuration <= 0 {
		c.SigningDuration = 365 * 24 * time.Hour
	}
	if c.NodeCIDRMaskSize == 0 {
		c.NodeCIDRMaskSize = 24
		if c.ClusterCIDR.Addr().Is6() {
			c.NodeCIDRMaskSize = 64
		}
	}
	if c.NodeMonitorGracePeriod <= 0 {
		c.NodeMonitorGracePeriod = 40 * time.Second
	}
	if c.TerminatedPodThreshold == 0 {
		c.TerminatedPodThreshold = 12500
	}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	if c.Clock == nil {
		c.Clock = clock.RealClock{}
	}
	return nil
}

func (m *Manager) client(name string) (kubernetes.Interface, error) {
	if m.cfg.RestConfig == nil {
		return m.cfg.Client, nil
	}
	client, err := kubernetes.NewForConfig(agent(m.cfg.RestConfig, name))
	if err != nil {
		return nil, fmt.Errorf("client of controller %s: %w", name, err)
	}
	return client, nil
}

// agent returns a copy of c that names the controller to the API server's log.
func agent(c *rest.Config, name string) *rest.Config {
	c = rest.AddUserAgent(rest.CopyConfig(c), "controld/"+name)
	c.UserAgent = "controld/" + name
	if c.QPS == 0 {
		c.QPS = -1
	}
	return c
}

func (m *Manager) deps(r registration, client kubernetes.Interface) runtime.Deps {
	recorder := m.cfg.Recorder
	if recorder == nil {
		recorder = m.broadcaster.NewRecorder(scheme.Scheme, corev1.EventSource{Component: r.component})
	}
	return runtime.Deps{
		Client:    client,
		Informers: m.cfg.Informers,
		Recorder:  recorder,
		Log:       m.cfg.Log.With("controller", r.name),
		Clock:     m.cfg.Clock,
	}
}

// Run runs the controllers until ctx ends and returns when all their goroutines
// have ended. It may be called once. An error means that a controller ignores
// the end of its context: it cannot write any more, but only a restart of the
// process gets rid of it.
func (m *Manager) Run(ctx context.Context) error {
	if m.cfg.Recorder == nil {
		client, err := m.client("events")
		if err != nil {
			return err
		}
		ectx, cancel := context.WithCancel(ctx)
		defer cancel()
		m.broadcaster = record.NewBroadcaster(record.WithContext(ectx))
		defer m.broadcaster.Shutdown()
		m.broadcaster.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	}
	return m.group.Run(ctx)
}

// Health tells how each controller is.
func (m *Manager) Health() []Status { return m.group.Health() }

// Wait is one thing that an object waits for.
type Wait = runtime.Wait

// explained maps the kinds that Explain knows, as they are typed, to the
// controllers that own them.
var explained = map[string]string{
	"deployment": "deployment", "deployments": "deployment", "deploy": "deployment",
	"statefulset": "statefulset", "statefulsets": "statefulset", "sts": "statefulset",
	"job": "job", "jobs": "job",
	"persistentvolumeclaim": "persistentvolume", "persistentvolumeclaims": "persistentvolume", "pvc": "persistentvolume",
	"namespace": "namespace", "namespaces": "namespace", "ns": "namespace",
}

// ErrUnknownKind says that no controller explains objects of a kind.
var ErrUnknownKind = errors.New("no controller explains this kind (known: deployment, statefulset, job, pvc, namespace)")

// Explain asks the controller that owns the object what it waits for: nothing
// when it has all that it asks for. kind may be short or plural, as for kubectl.
// An object that is not there is a NotFound error of the API.
func (m *Manager) Explain(kind, namespace, name string) (controller string, waits []Wait, err error) {
	controller, ok := explained[strings.ToLower(kind)]
	if !ok {
		return "", nil, fmt.Errorf("%s: %w", kind, ErrUnknownKind)
	}
	waits, err = m.group.Explain(controller, namespace, name)
	return controller, waits, err
}
