package arm

import (
	"context"
	"time"

	"github.com/nodectl/nodectl/test/report"
)

// Spacing separates two samples, so that the end of one does not disturb the next.
const Spacing = 400 * time.Millisecond

// FullName is the agents' name of a manifest's pod on this node.
func FullName(pod string) string { return pod + "-" + NodeName }

// Start drops the manifest of a pod and returns the moment before, and the event of the start
// of its container.
func (l *Lab) Start(ctx context.Context, p Place, pod string, s PodShape) (begin time.Time, e Seen, err error) {
	mark := l.Events.Mark()
	if begin, err = p.DropPod(pod, s); err == nil {
		e, err = l.AwaitStart(ctx, mark, pod)
	}
	return begin, e, err
}

// AwaitStart returns the event of the start of the container of a manifest's pod.
func (l *Lab) AwaitStart(ctx context.Context, mark int, pod string) (Seen, error) {
	return l.Events.Await(ctx, mark, "start of "+pod, Started(FullName(pod)))
}

// NoteStart adds to an arm how long a start took since begin, by CRI and, for a check, by the
// clock of the container's own program. It returns the moment in CRI.
func (l *Lab) NoteStart(ctx context.Context, m *report.Measure, arm string, begin time.Time, id string) (time.Time, error) {
	at, err := l.AwaitRunning(ctx, id)
	if err != nil {
		return at, err
	}
	stamp, err := l.Stamped(ctx, id)
	if err != nil {
		return at, err
	}
	m.Arm(arm).Add(at.Sub(begin))
	m.Arm(arm + ", by its own clock").Add(stamp.Sub(begin))
	return at, nil
}

// A Crash is the end of a container and the start of its replacement.
type Crash struct{ Killed, Stopped, Again time.Time }

// Crash kills a container's process after a wait, and adds to an arm how long it took until
// again has replaced it. mark is before the kill.
func (l *Lab) Crash(ctx context.Context, m *report.Measure, arm, id string, wait time.Duration, again func(mark int) (id string, err error)) (c Crash, err error) {
	if err := Pause(ctx, wait); err != nil {
		return c, err
	}
	mark := l.Events.Mark()
	if c.Killed, err = l.KillInit(ctx, id); err != nil {
		return c, err
	}
	down, err := l.Events.Await(ctx, mark, "end of the container", Stopped(id))
	if err != nil {
		return c, err
	}
	c.Stopped = down.At
	m.Arm(arm + ", kill → STOPPED event").Add(c.Stopped.Sub(c.Killed))
	if id, err = again(mark); err != nil {
		return c, err
	}
	if c.Again, err = l.AwaitRunning(ctx, id); err != nil {
		return c, err
	}
	m.Arm(arm).Add(c.Again.Sub(c.Killed))
	return c, Rest(ctx, m, Spacing)
}

// CrashPod is Crash for a pod of an agent.
func (l *Lab) CrashPod(ctx context.Context, m *report.Measure, arm, pod, id string, wait time.Duration) (Crash, error) {
	return l.Crash(ctx, m, arm, id, wait, func(mark int) (string, error) {
		e, err := l.AwaitStart(ctx, mark, pod)
		return e.GetContainerId(), err
	})
}

// CrashRaw is Crash for a raw pod, whose container is started again by plain calls.
func (l *Lab) CrashRaw(ctx context.Context, m *report.Measure, p *RawPod, wait time.Duration) error {
	_, err := l.Crash(ctx, m, "raw", p.Container, wait, func(int) (string, error) {
		err := l.StartRawContainer(ctx, p, 1)
		return p.Container, err
	})
	return err
}
