package critest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// server is the runtime on one socket.
type server struct {
	grpc *grpc.Server
	wait sync.WaitGroup
}

func (s *server) stop() {
	s.grpc.Stop()
	s.wait.Wait()
}

// Serve runs the runtime as a gRPC server on a unix socket until the test ends, and returns
// the endpoint.
func Serve(t testing.TB, rt *Runtime) (endpoint string) {
	t.Helper()
	// Not t.TempDir: a socket's path may have 107 bytes, and test names are long.
	dir, err := os.MkdirTemp("", "cri")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "cri.sock")
	stop, err := rt.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
	return "unix://" + path
}

// Listen serves the runtime on the socket path until stop is called. Crash closes the
// socket and Restart opens it again.
func (rt *Runtime) Listen(path string) (stop func(), err error) {
	if err := rt.listen(path); err != nil {
		return nil, err
	}
	return func() {
		rt.mu.Lock()
		s := rt.servers[path]
		delete(rt.servers, path)
		rt.mu.Unlock()
		if s != nil {
			s.stop()
		}
	}, nil
}

func (rt *Runtime) listen(path string) error {
	l, err := net.Listen("unix", path)
	if err != nil {
		return err
	}
	s := &server{grpc: grpc.NewServer(grpc.UnaryInterceptor(rt.intercept))}
	runtimeapi.RegisterRuntimeServiceServer(s.grpc, rt)
	runtimeapi.RegisterImageServiceServer(s.grpc, rt)
	rt.mu.Lock()
	rt.servers[path] = s
	rt.mu.Unlock()
	s.wait.Go(func() {
		if err := s.grpc.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
			panic(err)
		}
	})
	return nil
}
