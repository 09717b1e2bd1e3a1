package criproxy_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// runtime implements four calls.
type runtime struct {
	cri.UnimplementedRuntimeServiceServer
	mu      sync.Mutex
	started []string
}

func (r *runtime) Version(_ context.Context, q *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: "for " + q.Version}, nil
}

func (r *runtime) StartContainer(_ context.Context, q *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.started = append(r.started, q.ContainerId)
	return &cri.StartContainerResponse{}, nil
}

func (r *runtime) StopContainer(context.Context, *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	return nil, status.Error(codes.NotFound, "no such container")
}

func (r *runtime) GetContainerEvents(_ *cri.GetEventsRequest, s cri.RuntimeService_GetContainerEventsServer) error {
	for i := range 3 {
		if err := s.Send(&cri.ContainerEventResponse{ContainerId: fmt.Sprint(i)}); err != nil {
			return err
		}
	}
	return nil
}

func serve(t *testing.T, r cri.RuntimeServiceServer, hooks criproxy.Hooks) (*criproxy.Proxy, cri.RuntimeServiceClient) {
	t.Helper()
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "runtime.sock"))
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(s, r)
	var wg sync.WaitGroup
	wg.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); wg.Wait() })
	p, err := criproxy.New("unix://"+l.Addr().String(), filepath.Join(dir, "proxy.sock"), hooks)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() }) // a test may have closed it
	conn, err := grpc.NewClient(p.Endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return p, cri.NewRuntimeServiceClient(conn)
}

func TestCallsPassUnchanged(t *testing.T) {
	p, c := serve(t, &runtime{}, criproxy.Hooks{})
	v, err := c.Version(t.Context(), &cri.VersionRequest{Version: "me"})
	if err != nil || v.RuntimeName != "for me" {
		t.Errorf("Version: %v, %v", v, err)
	}
	if _, err := c.StopContainer(t.Context(), &cri.StopContainerRequest{}); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "no such container" {
		t.Errorf("StopContainer: %v", err)
	}
	if _, err := c.StartContainer(t.Context(), &cri.StartContainerRequest{}); err != nil { // an answer without a byte
		t.Errorf("StartContainer: %v", err)
	}
	if _, err := c.RemoveContainer(t.Context(), &cri.RemoveContainerRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("RemoveContainer: %v", err)
	}
	if n := p.Counts(); n["Version"] != 1 || n["StopContainer"] != 1 || len(n) != 4 {
		t.Errorf("counted %v", n)
	}
	if m, want := p.Mutations(), []string{"StopContainer", "StartContainer", "RemoveContainer"}; !slices.Equal(m, want) {
		t.Errorf("mutations %v, want %v", m, want)
	}
}

func TestStreamsPassUnchanged(t *testing.T) {
	_, c := serve(t, &runtime{}, criproxy.Hooks{})
	s, err := c.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		if e, err := s.Recv(); err != nil || e.ContainerId != fmt.Sprint(i) {
			t.Errorf("event %d: %v, %v", i, e, err)
		}
	}
	if e, err := s.Recv(); err == nil {
		t.Errorf("a fourth event: %v", e)
	}
}

func TestAfterIsBetweenEffectAndReply(t *testing.T) {
	r := &runtime{}
	received := make(chan struct{}) // closed when the client has its reply
	outcome := make(chan error, 1)
	_, c := serve(t, r, criproxy.Hooks{After: func(call criproxy.Call, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		select {
		case <-received:
			outcome <- errors.New("the client has its reply")
		default:
		}
		if len(r.started) != 1 || call.N != 1 || call.Method != "StartContainer" || err != nil {
			outcome <- errors.New(fmt.Sprint(call, err, " with started ", r.started))
		}
		close(outcome)
	}})
	if _, err := c.StartContainer(t.Context(), &cri.StartContainerRequest{ContainerId: "a"}); err != nil {
		t.Fatal(err)
	}
	close(received)
	if err := <-outcome; err != nil {
		t.Error(err)
	}
}

func TestBusyIsWhatWasAskedAndNotAnswered(t *testing.T) {
	asked, release := make(chan struct{}), make(chan struct{})
	p, c := serve(t, &runtime{}, criproxy.Hooks{After: func(criproxy.Call, error) {
		close(asked)
		<-release
	}})
	var wg sync.WaitGroup
	wg.Go(func() {
		if _, err := c.StartContainer(t.Context(), &cri.StartContainerRequest{}); err != nil {
			t.Error(err)
		}
	})
	<-asked
	if n := p.Busy(); n != 1 {
		t.Errorf("%d calls on their way, want 1", n)
	}
	close(release)
	wg.Wait()
	if err := p.Close(); err != nil { // waits for the rest of the call
		t.Error(err)
	}
	if n := p.Busy(); n != 0 {
		t.Errorf("%d calls on their way, want none", n)
	}
}
