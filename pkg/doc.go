// Package pkg holds the stations a pod passes on its way from a manifest to
// containers, and the test that keeps them apart.
//
//	source/*   read wanted pods: file, http, stdin   ─┐ complete sets, or "I could not look"
//	manifest   bytes → defaulted, validated pods     ─┘
//	podconfig  layers → one set; what changed, as PodUpdates
//	engine     sync loop, one worker a pod; Run, Once, Preview, Watch
//	plan       what to do next for one pod, and why
//	cri        the container runtime; pleg: what may have changed there
//	volume     directories and volumes; record: what cannot be observed
//	probe      one probe or hook, once, and when the next is due; logs: rotation
//	node       what this machine is and has: capacity, allocatable, labels
//	status     want + have + health → v1.PodStatus
//	sink/*     where status goes: journal
//	bundle     the runtime nodectl brings along
//	config     typed settings; ui: text and documents for people and scripts
//	pod        the words all of them speak
//
// Looking is a type, not a flag: Preview and Watch get an engine.Observer, which
// has no verb that changes anything.
//
// Who may know whom stands in one table, in arch_test.go. In short:
//
//   - pod, manifest, podconfig, plan and status are pure: no clock, no mutex, no
//     goroutine of their own but podconfig's readers; time comes in as "now".
//   - Adapters (cri, volume, logs, probe, node, sources, sinks) know neither each
//     other nor engine, podconfig, plan and status. cmd/wire*.go alone puts parts together.
//   - A goroutine is started with WaitGroup.Go by a function that does not return
//     before it has ended. A pod's worker recovers from its own panics, and from
//     those of what it called; nobody else does.
//
// The one rule: a change that touches three stations is two changes, or the
// design is wrong.
package pkg
