package e2e

import (
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/invariant"
	"github.com/nodectl/nodectl/test/node"
)

// life is one run of a container, according to the runtime's events.
type life struct {
	id       string
	pod      string // with its node suffix
	name     string
	attempt  uint32
	from, to time.Time // to is zero while it runs
	exit     int32
	reason   string
	text     string
}

func (l life) String() string { return l.text }

// witness knows which containers ran when, including those that the runtime no longer lists.
type witness struct{ *invariant.Witness }

func observe(n *node.Node) (*witness, error) {
	w, err := invariant.Observe(n)
	return &witness{w}, err
}

func (w *witness) close() { w.Close() }

// who returns the owner of an ID.
func (w *witness) who(id string) string { return w.Who(id) }

// ofStage reports whether an ID is of a pod or container of that node name.
func (w *witness) ofStage(id, node string) bool {
	pod := strings.TrimPrefix(w.who(id), "the sandbox of ")
	pod, _, _ = strings.Cut(pod, "/")
	return strings.HasSuffix(pod, "-"+node)
}

// of returns the containers that started under a node name, in order.
func (w *witness) of(node string) []life {
	var all []life
	for _, l := range w.Lives(node) {
		all = append(all, life{l.ID, l.Pod, l.Name, l.Attempt, l.From, l.To, l.Exit, l.Reason, l.String()})
	}
	return all
}

// twice returns a line for every pair of runs of one container that overlap.
func (w *witness) twice(node string) []string {
	var found []string
	for _, v := range invariant.Twice(w.Lives(node)) {
		found = append(found, v.String())
	}
	return found
}

const clock = "15:04:05.000"
