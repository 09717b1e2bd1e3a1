package critest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path"
	"strconv"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	"k8s.io/utils/exec"
)

// ServeStreams serves the runtime's streams on a port until the test ends: from then on
// Exec, Attach and PortForward succeed.
func ServeStreams(t testing.TB, rt *Runtime) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cfg := streaming.DefaultConfig
	cfg.BaseURL = &url.URL{Scheme: "http", Host: l.Addr().String(), Path: "/"}
	s, err := streaming.NewServer(cfg, &streams{rt})
	if err != nil {
		t.Fatal(err)
	}
	web := &http.Server{Handler: s, ReadHeaderTimeout: 10 * time.Second}
	var wg sync.WaitGroup
	wg.Go(func() { _ = web.Serve(l) })
	t.Cleanup(func() {
		_ = web.Close()
		wg.Wait()
	})
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.streams = s
}

func (rt *Runtime) streamer() (streaming.Server, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	if rt.streams == nil {
		return nil, status.Error(codes.Unimplemented, "no streaming server")
	}
	return rt.streams, nil
}

// runs returns a running container.
func (rt *Runtime) runs(id string) (*container, error) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	c := rt.containers[id]
	if c == nil {
		return nil, rt.noContainer(id)
	}
	if !c.running() {
		return nil, status.Errorf(codes.Unknown, "container %q is not running", id)
	}
	return c, nil
}

// Exec implements CRI.
func (rt *Runtime) Exec(_ context.Context, q *runtimeapi.ExecRequest) (*runtimeapi.ExecResponse, error) {
	s, err := rt.streamer()
	if err != nil {
		return nil, err
	}
	if _, err := rt.runs(q.GetContainerId()); err != nil {
		return nil, err
	}
	return s.GetExec(q)
}

// Attach implements CRI.
func (rt *Runtime) Attach(_ context.Context, q *runtimeapi.AttachRequest) (*runtimeapi.AttachResponse, error) {
	s, err := rt.streamer()
	if err != nil {
		return nil, err
	}
	if _, err := rt.runs(q.GetContainerId()); err != nil {
		return nil, err
	}
	return s.GetAttach(q)
}

// PortForward implements CRI.
func (rt *Runtime) PortForward(_ context.Context, q *runtimeapi.PortForwardRequest) (*runtimeapi.PortForwardResponse, error) {
	s, err := rt.streamer()
	if err != nil {
		return nil, err
	}
	return s.GetPortForward(q)
}

// Checkpoints sets whether the runtime supports checkpoints, which it does not at first.
func (rt *Runtime) Checkpoints(can bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.checkpoints = can
}

// CheckpointContainer implements CRI: the archive holds the container's identity.
func (rt *Runtime) CheckpointContainer(ctx context.Context, q *runtimeapi.CheckpointContainerRequest) (*runtimeapi.CheckpointContainerResponse, error) {
	rt.mu.Lock()
	can := rt.checkpoints
	rt.mu.Unlock()
	if !can {
		return rt.UnimplementedRuntimeServiceServer.CheckpointContainer(ctx, q)
	}
	c, err := rt.runs(q.GetContainerId())
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(q.GetLocation(), []byte(c.id), 0o600); err != nil {
		return nil, status.Error(codes.Unknown, err.Error())
	}
	return &runtimeapi.CheckpointContainerResponse{}, nil
}

// streams implements the streaming server's runtime.
type streams struct{ rt *Runtime }

// Exec implements streaming.Runtime. "cat" sends its input back until that ends; "sizes"
// writes each size that its terminal gets. Every other command runs as in ExecSync, with
// its output on stderr if its first word is "stderr".
func (s *streams) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, errs io.WriteCloser, _ bool, resize <-chan remotecommand.TerminalSize) error {
	c, err := s.rt.runs(id)
	if err != nil {
		return err
	}
	if len(cmd) == 0 {
		return status.Error(codes.InvalidArgument, "no command")
	}
	s.rt.mu.Lock()
	m := c.config.GetMetadata()
	e := Exec{Key: c.key(), Container: m.GetName(), Attempt: m.GetAttempt(), Cmd: cmd, At: time.Since(s.rt.start)}
	s.rt.execLog = append(s.rt.execLog, e)
	b := s.rt.execBehaviour(e)
	s.rt.mu.Unlock()
	switch path.Base(cmd[0]) {
	case "cat":
		_, err := io.Copy(out, in)
		return err
	case "sizes":
		for {
			select {
			case size, ok := <-resize:
				if !ok {
					return nil
				}
				if _, err := fmt.Fprintf(out, "%dx%d\n", size.Width, size.Height); err != nil {
					return err
				}
			case <-c.done:
				return exec.CodeExitError{Err: fmt.Errorf("command terminated with exit code 137"), Code: 137}
			}
		}
	}
	if to := out; b.Output != "" || !b.Ends {
		text := b.Output
		if text == "" {
			text = fmt.Sprintln(cmd)
		}
		if cmd[0] == "stderr" {
			to = errs
		}
		if _, err := io.WriteString(to, text); err != nil {
			return err
		}
	}
	took := time.NewTimer(b.After)
	defer took.Stop()
	select {
	case <-took.C:
	case <-ctx.Done():
		return ctx.Err()
	case <-c.done:
		b.Code = 137
	}
	if b.Code != 0 {
		return exec.CodeExitError{Err: fmt.Errorf("command terminated with exit code %d", b.Code), Code: int(b.Code)}
	}
	return nil
}

// Attach implements streaming.Runtime: the container's process writes "attached" and sends
// its input back, until it ends.
func (s *streams) Attach(_ context.Context, id string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	c, err := s.rt.runs(id)
	if err != nil {
		return err
	}
	if out != nil {
		if _, err := io.WriteString(out, "attached\n"); err != nil {
			return err
		}
	}
	var wg sync.WaitGroup
	if in != nil && out != nil {
		wg.Go(func() { _, _ = io.Copy(out, in) })
	}
	<-c.done
	if stdin, ok := in.(interface{ Reset() error }); ok {
		_ = stdin.Reset()
	}
	wg.Wait()
	return nil
}

// PortForward implements streaming.Runtime: a pod's ports are those of the machine that
// runs the test.
func (s *streams) PortForward(ctx context.Context, id string, port int32, stream io.ReadWriteCloser) error {
	s.rt.mu.Lock()
	b := s.rt.sandboxes[id]
	there := b != nil && b.ready
	s.rt.mu.Unlock()
	if !there {
		return status.Errorf(codes.Unknown, "sandbox %q is not ready", id)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(int(port))))
	if err != nil {
		return fmt.Errorf("failed to connect to localhost:%d inside namespace %q: %w", port, id, err)
	}
	defer conn.Close()
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stream.Close()
	wg.Go(func() {
		_, _ = io.Copy(conn, stream)
		_ = conn.(*net.TCPConn).CloseWrite()
	})
	_, err = io.Copy(stream, conn)
	return err
}
