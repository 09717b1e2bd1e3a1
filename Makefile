# make help lists the targets.

SHELL := /bin/bash
GO ?= go

BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w'

# What embedding needs, made from hack/bundle's modules; git ignores it.
EMBED := pkg/bundle/bundle.tar.zst

.DEFAULT_GOAL := build

## build: bin/nodectl with its container runtime, bin/nodectl-slim without
.PHONY: build
build: slim bundle
	$(BUILD) -tags bundle -o bin/nodectl .

## slim: bin/nodectl-slim alone, which needs nothing but Go
.PHONY: slim
slim:
	$(BUILD) -o bin/nodectl-slim .

## bundle: the container runtime, in bin/bundle
.PHONY: bundle
bundle: sysdeps
	hack/bundle/build --embed $(EMBED)

## images: the examples' and the tests' images, as archives in bin/images
.PHONY: images
images:
	@$(GO) run ./hack/images

# The control plane of the tests, in bin/cluster.
.PHONY: test-cluster-bin
test-cluster-bin:
	@hack/cluster/build

## cross: compiled for macOS, Windows and linux/arm64; the output is discarded
.PHONY: cross
cross:
	hack/cross

## test: everything continuous integration runs (root)
.PHONY: test
test: test-unit fuzz test-e2e

# Packages under the race detector, the architecture, the command line's scripts, drift
# of what is generated. Volumes, cgroups and statistics need root: what they show are
# real mounts and groups, and what a real containerd says.
.PHONY: test-unit
test-unit: bundle cross
	$(GO) vet ./...
	$(GO) test -race -timeout 20m ./cmd/... ./docs/... ./pkg/... ./hack/...
	cd test/parity && $(GO) vet ./... && $(GO) test ./...

## test-long: the long forms of scenarios on a real containerd (root, half an hour)
.PHONY: test-long
test-long: build images test-cluster-bin
	NODECTL_E2E_LONG=1 $(GO) test -count=1 -timeout 1h -p 1 ./test/e2e ./test/kube

## fuzz: every fuzz target for FUZZTIME (3000x: so many inputs; or a time, as 30s)
FUZZTIME ?= 3000x
.PHONY: fuzz
fuzz:
	hack/fuzz $(FUZZTIME)

# On a real containerd, one package after the other: each starts nodes and servers that
# keep the machine busy. The cluster's kube-proxy writes into the packet filter of the
# whole machine besides. In a fresh clone test/kube first compiles all of nodectl with a
# clock of its own.
.PHONY: test-e2e
test-e2e: build images test-cluster-bin kubelet-bin
	@if [[ $$(id -u) != 0 ]]; then \
		echo 'not run, because it needs root: the end-to-end tests on a real containerd:' >&2; \
		$(GO) list ./test/... | sed 's/^/  /' >&2; \
		exit 1; \
	fi
	$(GO) test -count=1 -timeout 30m -p 1 ./test/...

## test-vm: cgroup v2 and the unit under systemd, in a virtual machine (root, qemu)
.PHONY: test-vm
test-vm: build images
	hack/vm/run ''

## lint: golangci-lint, goreleaser check, govulncheck
.PHONY: lint
lint:
	hack/lint

## demo: pods of examples/ served, edited, and taken down again (root)
.PHONY: demo
demo: build images
	hack/demo

## bench: the figures of docs/benchmarks.md (root)
.PHONY: bench
bench: build images
	$(GO) run ./test/bench

# The real kubelet that nodectl is compared with, in bin/kubelet.
.PHONY: kubelet-bin
kubelet-bin:
	@hack/kubelet/build

## parity: nodectl beside the real kubelet, docs/fidelity.md (root, minutes)
.PHONY: parity
parity: bundle kubelet-bin test-cluster-bin
	cd test/parity && $(GO) run . -out ../../docs/fidelity.md

## bench-kubelet: nodectl against the real kubelet, for docs/benchmarks.md (root)
.PHONY: bench-kubelet
bench-kubelet: bundle images kubelet-bin
	$(GO) run ./test/benchkubelet --docs

## parity-cluster: nodectl beside the real kubelet as nodes of a cluster, docs/fidelity-cluster.md (root, minutes)
.PHONY: parity-cluster
parity-cluster: bundle kubelet-bin test-cluster-bin
	$(GO) run ./test/paritycluster -write

## bench-cluster: nodectl against the real kubelet as nodes of a cluster, for docs/benchmarks.md (root)
.PHONY: bench-cluster
bench-cluster: bundle images kubelet-bin test-cluster-bin
	$(GO) run ./test/benchcluster --docs

## soak: 2,000 random pods, edits, crashes and faults, bin/soak (root, half an hour)
SOAK ?= --seed 1 --pods 2000
.PHONY: soak
soak: bundle images
	$(GO) run ./test/soak $(SOAK)

## clean: removes what was built
.PHONY: clean
clean:
	rm -rf bin $(EMBED)

## help: these lines
.PHONY: help
help:
	@sed -n 's/^## \([a-z-]*\): /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

# System packages that Go cannot bring; silent where they are.
.PHONY: sysdeps
sysdeps:
	@hack/sysdeps
