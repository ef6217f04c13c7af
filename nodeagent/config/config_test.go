package config

import (
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"
)

// uncomment turns the package's file into one that sets every key: prose has one
// space after its #, keys have none or an indentation.
func uncomment(t *testing.T) string {
	t.Helper()
	b, err := os.ReadFile("../../packaging/deb/noded.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for l := range strings.Lines(string(b)) {
		l = strings.TrimRight(l, "\n")
		rest, commented := strings.CutPrefix(l, "#")
		prose := strings.HasPrefix(rest, " ") && !strings.HasPrefix(rest, "  ")
		switch {
		case l == "":
		case !commented:
			t.Errorf("the file of the package sets %q: every key must be commented", l)
		case !prose:
			out = append(out, rest)
		}
	}
	return strings.Join(out, "\n") + "\n"
}

func TestPackagedFileShowsEveryKeyWithItsDefault(t *testing.T) {
	text := uncomment(t)
	got, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, Default()) {
		t.Errorf("the file's defaults differ from the code's:\n got %+v\nwant %+v", got, Default())
	}
	// Leaving a key out gives its default too, so presence is looked at apart.
	for k := range flatten(Default()) {
		name := k[strings.LastIndex(k, ".")+1:]
		if !strings.Contains("\n"+strings.ReplaceAll(text, "\n  ", "\n"), "\n"+name+":") {
			t.Errorf("the file of the package does not show %s", k)
		}
	}
}

func TestPackagedFileAsItIsChangesNothing(t *testing.T) {
	got, err := Load("../../packaging/deb/noded.yaml", false)
	if err != nil || !reflect.DeepEqual(got, Default()) {
		t.Fatalf("got %+v, %v", got, err)
	}
}

func TestWrongFilesAreRefusedByTheNameOfTheKey(t *testing.T) {
	for text, want := range map[string]string{
		"nodename: x":                     `unknown field "nodename"`,
		"proxy: {modus: ipvs}":            "modus",
		"proxy: {mode: nft}":              "proxy.mode",
		"network: {mtu: 12}":              "network.mtu",
		"network: {vxlan: often}":         "network.vxlan",
		"nodeIP: host":                    "nodeIP",
		"nodeName: Upper_Case":            "nodeName",
		"capacity: {disk: 1}":             "capacity",
		"capacity: {memory: lots}":        "memory",
		"systemReserved: {cpu: -1}":       "systemReserved",
		"taints: [a=b:Sometimes]":         "taints",
		"port: 0":                         "port",
		"healthPort: 99999":               "healthPort",
		"clusterCIDR: ten":                "clusterCIDR",
		"clusterDNS: [dns]":               "clusterDNS",
		"labels: {'a b': c}":              "labels",
		"logLevel: loud":                  "logLevel",
		"maxPods: 0":                      "maxPods",
		"maxPods: many":                   "maxPods",
		"nodeName: a\nnodeName: b":        "nodeName",
		"proxy: {scheduler: best}":        "proxy.scheduler",
		"proxy: {masqueradeBit: 40}":      "proxy.masqueradeBit",
		"proxy: {nodePortAddresses: [x]}": "nodePortAddresses",
		"cgroupDriver: v2":                "cgroupDriver",
		"network: {cniBinDirs: []}":       "cniBinDirs",
		"podCIDR: 10.244.300.0/24":        "podCIDR",
		"network: {mode: manual}":         "network.mode",
		"network: {vxlanPort: -1}":        "network.vxlanPort",
	} {
		_, err := Parse([]byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v does not name %q", text, err, want)
		}
	}
}

func TestValuesAreTakenOver(t *testing.T) {
	c, err := Parse([]byte("capacity: {cpu: 2, memory: 2Gi}\ntaints: [a=b:NoSchedule, c:NoExecute]\nproxy: {mode: ipvs}\n"))
	if err != nil {
		t.Fatal(err)
	}
	q, err := c.CapacityList()
	if err != nil || q.Cpu().Value() != 2 || q.Memory().Value() != 2<<30 {
		t.Errorf("capacity %v, %v", q, err)
	}
	ts, err := c.TaintList()
	if err != nil || len(ts) != 2 || ts[0].Value != "b" || ts[1].Value != "" {
		t.Errorf("taints %v, %v", ts, err)
	}
	if c.Proxy.Mode != "ipvs" || c.Proxy.Scheduler != "rr" {
		t.Errorf("a section given in part lost its defaults: %+v", c.Proxy)
	}
}

func TestReloadSaysWhichKeysNeedARestart(t *testing.T) {
	a, b := Default(), Default()
	b.Proxy.Mode, b.LogLevel = "ipvs", "debug"
	if got := NeedRestart(a, b); len(got) != 0 {
		t.Errorf("%v are taken up by a reload", got)
	}
	b.MaxPods, b.Network.MTU, b.Labels = 7, 1400, map[string]string{"x": "y"}
	if got := NeedRestart(a, b); !slices.Equal(got, []string{"labels", "maxPods", "network.mtu"}) {
		t.Errorf("got %v", got)
	}
}
