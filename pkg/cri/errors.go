package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/pod"
)

var (
	// ErrUnavailable says that the runtime does not answer: there is no socket, no process
	// listens on it, or the runtime is still starting. The state of the pods is then
	// unknown. The error around it names the socket in one line.
	ErrUnavailable = pod.ErrUnavailable
	// ErrTimeout says that the runtime accepted a call and did not answer within its
	// deadline: the call may still take effect.
	ErrTimeout = pod.ErrTimeout
	// ErrNotFound says that the runtime does not have the ID or image.
	ErrNotFound = errors.New("not found in the container runtime")
	// ErrExecTimeout says that a command did not end within its time: the container's
	// failure, not the runtime's. It wraps context.DeadlineExceeded, which a prober checks
	// for.
	ErrExecTimeout = fmt.Errorf("command timed out: %w", context.DeadlineExceeded)
)

// CallError is one failed call in one line. It matches ErrUnavailable, ErrTimeout,
// ErrNotFound or errors.ErrUnsupported if one of them applies, and the context's error if
// the caller left before the answer.
type CallError struct {
	Method string     // as CRI names it
	Msg    string     // one line, for a person
	kind   error      // one of the sentinels; nil for everything else
	code   codes.Code // the runtime's; OK if it gave none
	ours   bool       // ErrTimeout: our deadline, not the runtime's answer
}

func (e *CallError) Error() string { return e.Msg }
func (e *CallError) Unwrap() error { return e.kind }

// canceled is the error of a call whose caller left.
func canceled(name string, err error) error {
	return &CallError{Method: name, Msg: name + ": " + err.Error(), kind: err}
}

// late is the error of a call that exceeded its deadline.
func (r *Runtime) late(name string, limit time.Duration) error {
	return &CallError{
		Method: name, Msg: fmt.Sprintf("container runtime at %s did not answer %s within %s", r.cfg.Endpoint, name, limit),
		kind: ErrTimeout, ours: true,
	}
}

// translate turns a gRPC error that came before the deadline into a CallError.
func (r *Runtime) translate(name string, err error) error {
	if errors.Is(err, io.EOF) { // the stream ended: the server is gone
		return &CallError{Method: name, Msg: fmt.Sprintf("container runtime at %s closed the stream of %s", r.cfg.Endpoint, name), kind: ErrUnavailable}
	}
	s := status.Convert(err)
	e := &CallError{Method: name, Msg: plain(s.Message()), code: s.Code()}
	switch s.Code() {
	case codes.Unavailable:
		e.kind = ErrUnavailable
		e.Msg = fmt.Sprintf("container runtime at %s does not answer: %s", r.cfg.Endpoint, dialCause(s.Message()))
	case codes.Canceled: // not cancelled by us: the runtime shuts down
		e.kind = ErrUnavailable
		e.Msg = fmt.Sprintf("container runtime at %s canceled %s: %s", r.cfg.Endpoint, name, e.Msg)
	case codes.DeadlineExceeded:
		e.kind = ErrTimeout
	case codes.NotFound:
		e.kind = ErrNotFound
	case codes.Unimplemented:
		e.kind = errors.ErrUnsupported
		if strings.Contains(s.Message(), "unknown service") {
			e.Msg = fmt.Sprintf("%s answers, but does not support CRI v1 (is the runtime's CRI plugin enabled?)", r.cfg.Endpoint)
		}
	}
	if e.Msg == "" {
		e.Msg = fmt.Sprintf("%s failed (%s)", name, s.Code())
	}
	return e
}

// cannot makes the StartError of a failed call. A runtime that does not answer is not the
// pod's fault: that error is returned unchanged.
func cannot(reason string, err error) error {
	if errors.Is(err, ErrUnavailable) {
		return err
	}
	return &pod.StartError{Reason: reason, Err: err}
}

// unlessGone turns "not found" into success, because stopping or removing a missing object needs no
// action (C-1.23.8).
func unlessGone(err error) error {
	if errors.Is(err, ErrNotFound) {
		return nil
	}
	return err
}

var (
	longID  = regexp.MustCompile(`( for)? ?"?\b[0-9a-f]{64}\b"?`)
	oomDeny = regexp.MustCompile(`oom_score_adj.*permission denied`)
)

// layers are the prefixes that runtimes put before a cause without adding information; each
// is cut from the front of a message.
var layers = regexp.MustCompile(`^(rpc error: code = \w+ desc = |` +
	`failed to create containerd task: |failed to create shim task: |failed to start sandbox: |failed to start sandbox container task: |` +
	`failed to create containerd container: |` +
	`failed to exec in container: |failed to start exec: |` +
	`OCI runtime (create|start|exec) failed: |(runc )?(create|run|start|exec) failed: |` +
	`unable to start container process: |error during container init: )`)

// plain turns a runtime's error text into one line for people. It drops prefixes without
// information, line breaks, and IDs, which change with every attempt and would make the
// same fault look new each time.
func plain(msg string) string {
	if oomDeny.MatchString(strings.ToLower(msg)) {
		return "the runtime may not lower oom_score_adj (no CAP_SYS_RESOURCE): set restrict_oom_score_adj = true " +
			"under [plugins.'io.containerd.cri.v1.runtime'] in containerd's configuration and restart it"
	}
	msg = longID.ReplaceAllString(msg, "")
	msg = strings.Join(strings.Fields(msg), " ")
	for {
		cut := layers.ReplaceAllString(msg, "")
		if cut == msg {
			break
		}
		msg = cut
	}
	return strings.TrimSuffix(msg, ": unknown")
}

// dialCause returns the operating system's message from gRPC's text about a failed
// connection.
func dialCause(msg string) string {
	if i := strings.LastIndex(msg, "dial unix "); i >= 0 {
		if _, cause, ok := strings.Cut(msg[i:], ": "); ok {
			return strings.TrimRight(cause, `"`)
		}
	}
	return plain(strings.TrimPrefix(msg, "connection error: "))
}
