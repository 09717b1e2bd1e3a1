package probe_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/probe"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// failure returns the message of a probe failure, and fails the test for any other result.
func failure(t *testing.T, err error) string {
	t.Helper()
	var f *pod.ProbeFailure
	if !errors.As(err, &f) {
		t.Fatalf("got %v, want a *pod.ProbeFailure", err)
	}
	return f.Message
}

// trouble fails the test unless err is the prober's own trouble.
func trouble(t *testing.T, err error) string {
	t.Helper()
	var f *pod.ProbeFailure
	if err == nil || errors.As(err, &f) {
		t.Fatalf("got %v, want the prober's own trouble", err)
	}
	return err.Error()
}

// execer returns fixed answers and records the calls.
type execer struct {
	exit    int32
	output  string
	err     error
	calls   int
	id      string
	cmd     []string
	timeout time.Duration
}

func (e *execer) ExecSync(_ context.Context, id string, cmd []string, timeout time.Duration) (int32, []byte, error) {
	e.calls++
	e.id, e.cmd, e.timeout = id, cmd, timeout
	return e.exit, []byte(e.output), e.err
}

func execRequest(cmd ...string) pod.ProbeRequest {
	return pod.ProbeRequest{
		ContainerID: "c1",
		Probe:       &v1.Probe{ProbeHandler: v1.ProbeHandler{Exec: &v1.ExecAction{Command: cmd}}, TimeoutSeconds: 3},
	}
}

// Shows: C-1.29.13
func TestC_1_29_13_Exec(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 20<<10)
	tests := []struct {
		name    string
		e       execer
		failure string // "" is success
	}{
		{"ExitZero", execer{output: "fine"}, ""},
		{"ExitOne", execer{exit: 1, output: " no \n"}, "no"},
		{"OutputIsBounded", execer{exit: 2, output: long}, long[:10<<10]},
		{"NotText", execer{exit: 2, output: "a\xffb"}, "a\uFFFDb"},
		{"TimeoutIsFailure", execer{err: fmt.Errorf("exec: %w", context.DeadlineExceeded)}, `command timed out: "true" timed out after 3s`},
		{"RuntimesTimeoutIsFailure", execer{err: status.Error(codes.DeadlineExceeded, "timeout")}, `command timed out: "true" timed out after 3s`},
	}
	if got := failure(t, probe.New(probe.Config{Exec: &execer{exit: 137}}).Probe(t.Context(), execRequest("true"))); got != "" {
		t.Errorf("a command that prints nothing: got %q", got)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := tt.e
			err := probe.New(probe.Config{Exec: &e}).Probe(t.Context(), execRequest("true"))
			switch {
			case tt.failure == "" && err != nil:
				t.Errorf("got %v, want success", err)
			case tt.failure != "":
				if got := failure(t, err); got != tt.failure {
					t.Errorf("got %q, want %q", got, tt.failure)
				}
			}
			if e.calls != 1 || e.id != "c1" || e.timeout != 3*time.Second {
				t.Errorf("asked %d times, for %q, within %s; want once, for c1, within 3s", e.calls, e.id, e.timeout)
			}
		})
	}
}

// Shows: C-1.29.13
func TestC_1_29_13_ExecExpandsDeclaredEnvironment(t *testing.T) {
	t.Parallel()
	e := &execer{}
	r := execRequest("$(A)", "x$(A)y$(B)", "$$(A)", "$(NONE)", "$A", "$(A", "$", "$$$(A)", "$(FROM)")
	r.Container = &v1.Container{Env: []v1.EnvVar{
		{Name: "A", Value: "1"}, {Name: "B", Value: "$(A)"},
		{Name: "FROM", ValueFrom: &v1.EnvVarSource{}},
	}}
	if err := probe.New(probe.Config{Exec: e}).Probe(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	want := []string{"1", "x1y$(A)", "$(A)", "$(NONE)", "$A", "$(A", "$", "$1", ""}
	if diff := cmp.Diff(want, e.cmd); diff != "" {
		t.Error(diff)
	}
	if got := r.Probe.Exec.Command[0]; got != "$(A)" {
		t.Errorf("the probe itself became %q", got)
	}
}

// Shows: C-1.29.7
func TestC_1_29_7_ProbersTroubleIsTriedThreeTimes(t *testing.T) {
	t.Parallel()
	e := &execer{err: errors.New("no such container")}
	got := trouble(t, probe.New(probe.Config{Exec: e}).Probe(t.Context(), execRequest("true")))
	if e.calls != 3 || !strings.Contains(got, "no such container") {
		t.Errorf("asked %d times, said %q; want 3 tries and the reason", e.calls, got)
	}
}

// hang is a runtime that uses the whole timeout, and then fails.
type hang struct{ calls int }

func (h *hang) ExecSync(_ context.Context, _ string, _ []string, timeout time.Duration) (int32, []byte, error) {
	h.calls++
	time.Sleep(timeout)
	return 0, nil, errors.New("container runtime did not answer in time")
}

// Shows: F81
func TestF81_TroubleThatTookTheTimeoutIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h := &hang{}
		begin := time.Now()
		trouble(t, probe.New(probe.Config{Exec: h}).Probe(t.Context(), execRequest("true")))
		if h.calls != 1 || time.Since(begin) != 3*time.Second {
			t.Errorf("asked %d times within %s, want once and 3s", h.calls, time.Since(begin))
		}
	})
}

// Shows: C-1.29.7
func TestC_1_29_7_EndOfContextIsNoAnswer(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	e := &execer{err: context.DeadlineExceeded}
	trouble(t, probe.New(probe.Config{Exec: e}).Probe(ctx, execRequest("true")))
	if e.calls != 1 {
		t.Errorf("asked %d times after the end, want 1", e.calls)
	}
	r := pod.ProbeRequest{Probe: &v1.Probe{ProbeHandler: v1.ProbeHandler{
		TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt32(1)}}}}
	trouble(t, probe.New(probe.Config{}).Probe(ctx, r))
}

// Shows: C-1.29.7
func TestC_1_29_7_WhatCannotBeAskedIsTrouble(t *testing.T) {
	t.Parallel()
	for name, h := range map[string]v1.ProbeHandler{
		"NoHandler":   {},
		"GRPCPort":    {GRPC: &v1.GRPCAction{}},
		"NoExecer":    {Exec: &v1.ExecAction{Command: []string{"true"}}},
		"UnknownPort": {TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("web")}},
		"PortZero":    {HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(0)}},
		"PortTooHigh": {HTTPGet: &v1.HTTPGetAction{Port: intstr.FromString("65536")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			trouble(t, probe.New(probe.Config{}).Probe(t.Context(), pod.ProbeRequest{Probe: &v1.Probe{ProbeHandler: h}}))
		})
	}
	trouble(t, probe.New(probe.Config{}).Probe(t.Context(), pod.ProbeRequest{}))
}

// Shows: C-1.29.15
func TestC_1_29_15_TCPSocket(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var accepted atomic.Int32
	closed := make(chan error)
	go func() { // ends when the probe has closed its connection
		c, err := l.Accept()
		if err == nil {
			accepted.Add(1)
			_, err = c.Read(make([]byte, 1))
			c.Close()
		}
		closed <- err
	}()
	port := int32(l.Addr().(*net.TCPAddr).Port)
	p := probe.New(probe.Config{})
	r := pod.ProbeRequest{
		PodIP:     "127.0.0.1",
		Container: &v1.Container{Ports: []v1.ContainerPort{{Name: "other", ContainerPort: 1}, {Name: "web", ContainerPort: port}}},
		Probe:     &v1.Probe{ProbeHandler: v1.ProbeHandler{TCPSocket: &v1.TCPSocketAction{Port: intstr.FromString("web")}}},
	}
	if err := p.Probe(t.Context(), r); err != nil {
		t.Fatalf("by name: %v", err)
	}
	if err := <-closed; err == nil || accepted.Load() != 1 {
		t.Errorf("the probe sent something (accepted %d)", accepted.Load())
	}
	l.Close()
	if got := failure(t, p.Probe(t.Context(), r)); !strings.Contains(got, "connection refused") {
		t.Errorf("refused: got %q", got)
	}
}

// A listener with a full queue lets connections hang: the probe ends at its timeout.
//
// Shows: F80
func TestF80_TCPSocketTimesOut(t *testing.T) {
	t.Parallel()
	port := fullPort(t)
	r := pod.ProbeRequest{Probe: &v1.Probe{TimeoutSeconds: 1, ProbeHandler: v1.ProbeHandler{
		TCPSocket: &v1.TCPSocketAction{Port: intstr.FromInt(port)}}}}
	if got := failure(t, probe.New(probe.Config{}).Probe(t.Context(), r)); !strings.HasPrefix(got, "dial tcp 127.0.0.1:") || !strings.HasSuffix(got, ": i/o timeout") {
		t.Errorf("got %q", got)
	}
}
