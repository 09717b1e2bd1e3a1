package main

import (
	"context"
	"slices"
	"time"
)

// A system is a running program that has the Deployment and the Service, and its state.
type system interface {
	// url is the address of the Service, or of the port that stands for it.
	url() string
	// apply makes v the desired version, with the Deployment's settings, and returns once the program
	// has accepted or rejected it.
	apply(ctx context.Context, v version, s settings) error
	state(ctx context.Context) (state, error)
	// undo makes the good version v the desired one again, after another one has failed. It does
	// nothing if the program does so by itself.
	undo(ctx context.Context, v version, s settings) error
	// clear removes the Deployment and the Service, and returns once nothing is left of them.
	clear(ctx context.Context) error
}

// state is the state of the Deployment.
type state struct {
	complete  string   // the version of all pods, if all of them are available; "" if not
	failed    []string // versions that the program reports as failed
	available int32    // pods; unknown if the program does not show it
	text      string   // for people
}

// unknown stands for a number of available pods that the program does not show.
const unknown = -1

// hasFailed reports whether the program reports a version as failed.
func (s state) hasFailed(v version) bool { return slices.Contains(s.failed, v.name) }

// settings are those of the Deployment.
type settings struct {
	deadline, minReady time.Duration
}

// kind is a kind of arm: how it is started, and the texts of its measures.
type kind struct {
	name string
	// with starts the programs, runs do with them, and ends them. absent is the reason why the arm
	// cannot run on this machine.
	with   func(ctx context.Context, b *bench, do func(system) error) error
	absent func() string
	// pods and undo tell for the methods how many pods there are, and how a bad version ends.
	pods, undo string
	compared   bool // with nodectl: it runs mostCompared rounds at most
	watched    bool // connections that do not open are observed in the kernel
}

// kinds are the arms in the order of their turns. Docker changes the policy of the packet filter, so
// it is the last one.
var kinds = []kind{
	{
		name: "nodectl", with: withNodectl, absent: present, watched: true,
		pods: "3 replicas behind a Service", undo: "nodectl.dev/rollback: on-failure",
	},
	{
		name: "kubelet", with: withKubelet, absent: present, compared: true,
		pods: "3 replicas behind a Service (kube-proxy, iptables)",
		undo: "kubectl rollout undo by the bench, once the Deployment has the reason ProgressDeadlineExceeded",
	},
	{
		name: "podman", with: withPodman, absent: unpacked, compared: true,
		pods: "1 pod with a host port (podman kube play --replace: it has no Services, and pods cannot share the port)",
		undo: "kube play --replace of the good version by the bench, once kube play fails, or after progressDeadlineSeconds",
	},
	{
		name: "compose", with: withCompose, absent: unpacked, compared: true,
		pods: "1 container with a host port (docker-compose up -d: replicas cannot share one)",
		undo: "up -d of the good version by the bench, once up fails, or after progressDeadlineSeconds",
	},
}

// present is the absent of arms that run on each machine.
func present() string { return "" }

// mostCompared is how many rounds other arms than nodectl's have at most.
const mostCompared = 20

// roundsOf returns how many rounds an arm has.
func (b *bench) roundsOf(k kind) int {
	if k.compared {
		return min(b.rounds, mostCompared)
	}
	return b.rounds
}

// firstIDs is the distance between the measures of two arms.
const firstIDs = 10

// updatesOf and badOf are the measures of the arm with an index in kinds.
func updatesOf(i int) int { return updatesID + firstIDs*i }
func badOf(i int) int     { return badID + firstIDs*i }
