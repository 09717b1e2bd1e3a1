package csi

// Progress is the progress of a call to a driver, as recorded in the volume's vol_data.json.
type Progress int

// The values of Progress.
const (
	None  Progress = iota // no call has begun, or it was undone
	Begun                 // the call may have succeeded: an agent was killed, or the answer was lost
	Done                  // the call has succeeded since the machine booted
)

// State is the observed state of a volume, for one pod that uses it or used it.
type State struct {
	Wanted     bool // the pod is desired, and uses the volume
	Registered bool // the driver is connected
	Stages     bool // the driver stages this volume before it publishes it
	// Attachable means that a controller attaches the volume to the node first. Reported means that
	// the Node object names the volume in volumesInUse. Attached means that the controller has
	// attached it.
	Attachable, Reported, Attached bool
	Exclusive                      bool // only one pod may use it (ReadWriteOncePod)
	Others                         int  // other pods that use it, or are about to
	Staged                         Progress
	Published                      Progress // for this pod
	Mounted                        bool     // something is mounted on the pod's path
	Recorded                       bool     // the directory of the volume for this pod exists
	Renew                          bool     // the driver requires another call while the pod runs
	OtherLabel                     bool     // it is staged with another SELinux label than the pod's
}

// Action is the kind of a Step.
type Action string

// The actions.
const (
	Finish     Action = "finish"      // nothing is left to do
	WaitDriver Action = "wait-driver" // until the driver registers
	WaitUse    Action = "wait-use"    // until the other pod is gone
	WaitReport Action = "wait-report" // until the Node object names the volume in volumesInUse
	WaitAttach Action = "wait-attach" // until the controller has attached the volume
	Stage      Action = "stage"       // NodeStageVolume
	Publish    Action = "publish"     // NodePublishVolume
	Unpublish  Action = "unpublish"   // NodeUnpublishVolume
	Clear      Action = "clear"       // remove the directory of the volume for the pod
	Unstage    Action = "unstage"     // NodeUnstageVolume
	ClearStage Action = "clear-stage" // remove the directory of the staged volume
)

// Step is one action with its reason.
type Step struct {
	Action Action
	Why    string
}

// Next returns the next step for a volume and one pod. The caller observes again after each step.
func Next(s State) Step {
	if s.Wanted {
		return nextUp(s)
	}
	return nextDown(s)
}

// nextUp returns the next step for a desired pod.
func nextUp(s State) Step {
	switch {
	case s.Published == Done && s.Mounted && !s.Renew:
		return Step{Finish, "the volume is mounted for the pod"}
	case s.Exclusive && s.Others > 0:
		return Step{WaitUse, "volume uses the ReadWriteOncePod access mode and is already in use by another pod"}
	case !s.Registered:
		return Step{WaitDriver, "the driver is not registered"}
	case s.Attachable && !s.Reported:
		return Step{WaitReport, "Volume has not been added to the list of VolumesInUse in the node's volume status"}
	case s.Attachable && !s.Attached:
		return Step{WaitAttach, "Volume not attached according to node status"}
	case s.OtherLabel && s.Staged == Done && s.Published == None && s.Others > 0:
		return Step{WaitUse, "waiting for unmount of the volume, because it is already mounted to a different pod with a different SELinux label"}
	case s.OtherLabel && s.Staged == Done && s.Published == None:
		return Step{Unstage, "the volume is staged with the SELinux label of a pod that is gone"}
	case s.Stages && s.Staged != Done:
		return Step{Stage, "the driver stages volumes, and this one is not staged"}
	case s.Renew && s.Published == Done && s.Mounted:
		return Step{Publish, "the driver requires republishing"}
	}
	return Step{Publish, "the volume is not mounted for the pod"}
}

// nextDown returns the next step for a pod that is gone.
func nextDown(s State) Step {
	unpublished := s.Published == None && !s.Mounted
	switch {
	case !unpublished && !s.Registered:
		return Step{WaitDriver, "the driver is not registered, and the volume is published for the pod"}
	case !unpublished:
		return Step{Unpublish, "the pod does not use the volume any more"}
	case s.Recorded:
		return Step{Clear, "the volume is not published for the pod"}
	case s.Others > 0 || s.Staged == None:
		return Step{Finish, "nothing is left of the volume that no pod uses"}
	case !s.Registered:
		return Step{WaitDriver, "the driver is not registered, and the volume is staged"}
	case !s.Stages:
		return Step{ClearStage, "the driver does not stage volumes any more"}
	}
	return Step{Unstage, "no pod uses the volume"}
}
