// Package pkg has the packages on a pod's way from a manifest to containers, and the test
// of their dependencies.
//
//	source/*   read desired pods: file, http, stdin, etcd, an API server: complete sets, or an error
//	manifest   bytes → defaulted, validated pods
//	podconfig  layers → one set; its changes, as PodUpdates
//	engine     sync loop, one worker a pod; Run, Once
//	plan       the next steps for one pod, with reasons
//	forecast   the changes that serving a set would make; feed: the state of a running agent
//	cri        the container runtime; pleg: which pods may have changed there
//	volume     directories and volumes; record: facts that cannot be observed
//	probe      one probe or hook, once, and when the next is due; logs: rotation
//	node       the machine: capacity, allocatable, labels
//	status     spec + runtime state + health → v1.PodStatus
//	sink/*     send statuses: to a journal, to an API server
//	bundle     the bundled runtime
//	agent      assembles the parts; agent/readonly, its read-only half
//	config     typed settings; ui: text and documents for people and scripts
//	pod        the types that all of them share
//
// docs/architecture.md describes every package, its state and its goroutines.
//
// Read-only access is a type, not a flag: a forecast gets a plan.Observer, which has no
// method that changes anything.
//
// The tables in arch_test.go list which package may import which. In short:
//
//   - pod, manifest, podconfig, plan and status are pure: no clock, no mutex, no
//     goroutine of their own but podconfig's readers; time comes in as "now".
//   - Adapters (cri, volume, logs, probe, node, sources, sinks) import neither each
//     other nor engine, podconfig, plan and status. Only agent and agent/readonly connect them.
//   - A goroutine is started with WaitGroup.Go by a function that does not return
//     before it has ended. A pod's worker recovers from its own panics, and from
//     those of the code it called; no other code does.
//
// If a change touches three of these packages, split it or review the design.
package pkg
