package controllers

import (
	"github.com/tripod-cluster/tripod/controllers/attachdetach"
	"github.com/tripod-cluster/tripod/controllers/clusterroleaggregation"
	"github.com/tripod-cluster/tripod/controllers/clustertrustbundle"
	"github.com/tripod-cluster/tripod/controllers/cronjob"
	"github.com/tripod-cluster/tripod/controllers/csr"
	"github.com/tripod-cluster/tripod/controllers/daemonset"
	"github.com/tripod-cluster/tripod/controllers/deployment"
	"github.com/tripod-cluster/tripod/controllers/devicetainteviction"
	"github.com/tripod-cluster/tripod/controllers/disruption"
	"github.com/tripod-cluster/tripod/controllers/endpoints"
	"github.com/tripod-cluster/tripod/controllers/endpointslice"
	"github.com/tripod-cluster/tripod/controllers/endpointslicemirroring"
	"github.com/tripod-cluster/tripod/controllers/ephemeralvolume"
	"github.com/tripod-cluster/tripod/controllers/garbagecollector"
	"github.com/tripod-cluster/tripod/controllers/horizontalpodautoscaler"
	"github.com/tripod-cluster/tripod/controllers/job"
	"github.com/tripod-cluster/tripod/controllers/legacytokencleaner"
	"github.com/tripod-cluster/tripod/controllers/namespace"
	"github.com/tripod-cluster/tripod/controllers/nodeipam"
	"github.com/tripod-cluster/tripod/controllers/nodelifecycle"
	"github.com/tripod-cluster/tripod/controllers/nodettl"
	"github.com/tripod-cluster/tripod/controllers/persistentvolume"
	"github.com/tripod-cluster/tripod/controllers/persistentvolumeclaimprotection"
	"github.com/tripod-cluster/tripod/controllers/persistentvolumeprotection"
	"github.com/tripod-cluster/tripod/controllers/podcertificaterequest"
	"github.com/tripod-cluster/tripod/controllers/podgc"
	"github.com/tripod-cluster/tripod/controllers/replicaset"
	"github.com/tripod-cluster/tripod/controllers/replicationcontroller"
	"github.com/tripod-cluster/tripod/controllers/resourceclaim"
	"github.com/tripod-cluster/tripod/controllers/resourcequota"
	"github.com/tripod-cluster/tripod/controllers/rootca"
	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/serviceaccount"
	"github.com/tripod-cluster/tripod/controllers/serviceaccounttoken"
	"github.com/tripod-cluster/tripod/controllers/servicecidr"
	"github.com/tripod-cluster/tripod/controllers/statefulset"
	"github.com/tripod-cluster/tripod/controllers/storageversionmigration"
	"github.com/tripod-cluster/tripod/controllers/tainteviction"
	"github.com/tripod-cluster/tripod/controllers/tokencleaner"
	"github.com/tripod-cluster/tripod/controllers/ttlafterfinished"
	"github.com/tripod-cluster/tripod/controllers/validatingadmissionpolicystatus"
	"github.com/tripod-cluster/tripod/controllers/volumeattributesclassprotection"
	"github.com/tripod-cluster/tripod/controllers/volumeexpansion"
)

// registration is one controller in the list.
type registration struct {
	name string
	// component is the source that its events name.
	component string
	// needs reports whether the controller has what it needs; nil: always.
	needs func(*Config) bool
	build func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error)
}

// plain adapts the constructor of a controller that needs no configuration.
func plain(f func(runtime.Deps, runtime.Queue) (runtime.Controller, error)) func(runtime.Deps, runtime.Queue, *Config) (runtime.Controller, error) {
	return func(d runtime.Deps, q runtime.Queue, _ *Config) (runtime.Controller, error) { return f(d, q) }
}

// registrations are all controllers. The order is the one of Health; they start
// together.
var registrations = []registration{
	{name: "serviceaccount", component: "serviceaccount-controller", build: plain(serviceaccount.New)},
	{
		name: "rootca", component: "root-ca-certificate-publisher",
		needs: func(c *Config) bool { return len(c.RootCA) > 0 },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return rootca.New(d, q, c.RootCA)
		},
	},
	{
		name: "serviceaccounttoken", component: "serviceaccount-token-controller",
		needs: func(c *Config) bool { return c.SignAccountToken != nil },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return serviceaccounttoken.New(d, q, c.SignAccountToken, c.RootCA)
		},
	},
	{name: "legacytokencleaner", component: "legacy-serviceaccount-token-cleaner", build: plain(legacytokencleaner.New)},
	{
		name: "clustertrustbundle", component: "kube-apiserver-serving-clustertrustbundle-publisher",
		needs: func(c *Config) bool { return len(c.RootCA) > 0 },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return clustertrustbundle.New(d, q, c.RootCA)
		},
	},
	{
		name: "validatingadmissionpolicystatus", component: "validatingadmissionpolicy-status",
		needs: func(c *Config) bool { return c.PolicyCheck != nil },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return validatingadmissionpolicystatus.New(d, q, c.PolicyCheck)
		},
	},
	{name: "replicaset", component: "replicaset-controller", build: plain(replicaset.New)},
	{name: "replicationcontroller", component: "replication-controller", build: plain(replicationcontroller.New)},
	{name: "deployment", component: "deployment-controller", build: plain(deployment.New)},
	{name: "daemonset", component: "daemonset-controller", build: plain(daemonset.New)},
	{name: "statefulset", component: "statefulset-controller", build: plain(statefulset.New)},
	{name: "job", component: "job-controller", build: plain(job.New)},
	{name: "cronjob", component: "cronjob-controller", build: plain(cronjob.New)},
	{name: "ttlafterfinished", component: "ttl-after-finished-controller", build: plain(ttlafterfinished.New)},
	{
		name: "disruption", component: "controllermanager",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return disruption.New(d, q, c.Scales)
		},
	},
	{
		name: "resourcequota", component: "resourcequota-controller",
		needs: func(c *Config) bool { return c.QuotaUsage != nil && c.Scales != nil },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return resourcequota.New(d, q, c.Metadata, c.Scales.Mapper, c.QuotaUsage)
		},
	},
	{
		name: "horizontalpodautoscaler", component: "horizontal-pod-autoscaler",
		needs: func(c *Config) bool { return c.Metrics != nil && c.Scales != nil },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return horizontalpodautoscaler.New(d, q, c.Scales, c.Metrics)
		},
	},
	{name: "endpointslice", component: "endpoint-slice-controller", build: plain(endpointslice.New)},
	{name: "endpointslicemirroring", component: "endpoint-slice-mirroring-controller", build: plain(endpointslicemirroring.New)},
	{name: "endpoints", component: "endpoint-controller", build: plain(endpoints.New)},
	{name: "servicecidr", component: "service-cidr-controller", build: plain(servicecidr.New)},
	{
		name: "nodeipam", component: "cidrAllocator",
		needs: func(c *Config) bool { return c.ClusterCIDR.IsValid() },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return nodeipam.New(d, q, c.ClusterCIDR, c.NodeCIDRMaskSize)
		},
	},
	{
		name: "csr", component: "certificate-controller",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return csr.New(d, q, c.Signer, c.CACert, c.SigningDuration)
		},
	},
	{name: "podcertificaterequest", component: "podcertificaterequest-cleaner", build: plain(podcertificaterequest.New)},
	{name: "nodettl", component: "ttl-controller", build: plain(nodettl.New)},
	{
		name: "nodelifecycle", component: "node-controller",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return nodelifecycle.New(d, q, c.NodeMonitorGracePeriod)
		},
	},
	{name: "tainteviction", component: "taint-eviction-controller", build: plain(tainteviction.New)},
	{
		name: "podgc", component: "pod-garbage-collector",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return podgc.New(d, q, c.TerminatedPodThreshold)
		},
	},
	{
		name: "garbagecollector", component: "garbage-collector-controller",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return garbagecollector.New(d, q, c.Metadata, c.Discovery)
		},
	},
	{
		name: "namespace", component: "namespace-controller",
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return namespace.New(d, q, c.Metadata, c.Discovery)
		},
	},
	{name: "persistentvolume", component: "persistentvolume-controller", build: plain(persistentvolume.New)},
	{name: "persistentvolumeprotection", component: "persistentvolume-protection-controller", build: plain(persistentvolumeprotection.New)},
	{name: "persistentvolumeclaimprotection", component: "persistentvolumeclaim-protection-controller", build: plain(persistentvolumeclaimprotection.New)},
	{name: "volumeattributesclassprotection", component: "volumeattributesclass-protection-controller", build: plain(volumeattributesclassprotection.New)},
	{name: "attachdetach", component: "attachdetach-controller", build: plain(attachdetach.New)},
	{name: "volumeexpansion", component: "volume_expand", build: plain(volumeexpansion.New)},
	{name: "ephemeralvolume", component: "ephemeral_volume", build: plain(ephemeralvolume.New)},
	{name: "resourceclaim", component: "resource_claim", build: plain(resourceclaim.New)},
	{name: "devicetainteviction", component: "device-taint-eviction", build: plain(devicetainteviction.New)},
	{
		name: "storageversionmigration", component: "storage-version-migrator-controller",
		needs: func(c *Config) bool { return c.Scales != nil },
		build: func(d runtime.Deps, q runtime.Queue, c *Config) (runtime.Controller, error) {
			return storageversionmigration.New(d, q, c.Metadata, c.Dynamic, c.Scales.Mapper)
		},
	},
	{name: "clusterroleaggregation", component: "clusterrole-aggregation-controller", build: plain(clusterroleaggregation.New)},
	{name: "tokencleaner", component: "token-cleaner", build: plain(tokencleaner.New)},
}
