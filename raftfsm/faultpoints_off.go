//go:build !faultpoints

package raftfsm

// faultpoints does nothing; see faultpoints.go.
func (*Config) faultpoints() error { return nil }
