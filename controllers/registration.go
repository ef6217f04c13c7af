package controllers

import (
	"github.com/tripod-cluster/tripod/controllers/replicaset"
	"github.com/tripod-cluster/tripod/controllers/rootca"
	"github.com/tripod-cluster/tripod/controllers/runtime"
	"github.com/tripod-cluster/tripod/controllers/serviceaccount"
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
	{name: "replicaset", component: "replicaset-controller", build: plain(replicaset.New)},
}
