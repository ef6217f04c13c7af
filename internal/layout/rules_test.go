package layout

import (
	"strings"
	"testing"
)

func pkg(doc, body string) string { return "// Package " + doc + "\npackage x\n" + body }

func imports(paths ...string) string {
	s := "package x\n\nimport (\n"
	for _, p := range paths {
		s += "\t_ \"" + p + "\"\n"
	}
	return s + ")\n"
}

// TestRulesCanFail shows each rule on a tree that it lets pass and on one that it refuses.
func TestRulesCanFail(t *testing.T) {
	must := func(f func(tree) ([]string, error)) func(tree) []string {
		return func(tr tree) []string {
			bad, err := f(tr)
			if err != nil {
				return []string{err.Error()}
			}
			return bad
		}
	}
	one := func(file string, paths ...string) tree { return tree{file: imports(paths...)} }
	imp, packages := must(checkImports), must(checkPackages)
	manuals := must(func(tr tree) ([]string, error) { return checkManuals(tr, "d") })
	advice := must(func(tr tree) ([]string, error) { return checkAdvice(tr, "d") })
	hosts := func(tr tree) []string { return checkTraces(tr, []string{"proxy.example.net"}) }
	for name, c := range map[string]struct {
		rule func(tree) []string
		tree tree
		want string // part of the one complaint; empty: none
	}{
		"store on its own":                   {imp, one("store/a.go", "sort", "go.etcd.io/etcd/api/v3/mvccpb"), ""},
		"store and a client":                 {imp, one("store/a.go", "go.etcd.io/etcd/client/v3"), "pure state machine"},
		"store and raft":                     {imp, one("store/a.go", module+"raftfsm"), "store/a.go imports raftfsm"},
		"test of store and a library":        {imp, one("store/a_test.go", "pgregory.net/rapid"), ""},
		"pki and a library":                  {imp, one("pki/a.go", "github.com/x/y"), "standard library alone"},
		"raft and the store":                 {imp, one("raftfsm/a.go", module+"store", "github.com/hashicorp/raft"), ""},
		"raft and the API":                   {imp, one("raftfsm/a.go", module+"apiserver"), "knows no API"},
		"raft and Kubernetes types":          {imp, one("raftfsm/a.go", "k8s.io/api/core/v1"), "knows no API"},
		"one front door and the other":       {imp, one("etcdapi/a.go", module+"apiserver"), "front door"},
		"a test of the API with etcd's":      {imp, one("apiserver/a_test.go", module+"etcdapi"), ""},
		"the API with etcd's":                {imp, one("apiserver/a.go", module+"etcdapi"), "front door"},
		"a controller":                       {imp, one("controllers/x/a.go", module+"controllers/runtime", module+"controllers/runtime/podstate", "k8s.io/client-go/kubernetes"), ""},
		"a controller and another":           {imp, one("controllers/x/a.go", module+"controllers/y"), "never another controller"},
		"a controller and the store":         {imp, one("controllers/x/a.go", module+"store"), "never another controller"},
		"a controller and the API":           {imp, one("controllers/x/a_test.go", module+"apiserver"), "never another controller"},
		"a controller and etcd":              {imp, one("controllers/x/a.go", "go.etcd.io/etcd/client/v3"), "clients and controllers/runtime"},
		"the machine and a controller":       {imp, one("controllers/runtime/a.go", module+"controllers/x"), "clients only"},
		"a plugin and another":               {imp, one("scheduling/plugins/x/a.go", module+"scheduling/plugins/y"), "never another plugin"},
		"a plugin's test":                    {imp, one("scheduling/plugins/x/a_test.go", module+"scheduling/schedtest"), ""},
		"the scheduler and a controller":     {imp, one("scheduling/a.go", module+"controllers/x"), "clients only"},
		"the agent and certificates":         {imp, one("nodeagent/x/a.go", module+"pki", module+"nodeagent/y"), ""},
		"the agent and the store":            {imp, one("nodeagent/x/a.go", module+"store"), "nothing of the control plane"},
		"the agent and peers' configuration": {imp, one("nodeagent/a.go", module+"controlplane/peer"), "nothing of the control plane"},
		"a backend and the model":            {imp, one("dataplane/ipvs/a.go", module+"dataplane", "github.com/moby/ipvs"), ""},
		"a backend and Kubernetes types":     {imp, one("dataplane/ipvs/a.go", "k8s.io/api/core/v1"), "Kubernetes types"},
		"a backend and the other":            {imp, one("dataplane/ipvs/a.go", module+"dataplane/iptables"), "other backend"},
		"the model and Kubernetes types":     {imp, one("dataplane/a.go", "k8s.io/api/core/v1"), "no Kubernetes types"},
		"noded and the control plane":        {imp, one("cmd/noded/a.go", module+"controlplane/peer"), "nothing of the control plane"},
		"kubernetes in the API":              {imp, one("apiserver/a.go", "k8s.io/kubernetes/cmd/kube-apiserver/app"), ""},
		"kubernetes elsewhere":               {imp, one("scheduling/a.go", "k8s.io/kubernetes/pkg/apis/core"), "only apiserver"},
		"kubernetes in a test elsewhere":     {imp, one("controllers/x/a_test.go", "k8s.io/kubernetes/pkg/apis/core"), "only apiserver"},
		"the scheduler of others":            {imp, one("apiserver/a.go", "k8s.io/kubernetes/pkg/scheduler/framework"), "never"},
		"the controllers of others":          {imp, one("controlplane/a.go", "k8s.io/kubernetes/pkg/controller"), "never"},
		"the kubelet of others, in a test":   {imp, one("apiserver/a_test.go", "k8s.io/kubernetes/pkg/kubelet/types"), "never"},
		"the proxy of others":                {imp, one("cmd/controld/a.go", "k8s.io/kubernetes/pkg/proxy/ipvs"), "never"},
		"not the scheduler of others":        {imp, one("apiserver/a.go", "k8s.io/kubernetes/pkg/schedulerless"), ""},
		"a package nobody placed":            {imp, one("new/a.go", "fmt"), "in no room"},
		"a file that is not Go":              {imp, tree{"store/a.go": "pakage x"}, "parse"},

		"a package comment":             {packages, tree{"x/a.go": pkg("x is a thing.", "")}, ""},
		"a command's comment":           {packages, tree{"cmd/d/main.go": "// Command d runs.\npackage main\n"}, ""},
		"no package comment":            {packages, tree{"x/a.go": "package x\n", "x/b.go": "package x\n"}, "x has no package comment"},
		"a comment of something else":   {packages, tree{"x/a.go": "// Copyright.\npackage x\n"}, "no package comment"},
		"a comment on the outside test": {packages, tree{"x/a.go": "package x\n", "x/a_test.go": "// Package x_test is.\npackage x_test\n"}, "no package comment"},
		"a vague package":               {packages, tree{"x/util/a.go": "// Package util is.\npackage util\n"}, "says nothing"},
		"a vague folder":                {packages, tree{"common/x/a.go": pkg("x is.", "")}, "says nothing"},
		"a name that has a vague end":   {packages, tree{"etcdutil/a.go": "// Package etcdutil is.\npackage etcdutil\n"}, ""},
		"a long file":                   {packages, tree{"x/a.go": pkg("x is.", strings.Repeat("// more\n", maxLines))}, "split it by idea"},
		"a long file that is made":      {packages, tree{"x/zz_a.go": pkg("x is.", strings.Repeat("// more\n", maxLines))}, ""},

		"a host name":    {hosts, tree{"docs/a.md": "one\ntwo https://proxy.example.net/x"}, "docs/a.md:2 names"},
		"no host name":   {hosts, tree{"docs/a.md": "https://example.net/x"}, ""},
		"a strict shell": {checkScripts, tree{"x/run": "#!/bin/bash\n# run\nset -euo pipefail\n"}, ""},
		"a lax shell":    {checkScripts, tree{"x/run": "#!/bin/sh\nset -e\n"}, "x/run does not begin with set -eu"},
		"no set at all":  {checkScripts, tree{"x/run.sh": "echo\n"}, "set -eu"},
		"set in a text":  {checkScripts, tree{"x/run": "#!/usr/bin/env bash\necho set -eu\n"}, "set -eu"},
		"a maintainer's": {checkScripts, tree{"packaging/deb/p.prerm": "#!/bin/sh\nset -e\n"}, ""},
		"a lax one's":    {checkScripts, tree{"packaging/deb/p.prerm": "#!/bin/sh\n"}, "set -e"},
		"another mark":   {checkScripts, tree{"x/rules": "#!/usr/bin/make -f\n"}, ""},

		"a link":               {checkLinks, tree{"docs/a.md": "[x](b.md#part) [y](../x) [z](https://e.net)", "docs/b.md": "", "x/y": ""}, ""},
		"a dead link":          {checkLinks, tree{"docs/a.md": "[x](c.md)"}, "links to c.md"},
		"a target":             {checkMakeTargets, tree{"Makefile": "up: repo ## go\n", "a.md": "`make up`"}, ""},
		"no target":            {checkMakeTargets, tree{"Makefile": "up: repo ## go\nX := up\n", "a.md": "`make fly`"}, "make fly"},
		"no target in a block": {checkMakeTargets, tree{"Makefile": "up: repo\n", "a.md": "text\n\n    make fly\n"}, "make fly"},
		"a test":               {checkTestNames, tree{"x/a_test.go": "func TestAll(t *testing.T) {", "a.md": "TestAll, Testing"}, ""},
		"no test":              {checkTestNames, tree{"x/a_test.go": "func TestAll(t *testing.T) {", "a.md": "TestNone"}, "the test TestNone"},
		"a message":            {checkMessages, tree{"x/a.go": `"port %d is \"in use\" by %s"`, "docs/troubleshooting.md": "| it says | x |\n|---|---|\n| port … is \"in use\" by … | y |\n"}, ""},
		"no message":           {checkMessages, tree{"x/a.go": `"port %d is free"`, "docs/troubleshooting.md": "| it says | x |\n|---|---|\n| port … is taken | y |\n"}, `explains "is taken"`},
		"no message, a table":  {checkMessages, tree{"docs/troubleshooting.md": "| it says | x |\n\n| symptom | x |\n|---|---|\n| slow | y |\n"}, ""},
		"a folder on the map":  {checkMap, tree{"x/a.go": "", "ARCHITECTURE.md": "| `x/` |"}, ""},
		"a folder off the map": {checkMap, tree{"x/a.go": "", "ARCHITECTURE.md": "x is here"}, "nothing of x/"},

		"advice":          {advice, tree{"cmd/d/main.go": commands, "a.go": "run `d go --fast`, or d fly"}, ""},
		"advice for none": {advice, tree{"cmd/d/main.go": commands, "a.md": "run `d fly`"}, "tells to run `d fly`"},

		"a manual": {manuals, tree{"cmd/d/main.go": commands, "packaging/man/d.8": `.B d go
.B \-\-fast \-\-config \-\-help`}, ""},
		"a manual without a command":    {manuals, tree{"cmd/d/main.go": commands, "packaging/man/d.8": `\-\-fast \-\-config`}, "the command go"},
		"a manual without a flag":       {manuals, tree{"cmd/d/main.go": commands, "packaging/man/d.8": `go \-\-config`}, "the flag --fast"},
		"a manual with a flag too much": {manuals, tree{"cmd/d/main.go": commands, "packaging/man/d.8": `go \-\-config \-\-fast \-\-slow`}, "--slow, which d does not take"},
	} {
		bad := c.rule(c.tree)
		switch {
		case c.want == "" && len(bad) > 0:
			t.Errorf("%s is refused: %v", name, bad)
		case c.want != "" && (len(bad) != 1 || !strings.Contains(bad[0], c.want)):
			t.Errorf("%s: got %q, want one complaint with %q", name, bad, c.want)
		}
	}
}

const commands = `package main

func root() {
	c := &cobra.Command{Use: "d"}
	c.PersistentFlags().String("config", "x", "file")
	s := &cobra.Command{Use: "go THING"}
	s.Flags().BoolVarP(&fast, "fast", "f", false, "fast")
}
`

func TestTracesAreHostsAndFolders(t *testing.T) {
	got := traces([]string{"https://proxy.example.net/mod,direct", "off", "/home/x/go/pkg/mod"}, "/home/x/src")
	if want := "proxy.example.net /home/x/go/pkg/mod /home/x/src/ /home/x/shared"; strings.Join(got, " ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := traces(nil, "/src"); len(got) != 0 {
		t.Errorf("a short folder is looked for: %q", got)
	}
}
