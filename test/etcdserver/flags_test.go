package main

import (
	"flag"
	"reflect"
	"slices"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/tripod-cluster/tripod/raftfsm"
)

// Every flag of etcd is taken, in the form in which etcd takes it, and no other.
func TestFlagsAreEtcds(t *testing.T) {
	fs := flag.NewFlagSet("etcd", flag.ContinueOnError)
	embed.NewConfig().AddFlags(fs)
	fs.VisitAll(func(f *flag.Flag) {
		b, ok := f.Value.(interface{ IsBoolFlag() bool })
		args := []string{"--" + f.Name + "=" + f.DefValue}
		if ok && b.IsBoolFlag() {
			args = []string{"--" + f.Name}
		}
		if _, err := parseFlags(args); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	})
	ofMain := []string{"config-file", "discovery-fallback", "v2-deprecation"} // which its main function adds
	for _, name := range slices.Concat(ignoredBools, ignoredValues) {
		if !slices.Contains(ofMain, name) && fs.Lookup(name) == nil {
			t.Errorf("etcd has no flag --%s", name)
		}
	}
	if _, err := parseFlags([]string{"--no-such-flag"}); err == nil {
		t.Error("a flag that etcd does not have was taken")
	}
}

func TestInitialCluster(t *testing.T) {
	got, err := parseInitialCluster("a=http://h:1,b=http://h:2,a=http://h:3")
	if want := []founder{{"a", []string{"http://h:1", "http://h:3"}}, {"b", []string{"http://h:2"}}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "a", "=http://h:1", "a="} {
		if _, err := parseInitialCluster(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// The IDs of a cluster of one are those that etcd gives it: its own TestCtlV3GetFormat expects this cluster.
func TestIdentitiesAreEtcds(t *testing.T) {
	id := founderID("new", []string{"https://localhost:20001"})
	cluster := clusterID([]raftfsm.Member{{ID: id}})
	if id != 0x00a8f3458387986d || cluster != 0x34c21a2d427db393 {
		t.Errorf("member %v of cluster %x", id, cluster)
	}
	if founderID("t", []string{"a", "b"}) != founderID("t", []string{"b", "a"}) {
		t.Error("the order of the URLs counts")
	}
	if founderID("t", []string{"a"}) == founderID("t", []string{"b"}) || founderID("t", []string{"a"}) == founderID("u", []string{"a"}) {
		t.Error("two share an identity")
	}
}
