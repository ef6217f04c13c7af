# Tripod: everything that is built, tested and tried goes through here. `make help` lists it.
# Output is kept in .tripod (ignored by git), what outlives a clone in $(TRIPOD_CACHE), /var/cache/tripod.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

T := .tripod
FLEET := test/fleet/fleet
export CGO_ENABLED := 0
export GOFLAGS := -trimpath -buildvcs=false

# Versions: 0.1.0~COMMITS for packages, so that a later commit is a later version; +TIME while there is something
# uncommitted. The Kubernetes version is the one that go.mod requires.
COMMITS := $(shell git rev-list --count HEAD 2>/dev/null || echo 0)
DIRTY := $(shell test -z "$$(git status --porcelain 2>/dev/null | head -n 1)" || date +%s)
VERSION := 0.1.0~$(COMMITS)$(if $(DIRTY),+$(DIRTY))
COMMIT := $(shell git rev-parse HEAD 2>/dev/null || echo unknown)
export SOURCE_DATE_EPOCH := $(shell git log -1 --format=%ct 2>/dev/null || echo 0)
KUBE := $(shell sed -n 's/^[[:space:]]*k8s.io\/kubernetes \(v[0-9.]*\).*/\1/p' go.mod | head -n 1)
# Stamped into the binaries by commits alone, so that an edit does not relink what it did not touch.
STAMP := $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,\
  -X $(p).gitVersion=$(KUBE)+tripod.0.1.0-$(COMMITS) -X $(p).gitMajor=$(word 1,$(subst ., ,$(KUBE:v%=%))) \
  -X $(p).gitMinor=$(word 2,$(subst ., ,$(KUBE:v%=%))) -X $(p).gitCommit=$(COMMIT) -X $(p).gitTreeState=$(if $(DIRTY),dirty,clean) \
  -X $(p).buildDate=$(shell date -u -d @$(SOURCE_DATE_EPOCH) +%Y-%m-%dT%H:%M:%SZ))
LDFLAGS := -s -w -X main.version=$(KUBE)+tripod.0.1.0-$(COMMITS) $(STAMP)

# Tests that need the fleet or the guest are not unit tests.
UNIT = $(shell go list ./... | grep -v -E '/test/(e2e|bench)(/|$$)')

.PHONY: conformance conformance-build conformance-quick etcd-suite overload help deps build deb repo images up redeploy down test vet unit guest e2e linearizability bench bench-store powercuts fuzz lint clean

help: ## list what make can do
	@sed -n -E 's/^([a-z0-9-]+):[^#]*## (.*)/  make \1 \t\2/p' $(MAKEFILE_LIST) | expand -t 18

deps: ## install the Debian packages that building and testing need
	@packaging/build-deps

build: ## controld, noded, kubectl and etcdctl, static, in .tripod/bin
	@mkdir -p $(T)/bin
	@echo "building $(VERSION) (a first build of Kubernetes' API takes about 15 minutes on 2 cores)"
	@go build -ldflags '$(LDFLAGS)' -o $(T)/bin/ ./cmd/controld ./cmd/noded ./cmd/kubectl
	@go build -ldflags '-s -w' -o $(T)/bin/etcdctl go.etcd.io/etcd/etcdctl/v3

deb: deps build ## Debian packages in .tripod/deb
	@images/build $(T)/images pause
	@packaging/build-debs '$(VERSION)' $(T)/bin $(T)/deb

repo: deb ## apt repository of the packages and of all that they need, in .tripod/repo
	@packaging/build-repo $(T)/deb $(T)/repo

images: deps ## image archives for the demo and the tests, in .tripod/images
	@images/build $(T)/images

up: repo images ## three hosts, a cluster installed from the packages, an application on it
	@test/fleet/up.sh

redeploy: repo images ## upgrade the running fleet's packages to this tree
	@test/fleet/up.sh upgrade

down: ## remove the hosts and everything that up made on this machine
	@$(FLEET) down
	@rm -rf $(T)/kubeconfig $(T)/etcd
	@echo "down: the fleet is gone"

vet: ## go vet
	@.ci/gotest vet go vet ./...

unit: deps ## unit tests, root's network namespaces included
	@.ci/gotest unit go test -timeout 15m $(UNIT)

guest: deps ## tests that need a kernel of their own, under QEMU: packet flow over IPVS and iptables, noded's reload
	@.ci/gotest guest test/guest/run ./dataplane/flow,./cmd/noded -test.v

e2e: up ## end-to-end tests on the fleet
	@.ci/gotest e2e go test ./test/e2e/... -count=1 -v -timeout 45m || { $(FLEET) collect $(T)/logs/fleet; exit 1; }

test: deps ## everything: vet, unit, guest, end-to-end; fails if any of them does
	@.ci/all

# Upstream's tests take the version that they are for from the link.
conformance-build: deps
	@mkdir -p $(T)/bin
	@echo "building Kubernetes' conformance tests $(KUBE) (a first build takes about 5 minutes on 2 cores)"
	@go build -ldflags '-s -w' -o $(T)/bin/ github.com/onsi/ginkgo/v2/ginkgo
	@go test -c -vet=off -ldflags '-s -w $(foreach p,k8s.io/component-base/version k8s.io/client-go/pkg/version,-X $(p).gitVersion=$(KUBE) \
	  -X $(p).gitMajor=$(word 1,$(subst ., ,$(KUBE:v%=%))) -X $(p).gitMinor=$(word 2,$(subst ., ,$(KUBE:v%=%))))' -o $(T)/bin/e2e.test k8s.io/kubernetes/test/e2e
	@images/build $(T)/images/conformance conformance

CONFORMANCE = go run ./test/conformance -bin $(T)/bin -kubectl $(T)/bin/kubectl -images $(T)/images/conformance

# FOCUS='\[sig-apps\]' SKIP=… choose, RESUME=1 runs only what failed or did not run last time, PROCS=4 tests at a time.
conformance: up conformance-build ## Kubernetes' conformance tests; FOCUS=… SKIP=… RESUME=1; summary and junit in .tripod/conformance
	@$(CONFORMANCE) -out $(T)/conformance -focus '$(FOCUS)' -skip '$(SKIP)' -procs $(or $(PROCS),4) $(if $(RESUME),-resume)

# Some of every SIG, in a few minutes.
conformance-quick: up conformance-build
	@$(CONFORMANCE) -out $(T)/conformance-quick -quick

linearizability: ## three store servers under faults, judged by etcd's robustness validators; TIME=30m (default 10m) SEED=n
	@mkdir -p $(T)/linearizability
	@go test ./test/linearizability -run '^TestLong$$' -count=1 -v -timeout 24h -time $(or $(TIME),10m) -seed $(or $(SEED),0) -keep $(CURDIR)/$(T)/linearizability

# FACTOR=4: as many clients and objects as the unit tests have, four times.
FACTOR ?= 4
overload: ## the API under watches that nobody reads, storms of watches, and lists without limits
	@TRIPOD_OVERLOAD_FACTOR=$(FACTOR) .ci/gotest overload go test ./apiserver -count=1 -v -run 'HurtNobody|AtOnce' -timeout 30m
	@grep -h -E 'watches|lists' $(T)/logs/overload.log

etcd-suite: deps ## etcd's own tests against the store behind etcd's flags; output of each in .tripod/etcd-suite
	@rm -rf $(T)/etcd-suite && mkdir -p $(T)/etcd-suite
	@TRIPOD_ETCD_SUITE=$(CURDIR)/$(T)/etcd-suite go test ./test/etcdsuite -count=1 -v -timeout 180m

bench: up ## measure; tables on screen, .tripod/bench/NAME.json
	@mkdir -p $(T)/bench
	@TRIPOD_BENCH=$(CURDIR)/$(T)/bench go test -p 1 $$(go list ./... | grep '/bench$$') -count=1 -v -run '^TestBench' -timeout 60m

# A part alone: make bench-store PART=puts (puts, reads, watch, embedded, million).
PART ?= .
bench-store: ## measure the store beside etcd, three processes each; .tripod/bench/store.json
	@mkdir -p $(T)/bench
	@TRIPOD_BENCH=$(CURDIR)/$(T)/bench go test ./test/benchstore -count=1 -v -run '^TestBench/$(PART)' -timeout 30m

# CUTS=300 for more of them, SEED=N to see one run again.
CUTS ?= 100
powercuts: ## power cuts under load: no acknowledged write lost
	@RAFTFSM_CUTS=$(CUTS) RAFTFSM_SEED=$(SEED) .ci/gotest powercuts go test ./raftfsm -count=1 -v -run '^TestPowerCut' -timeout 60m
	@grep -h -E 'acknowledged over|seed' $(T)/logs/powercuts.log

FUZZTIME ?= 2m
FUZZ := ./store ./raftfsm ./etcdapi $(wildcard ./backup ./backup/*)
fuzz: ## each fuzz target of the store in turn, for FUZZTIME (2m)
	@.ci/fuzz $(FUZZTIME) $(FUZZ)

lint: deb ## gofmt, go vet, lintian
	@test -z "$$(gofmt -l $$(git ls-files '*.go'))" || { echo "not in gofmt's form:"; gofmt -l $$(git ls-files '*.go'); exit 1; }
	@go vet ./...
	@lintian --allow-root --fail-on error $(T)/deb/*.deb

clean: down ## down, and everything built
	@rm -rf $(T)
