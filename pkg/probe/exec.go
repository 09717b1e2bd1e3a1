package probe

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podenv"
)

// execute runs the probe's command in the container (C-1.29.13). Exit code 0 is success. Any other
// exit code, and a timeout, is failure.
func (p *Prober) execute(ctx context.Context, r pod.ProbeRequest, timeout time.Duration) error {
	if p.exec == nil {
		return errNoExec
	}
	exit, output, err := p.exec.ExecSync(ctx, r.ContainerID, command(r), timeout)
	switch {
	case err == nil && exit == 0:
		return nil
	case err == nil:
		return &pod.ProbeFailure{Message: printed(output)}
	case ctx.Err() != nil:
		return err
	case errors.Is(err, context.DeadlineExceeded), status.Code(err) == codes.DeadlineExceeded:
		return &pod.ProbeFailure{Message: fmt.Sprintf("command timed out: %q timed out after %s", strings.Join(command(r), " "), timeout)}
	}
	return err
}

var errNoExec = errors.New("commands cannot be run in containers here")

// printed is the kubelet's message for a failed command: the start of its output.
func printed(output []byte) string {
	return strings.ToValidUTF8(string(bytes.TrimSpace(output[:min(len(output), maxAnswer)])), "\uFFFD")
}

// command returns the probe's command with $(NAME) replaced by the values in the container's spec.
// The value of a variable with valueFrom is empty here (C-1.29.13).
func command(r pod.ProbeRequest) []string {
	var env []v1.EnvVar
	if r.Container != nil {
		env = r.Container.Env
	}
	values := make(map[string]string, len(env))
	for _, e := range env {
		values[e.Name] = e.Value
	}
	cmd := make([]string, len(r.Probe.Exec.Command))
	for i, arg := range r.Probe.Exec.Command {
		if cmd[i] = arg; strings.Contains(arg, "$") {
			if text, err := podenv.Expand(arg, values); err == nil { // else no program can start
				cmd[i] = text
			}
		}
	}
	return cmd
}
