// Package podview derives the state of one pod from the desired spec, the state in the runtime, the
// record and the results of probes. It derives the instance of each sandbox, the newest container
// of an instance, the current init container and duplicates. It also derives the grace of a stop,
// and how a failed pull is shown.
//
// It sits between pod, which has the types, and plan and status, which call it. Each fact is
// derived once. Where the planner and the status have to differ, there are two named
// functions, and a test that says why.
//
// The package has no I/O, no clock and no goroutine, and makes no decision.
package podview
