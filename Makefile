# make help lists the targets. A line "##@ GROUP" begins a group, and each line
# "## TARGET: TEXT" describes one target.

SHELL := /bin/bash
GO ?= go

# grpcnotrace leaves out grpc's trace pages, whose templates cost 20 MB (docs/decisions/0031).
TAGS  := grpcnotrace
BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w'

# Programs of this repository, in the variant of nodectl: dependencies are compiled once.
RUN := CGO_ENABLED=0 $(GO) run -trimpath

# The archive to embed, made from hack/bundle's modules; git ignores it.
EMBED := pkg/bundle/bundle.tar.zst

.DEFAULT_GOAL := build

##@ Start here
## demo: build nodectl, run the examples, edit two of them, and remove everything (root)
.PHONY: demo
demo: build images
	hack/demo

##@ Build
## build: build bin/nodectl with its container runtime, and bin/nodectl-slim (the default)
.PHONY: build
build: slim bundle
	$(BUILD) -tags $(TAGS),bundle -o bin/nodectl .

## slim: build only bin/nodectl-slim, without a container runtime; needs only Go
.PHONY: slim
slim:
	$(BUILD) -tags $(TAGS) -o bin/nodectl-slim .

## bundle: build the bundled container runtime in bin/bundle
.PHONY: bundle
bundle: sysdeps
	hack/bundle/build --embed $(EMBED)

## images: build the images of the examples and tests, as archives in bin/images
.PHONY: images
images:
	@$(RUN) ./hack/images

# The control plane of the tests, in bin/cluster.
.PHONY: test-cluster-bin
test-cluster-bin:
	@hack/cluster/build

## cross: compile for macOS, Windows and linux/arm64, and discard the output
.PHONY: cross
cross:
	hack/cross

##@ Test
# make runs the binary itself: go run would not pass SIGTERM to it.
TESTS = CGO_ENABLED=0 $(GO) build -trimpath -o bin/run-tests ./hack/test && exec bin/run-tests

## test: run the first tier, as CI does (root, ten minutes)
.PHONY: test
test:
	@$(MAKE) --no-print-directory -j2 build images test-cluster-bin
	@$(TESTS)

## test-full: run the full tier: slow tests, fuzzing, cross builds, release checks (root, two hours)
.PHONY: test-full
test-full:
	@$(MAKE) --no-print-directory -j2 build images test-cluster-bin kubelet-bin csi-bin dra-bin
	@hack/e2enode/build
	@$(TESTS) -tier full -lanes 2 -timeout 2h -report docs/test-full.md

## test-full-again: run the failed and interrupted tests of the last test-full again (root)
.PHONY: test-full-again
test-full-again:
	@$(MAKE) --no-print-directory -j2 build images test-cluster-bin kubelet-bin csi-bin dra-bin
	@hack/e2enode/build
	@$(TESTS) -tier full -again -lanes 2 -timeout 2h -report docs/test-full.md

# Packages whose tests need neither root nor a container runtime.
ROOTLESS = ./cmd/... ./docs/... $(shell $(GO) list ./pkg/... | grep -vE '/pkg/(cgroup|confine|csi|dns/process|service/nft|stats|userns|volume)$$')

## test-rootless: run the tests that need neither root nor a container runtime
.PHONY: test-rootless
test-rootless:
	@CGO_ENABLED=0 $(GO) test -trimpath -tags $(TAGS) -ldflags '-s -w' $(ROOTLESS)

## fuzz: run every fuzz target; FUZZTIME is a number of inputs (3000x) or a time (30s)
FUZZTIME ?= 3000x
.PHONY: fuzz
fuzz:
	hack/fuzz $(FUZZTIME)

## test-vm: test cgroup v2 and the systemd unit in a virtual machine (root, qemu)
.PHONY: test-vm
test-vm: build images
	hack/vm/run ''

## lint: run golangci-lint; make test includes it
.PHONY: lint
lint:
	hack/lint

# The DRA example driver of the tests, in bin/dra.
.PHONY: dra-bin
dra-bin:
	@hack/dra/build

##@ Measure and compare, on a quiet machine
## bench: measure nodectl, for docs/benchmarks.md (root)
.PHONY: bench
bench: build images
	$(GO) run ./test/bench

# The real kubelet that nodectl is compared with, in bin/kubelet.
.PHONY: kubelet-bin
kubelet-bin:
	@hack/kubelet/build

# The CSI sidecars and the driver of the tests, in bin/csi.
.PHONY: csi-bin
csi-bin:
	@hack/csi/build

## parity: compare nodectl with the real kubelet, for docs/fidelity.md (root, minutes)
.PHONY: parity
parity: bundle kubelet-bin test-cluster-bin
	$(GO) run ./test/parity -out docs/fidelity.md

## bench-kubelet: measure nodectl and the real kubelet, for docs/benchmarks.md (root)
.PHONY: bench-kubelet
bench-kubelet: bundle images kubelet-bin
	$(GO) run ./test/benchkubelet --docs

## parity-cluster: compare both as nodes of a cluster, for docs/fidelity-cluster.md (root, minutes)
.PHONY: parity-cluster
parity-cluster: bundle kubelet-bin test-cluster-bin
	$(GO) run ./test/paritycluster -write

## parity-workloads: record kube-controller-manager, for docs/fidelity-workloads.md (minutes)
.PHONY: parity-workloads
parity-workloads: test-cluster-bin
	$(GO) run ./test/parityworkloads -write

## e2e-node: run Kubernetes' node suite with both agents, for docs/conformance.md (root, hours)
SHARD ?= 1/1
E2E_NODE ?= -class all
.PHONY: e2e-node
e2e-node: slim bundle kubelet-bin test-cluster-bin
	@hack/e2enode/build
	$(GO) run ./test/e2enode -shard $(SHARD) $(E2E_NODE)

## bench-cluster: measure both as nodes of a cluster, for docs/benchmarks.md (root)
.PHONY: bench-cluster
bench-cluster: bundle images kubelet-bin test-cluster-bin
	$(GO) run ./test/benchcluster --docs

## bench-dns: measure the DNS server at a fixed rate, for docs/benchmarks.md (root)
.PHONY: bench-dns
bench-dns:
	$(RUN) ./test/benchdns

## bench-services: measure changes of Services, for docs/benchmarks.md (root, minutes)
.PHONY: bench-services
bench-services:
	$(RUN) -tags $(TAGS) ./test/benchservices

# Debian's podman and compose that nodectl is compared with, in bin/rollout.
.PHONY: rollout-bin
rollout-bin:
	@hack/rollout/build

## bench-rollout: count failed requests of all arms in ROUNDS updates and bad versions (root, hours)
ROUNDS ?= 100
.PHONY: bench-rollout
bench-rollout: slim bundle images kubelet-bin test-cluster-bin rollout-bin
	$(GO) run ./test/benchrollout --binary bin/nodectl-slim --rounds $(ROUNDS) $(if $(filter 100,$(ROUNDS)),--docs)

## soak: run 2,000 random pods, edits, crashes and faults, in bin/soak (root, half an hour)
SOAK ?= --seed 1 --pods 2000
.PHONY: soak
soak: bundle images
	$(GO) run ./test/soak $(SOAK)

## soak-disk: fill and empty a disk 200 times, in bin/soak-disk (root, two hours)
SOAK_DISK ?= --fill 200
.PHONY: soak-disk
soak-disk: bundle images
	$(GO) run ./test/soak --out bin/soak-disk $(SOAK_DISK)

## soak-devices: kill agents after writes and calls while pods use devices, for docs/soak-devices.md (root, minutes)
SOAK_DEVICES ?= -kills 1000 -reboots 50 -docs
.PHONY: soak-devices
soak-devices:
	$(GO) test -tags $(TAGS) -count=1 -timeout 2h -run TestSoak ./test/soakdevices -args $(SOAK_DEVICES)

## soak-agents: kill the real kubelet and nodectl at random while pods use devices (root, two hours)
.PHONY: soak-agents
soak-agents: bundle images kubelet-bin test-cluster-bin
	$(GO) run ./test/soakagents --arm kubelet --docs
	$(GO) run ./test/soakagents --arm nodectl --docs

##@ Documentation
## site: build docs/ as a web site in bin/site, and check every link
.PHONY: site
site:
	hack/site/build

## session: record docs/session.svg, the terminal session of the README (root, tmux)
.PHONY: session
session: build images
	hack/session/record

##@ Other
## clean: remove all build output (bin)
.PHONY: clean
clean:
	rm -rf bin $(EMBED)

## help: show this list
.PHONY: help
help:
	@awk 'BEGIN { print "nodectl runs Kubernetes pods on one machine. New here? Run, as root: make demo\n"; \
		print "Usage: make [TARGET]   (root): the target needs root" } \
		/^##@ / { print "\n" substr($$0, 5) } \
		/^## [a-z-]+: / { name = $$2; sub(/:$$/, "", name); text = $$0; sub(/^## [a-z-]+: /, "", text); printf "  %-15s %s\n", name, text }' \
		$(firstword $(MAKEFILE_LIST))

# Installs missing system packages; prints nothing if none is missing.
.PHONY: sysdeps
sysdeps:
	@hack/sysdeps
