package agent

import (
	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/image"
)

// Config is everything an Agent needs.
type Config struct {
	look.Config
	Build Build
	// ExternalCloud means that a cloud controller sets the node's addresses.
	ExternalCloud bool
	// Configz returns the settings as /configz shows them; Run needs it.
	Configz func() ([]byte, error)
	Pulls   PullLines
	// SetVerbosity changes the verbosity of the log, a number of klog.
	SetVerbosity func(int)
}

// Build is the version of this program.
type Build struct {
	Version string // of nodectl
	Commit  string
	Date    string
	Dirty   bool
}

// treeState returns whether a program was built from an unmodified commit.
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
	// Lines gets all current pulls, and the progress of those for which it is known;
	// at the end it gets none. It reports whether progress is shown.
	Lines(pulls []image.Pull, far map[string]bundle.Download) bool
}
