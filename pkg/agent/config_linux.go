package agent

import (
	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/image"
)

// Config configures an Agent.
type Config struct {
	readonly.Config
	Build Build
	// ExternalCloud means that a cloud controller sets the node's addresses.
	ExternalCloud bool
	// Configz returns the answer of /configz; Run needs it.
	Configz func() ([]byte, error)
	// Pulls shows the pulls of a serving agent; Run needs it.
	Pulls PullLines
	// SetVerbosity sets the verbosity of the log, on klog's scale.
	SetVerbosity func(int)
}

// Build is the version of this program.
type Build struct {
	Version string // of nodectl
	Commit  string
	Date    string
	Dirty   bool
}

// treeState returns "dirty" if the program was built from a modified tree, else "clean".
func (b Build) treeState() string {
	if b.Dirty {
		return "dirty"
	}
	return "clean"
}

// PullLines shows pulls of images.
type PullLines interface {
	// Event is called for each start and end of a pull, in order.
	Event(image.Event)
	// Lines receives all current pulls, and their known progress by image. At the end it receives
	// none. It reports whether it shows progress.
	Lines(pulls []image.Pull, progress map[string]bundle.Download) bool
}
