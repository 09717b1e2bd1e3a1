package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// life is one container's, as the runtime told it.
type life struct {
	id       string
	node     string // pod.LabelNode's value
	pod      string // with its node suffix
	name     string
	attempt  uint32
	from, to time.Time // to is zero while it lives
	exit     int32
	reason   string
}

// witness writes down the life of every container of a node from the runtime's
// events: which came to be, from when to when, and how they ended, also of those
// whose records are gone.
type witness struct {
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu    sync.Mutex
	lives map[string]*life  // by container ID
	boxes map[string]string // pod by sandbox ID
}

func observe(n *node.Node) (*witness, error) {
	ctx, cancel := context.WithCancel(context.Background())
	w := &witness{cancel: cancel, lives: make(map[string]*life), boxes: make(map[string]string)}
	stream, err := n.Runtime.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		cancel()
		return nil, err
	}
	w.wg.Go(func() {
		for {
			e, err := stream.Recv()
			if err != nil {
				return
			}
			w.note(e)
		}
	})
	return w, nil
}

func (w *witness) close() {
	w.cancel()
	w.wg.Wait()
}

func (w *witness) note(e *cri.ContainerEventResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range e.ContainersStatuses {
		l := w.lives[s.Id]
		if l == nil {
			l = &life{id: s.Id, name: s.Metadata.GetName(), attempt: s.Metadata.GetAttempt(),
				node: s.Labels["nodectl.dev/node"], pod: s.Labels["io.kubernetes.pod.name"]}
			w.lives[s.Id] = l
		}
		if s.StartedAt > 0 {
			l.from = time.Unix(0, s.StartedAt)
		}
		if s.FinishedAt > 0 {
			l.to, l.exit, l.reason = time.Unix(0, s.FinishedAt), s.ExitCode, s.Reason
		}
	}
	if b := e.PodSandboxStatus; b != nil {
		w.boxes[b.Id] = b.Metadata.GetName()
	}
	end := e.ContainerEventType == cri.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		e.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT
	if l := w.lives[e.ContainerId]; l != nil && end && l.to.IsZero() {
		l.to = time.Unix(0, e.CreatedAt)
	}
}

// who returns what an ID was of.
func (w *witness) who(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.lives[id]; l != nil {
		return l.String()
	}
	if pod, ok := w.boxes[id]; ok {
		return "the sandbox of " + pod
	}
	return "nobody"
}

// of returns the lives that began under a node name, in their order.
func (w *witness) of(node string) []life {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []life
	for _, l := range w.lives {
		if l.node == node && !l.from.IsZero() {
			all = append(all, *l)
		}
	}
	slices.SortFunc(all, func(a, b life) int { return a.from.Compare(b.from) })
	return all
}

// twice returns a line for every pair of lives of one container that overlap.
func (w *witness) twice(node string) []string {
	all := w.of(node)
	var found []string
	for i, a := range all {
		for _, b := range all[i+1:] {
			if a.pod == b.pod && a.name == b.name && (a.to.IsZero() || b.from.Before(a.to)) {
				found = append(found, fmt.Sprintf("%s lived until %s, %s began at %s", a, a.to.Format(clock), b, b.from.Format(clock)))
			}
		}
	}
	return found
}

const clock = "15:04:05.000"

func (l life) String() string {
	return fmt.Sprintf("%s/%s attempt %d (%.12s)", l.pod, l.name, l.attempt, l.id)
}
