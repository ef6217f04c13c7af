package main

import (
	"flag"
	"slices"
	"testing"

	"go.etcd.io/etcd/server/v3/embed"
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
	if want := []founder{{"a", "http://h:1"}, {"b", "http://h:2"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	for _, bad := range []string{"", "a", "=http://h:1", "a="} {
		if _, err := parseInitialCluster(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

// Two processes agree on who is who without talking, and another token is another cluster.
func TestIdentitiesAreDerived(t *testing.T) {
	if founderID("t", "a") != founderID("t", "a") || clusterID("t") != clusterID("t") {
		t.Error("not the same the second time")
	}
	if founderID("t", "a") == founderID("t", "b") || founderID("t", "a") == founderID("u", "a") || clusterID("t") == clusterID("u") {
		t.Error("two share an identity")
	}
}
