package dra

import "strings"

// Progress is the progress of a driver with a claim, as recorded in the claim's file.
type Progress int

// The values of Progress.
const (
	None  Progress = iota // the driver was not called, or has unprepared the claim
	Begun                 // a call may have succeeded: an agent was killed, or the answer was lost
	Done                  // the driver has prepared the claim since the machine booted
)

// Driver is one driver of a claim.
type Driver struct {
	Name       string
	Progress   Progress
	Registered bool
}

// State is the observed state of a claim, for one pod that uses it or used it.
type State struct {
	Wanted   bool // the pod is desired, and uses the claim
	Recorded bool // the claim has a file
	Noted    bool // the file names the pod
	Others   int  // other pods that the file names
	Drivers  []Driver
}

// Action is the kind of a Step.
type Action string

// The actions.
const (
	Finish     Action = "finish"      // nothing is left to do
	WaitDriver Action = "wait-driver" // until the driver registers
	Note       Action = "note"        // name the pod in the file
	Prepare    Action = "prepare"     // NodePrepareResources
	Drop       Action = "drop"        // remove the pod from the file
	Unprepare  Action = "unprepare"   // NodeUnprepareResources
	Forget     Action = "forget"      // remove the file
)

// Step is one action, its driver and its reason.
type Step struct {
	Action Action
	Driver string
	Why    string
}

// Next returns the next step for a claim and one pod. The caller observes again after each step.
func Next(s State) Step {
	if s.Wanted {
		return nextUp(s)
	}
	return nextDown(s)
}

// nextUp returns the next step for a desired pod. No file is written before each driver is registered,
// so that a pod whose driver never registers can be deleted.
func nextUp(s State) Step {
	var next *Driver
	for i := range s.Drivers {
		d := &s.Drivers[i]
		if d.Progress == Done {
			continue
		}
		if !d.Registered {
			return Step{WaitDriver, d.Name, "DRA driver " + d.Name + " is not registered"}
		}
		if next == nil {
			next = d
		}
	}
	switch {
	case !s.Noted:
		return Step{Note, "", "the claim's file does not name the pod"}
	case next != nil:
		return Step{Prepare, next.Name, "the driver has not prepared the claim"}
	}
	return Step{Finish, "", "each driver has prepared the claim"}
}

// nextDown returns the next step for a terminated pod. A driver that is not registered does not delay the
// others.
func nextDown(s State) Step {
	switch {
	case !s.Recorded:
		return Step{Finish, "", "nothing is left of the claim"}
	case s.Others > 0 && s.Noted:
		return Step{Drop, "", "other pods use the claim"}
	case s.Others > 0:
		return Step{Finish, "", "other pods use the claim"}
	}
	var away []string
	for _, d := range s.Drivers {
		switch {
		case d.Progress == None:
		case d.Registered:
			return Step{Unprepare, d.Name, "no pod uses the claim"}
		default:
			away = append(away, d.Name)
		}
	}
	if len(away) > 0 {
		return Step{WaitDriver, away[0], "DRA driver " + strings.Join(away, ", ") + " is not registered"}
	}
	return Step{Forget, "", "no driver has prepared the claim"}
}
