package invariant

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// The labels of containers.
const (
	labelNode = "nodectl.dev/node"
	labelPod  = "io.kubernetes.pod.name"
	labelUID  = "io.kubernetes.pod.uid"
)

// Life is one run of a container, according to the runtime's events.
type Life struct {
	ID, Box  string // Box is its sandbox's
	Node     string // the name of its agent's node
	Pod, UID string // Pod with its node suffix
	Name     string
	Attempt  uint32
	From, To time.Time // From is zero until it runs, To while it runs
	Exit     int32
	Reason   string
}

// String names the run, for messages.
func (l Life) String() string {
	return fmt.Sprintf("%s/%s attempt %d (%.12s)", l.Pod, l.Name, l.Attempt, l.ID)
}

// livesAt reports whether the container ran at a moment.
func (l Life) livesAt(t time.Time) bool {
	return !l.From.IsZero() && l.From.Before(t) && (l.To.IsZero() || l.To.After(t))
}

// A Witness records every container of a node from the runtime's events: when it ran and how it
// exited, including containers that the runtime no longer lists. After an outage the Witness lists
// the runtime, to learn as much as possible of the changes in between.
type Witness struct {
	cancel context.CancelFunc
	conn   *grpc.ClientConn // its own: a call that waits for the runtime delays no other client
	wg     sync.WaitGroup

	mu    sync.Mutex
	lives map[string]*Life  // by container ID
	boxes map[string]string // pod by sandbox ID
}

// Observe starts to witness a node. It returns when no later event can be missed.
func Observe(n *node.Node) (*Witness, error) {
	conn, err := grpc.NewClient(n.Endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: pause, Multiplier: 1, MaxDelay: pause},
			MinConnectTimeout: wait.Stall, // without it, gRPC gives up a connection after pause
		}))
	if err != nil {
		return nil, err
	}
	rt := cri.NewRuntimeServiceClient(conn)
	ctx, cancel := context.WithCancel(context.Background())
	w := &Witness{cancel: cancel, conn: conn, lives: make(map[string]*Life), boxes: make(map[string]string)}
	stream, err := rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})
	if err != nil {
		w.Close()
		return nil, err
	}
	w.wg.Go(func() {
		_ = w.record(stream) // it ends with the runtime, or with ctx
		for ctx.Err() == nil {
			_ = wait.Try(func() error { // one stream after the other
				if ctx.Err() != nil {
					return nil
				}
				stream, err := rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})
				if err != nil {
					return err
				}
				w.list(ctx, rt)
				return w.record(stream)
			})
		}
	})
	return w, nil
}

// pause is how long the connection waits before it tries a missing runtime again.
const pause = 50 * time.Millisecond

// Close ends the witness.
func (w *Witness) Close() {
	w.cancel()
	w.wg.Wait()
	_ = w.conn.Close() // no call is under way
}

// record records one stream of events, and returns the error that ended it.
func (w *Witness) record(stream cri.RuntimeService_GetContainerEventsClient) error {
	for {
		e, err := stream.Recv()
		if err != nil {
			return err
		}
		w.note(e)
	}
}

// list records the runtime's current list.
func (w *Witness) list(ctx context.Context, rt cri.RuntimeServiceClient) {
	all, err := rt.ListContainers(ctx, &cri.ListContainersRequest{})
	if err != nil {
		return
	}
	for _, c := range all.Containers {
		if s, err := rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: c.Id}); err == nil {
			w.mu.Lock()
			w.status(s.Status, c.PodSandboxId)
			w.mu.Unlock()
		}
	}
}

func (w *Witness) note(e *cri.ContainerEventResponse) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range e.ContainersStatuses {
		w.status(s, e.GetPodSandboxStatus().GetId())
	}
	if b := e.PodSandboxStatus; b != nil {
		w.boxes[b.Id] = b.Metadata.GetName()
	}
	end := e.ContainerEventType == cri.ContainerEventType_CONTAINER_STOPPED_EVENT ||
		e.ContainerEventType == cri.ContainerEventType_CONTAINER_DELETED_EVENT
	if l := w.lives[e.ContainerId]; l != nil && end && l.To.IsZero() {
		l.To = time.Unix(0, e.CreatedAt)
	}
}

// status records the runtime's status of one container. The lock is held.
func (w *Witness) status(s *cri.ContainerStatus, box string) {
	l := w.lives[s.Id]
	if l == nil {
		l = &Life{ID: s.Id, Name: s.Metadata.GetName(), Attempt: s.Metadata.GetAttempt(),
			Node: s.Labels[labelNode], Pod: s.Labels[labelPod], UID: s.Labels[labelUID]}
		w.lives[s.Id] = l
	}
	if box != "" {
		l.Box = box
	}
	if s.StartedAt > 0 {
		l.From = time.Unix(0, s.StartedAt)
	}
	if s.FinishedAt > 0 {
		l.To, l.Exit, l.Reason = time.Unix(0, s.FinishedAt), s.ExitCode, s.Reason
	}
}

// Who returns the owner of an ID: "nothing" for one without an event.
func (w *Witness) Who(id string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if l := w.lives[id]; l != nil {
		return l.String()
	}
	if pod, ok := w.boxes[id]; ok {
		return "the sandbox of " + pod
	}
	return "nothing"
}

// Lives returns the runs that started under a node name, in order.
func (w *Witness) Lives(node string) []Life {
	w.mu.Lock()
	defer w.mu.Unlock()
	var all []Life
	for _, l := range w.lives {
		if l.Node == node && !l.From.IsZero() {
			all = append(all, *l)
		}
	}
	slices.SortFunc(all, func(a, b Life) int { return a.From.Compare(b.From) })
	return all
}
