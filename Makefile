# make help lists the targets.

SHELL := /bin/bash
GO ?= go

# grpcnotrace leaves out grpc's trace pages, whose templates cost 20 MB (docs/decisions/0031).
TAGS  := grpcnotrace
BUILD := CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w'

# Programs of this repository, in the variant of nodectl: dependencies are compiled once.
RUN := CGO_ENABLED=0 $(GO) run -trimpath

# What embedding needs, made from hack/bundle's modules; git ignores it.
EMBED := pkg/bundle/bundle.tar.zst

.DEFAULT_GOAL := build

## build: bin/nodectl with its container runtime, bin/nodectl-slim without
.PHONY: build
build: slim bundle
	$(BUILD) -tags $(TAGS),bundle -o bin/nodectl .

## slim: bin/nodectl-slim alone, which needs nothing but Go
.PHONY: slim
slim:
	$(BUILD) -tags $(TAGS) -o bin/nodectl-slim .

## bundle: the container runtime, in bin/bundle
.PHONY: bundle
bundle: sysdeps
	hack/bundle/build --embed $(EMBED)

## images: the examples' and the tests' images, as archives in bin/images
.PHONY: images
images:
	@$(RUN) ./hack/images

# The control plane of the tests, in bin/cluster.
.PHONY: test-cluster-bin
test-cluster-bin:
	@hack/cluster/build

## cross: compiled for macOS, Windows and linux/arm64; the output is discarded
.PHONY: cross
cross:
	hack/cross

## test: the first tier, which continuous integration runs (root, ten minutes)
.PHONY: test
test:
	@$(MAKE) --no-print-directory -j2 build images test-cluster-bin
	@$(RUN) ./hack/test

## test-full: the full tier: slow tests, fuzzing, other systems, release (root)
.PHONY: test-full
test-full:
	@$(MAKE) --no-print-directory -j2 build images test-cluster-bin kubelet-bin
	@$(RUN) ./hack/test -tier full -timeout 2h -report docs/test-full.md

# Packages whose tests need neither root nor a container runtime.
ROOTLESS = ./cmd/... ./docs/... $(shell $(GO) list ./pkg/... | grep -vE '/pkg/(cgroup|stats|userns|volume)$$')

## test-rootless: without root or runtime: pure packages, engine in fake time, scripts
.PHONY: test-rootless
test-rootless:
	@CGO_ENABLED=0 $(GO) test -trimpath -tags $(TAGS) -ldflags '-s -w' $(ROOTLESS)

## fuzz: every fuzz target for FUZZTIME (3000x: so many inputs; or a time, as 30s)
FUZZTIME ?= 3000x
.PHONY: fuzz
fuzz:
	hack/fuzz $(FUZZTIME)

## test-vm: cgroup v2 and the unit under systemd, in a virtual machine (root, qemu)
.PHONY: test-vm
test-vm: build images
	hack/vm/run ''

## lint: golangci-lint over every module, as make test does
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
