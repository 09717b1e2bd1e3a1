package pod

import (
	"time"

	v1 "k8s.io/api/core/v1"
)

// Record is what cannot be observed about one pod: it lives in
// <root-dir>/pods/<uid>/ and nowhere else.
type Record struct {
	Key
	UID string
	// Want is the spec the running instance was made from.
	Want *Spec
	// Instance is the number of the newest instance.
	Instance int
	// Attempts holds the next free attempt number by container name, "" for
	// the sandbox.
	Attempts map[string]uint32
	// StartTime is when this instance was first acknowledged (status.startTime).
	StartTime time.Time
	// StopSince is when stopping began; zero when it has not.
	StopSince time.Time
	// Terminal is the phase this instance ended in: "", Succeeded, Failed.
	Terminal v1.PodPhase
}
