package critest

import (
	"context"
	"fmt"
	"path"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Exec is one command that ran in a container: an exec probe or a hook.
type Exec struct {
	Key       pod.Key
	Container string
	Attempt   uint32
	Cmd       []string
	At        time.Duration // since the start, or Reset
}

// OnExec lets f decide the effect of commands in containers: Ends with After and Code, and Output.
// If f returns false, the command's words decide.
func (rt *Runtime) OnExec(f func(Exec) (Behaviour, bool)) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.execs = f
}

// Execs returns the commands that ran in containers, in the order of their starts.
func (rt *Runtime) Execs() []Exec {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	return append([]Exec(nil), rt.execLog...)
}

// ExecSync implements CRI for the commands of OnExec and those of Behaviour: exit, sleep,
// true and false; every other command succeeds and prints itself.
func (rt *Runtime) ExecSync(ctx context.Context, q *runtimeapi.ExecSyncRequest) (*runtimeapi.ExecSyncResponse, error) {
	if len(q.GetCmd()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "no command")
	}
	rt.mu.Lock()
	c := rt.containers[q.GetContainerId()]
	if c == nil {
		rt.mu.Unlock()
		return nil, rt.noContainer(q.GetContainerId())
	}
	if !c.running() {
		rt.mu.Unlock()
		return nil, status.Errorf(codes.Unknown, "failed to exec in container: container %q is not running", c.id)
	}
	m := c.config.GetMetadata()
	e := Exec{Key: c.key(), Container: m.GetName(), Attempt: m.GetAttempt(), Cmd: q.GetCmd(), At: time.Since(rt.start)}
	rt.execLog = append(rt.execLog, e)
	b := rt.execBehaviour(e)
	rt.mu.Unlock()

	limit, cancel := context.Background(), func() {}
	if q.GetTimeout() > 0 {
		limit, cancel = context.WithTimeout(limit, time.Duration(q.GetTimeout())*time.Second)
	}
	defer cancel()
	took := time.NewTimer(b.After)
	defer took.Stop()
	select {
	case <-took.C:
	case <-limit.Done():
		return nil, status.Errorf(codes.DeadlineExceeded, "timeout %ds exceeded: context deadline exceeded", q.GetTimeout())
	case <-c.done:
		return nil, status.Errorf(codes.Unknown, "failed to exec in container: container %q is not running", c.id)
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	a := &runtimeapi.ExecSyncResponse{ExitCode: b.Code, Stdout: []byte(b.Output)}
	if !b.Ends && b.Output == "" {
		a.Stdout = fmt.Appendln(nil, q.GetCmd())
	}
	return a, nil
}

// execBehaviour decides the effect of a command. The caller holds the mutex.
func (rt *Runtime) execBehaviour(e Exec) Behaviour {
	if rt.execs != nil {
		if b, ok := rt.execs(e); ok {
			return b
		}
	}
	switch path.Base(e.Cmd[0]) {
	case "true":
		return Behaviour{Ends: true}
	case "false":
		return Behaviour{Ends: true, Code: 1}
	}
	b := rt.behaviourOf(&runtimeapi.ContainerConfig{Command: e.Cmd})
	if path.Base(e.Cmd[0]) == "sleep" && !b.Ends {
		b.After = 1000 * time.Hour
	}
	return b
}
