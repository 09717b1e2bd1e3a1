package main

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// backend answers three methods: well, with an error, and with a stream.
type backend struct {
	cri.UnimplementedRuntimeServiceServer
}

func (backend) Version(_ context.Context, r *cri.VersionRequest) (*cri.VersionResponse, error) {
	return &cri.VersionResponse{RuntimeName: r.Version}, nil
}

func (backend) Status(context.Context, *cri.StatusRequest) (*cri.StatusResponse, error) {
	return nil, status.Error(codes.NotFound, "nothing here")
}

func (backend) GetContainerEvents(_ *cri.GetEventsRequest, s grpc.ServerStreamingServer[cri.ContainerEventResponse]) error {
	for _, id := range []string{"a", "b"} {
		if err := s.Send(&cri.ContainerEventResponse{ContainerId: id}); err != nil {
			return err
		}
	}
	return nil
}

func TestProxyPassesAndCounts(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("unix", filepath.Join(dir, "back"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	cri.RegisterRuntimeServiceServer(server, backend{})
	var wg sync.WaitGroup
	wg.Go(func() { _ = server.Serve(l) })
	t.Cleanup(func() { server.Stop(); wg.Wait() })
	p, err := newProxy("unix://"+filepath.Join(dir, "back"), filepath.Join(dir, "front"), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.close(); err != nil {
			t.Error(err)
		}
	})
	conn, err := grpc.NewClient(p.endpoint(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	client := cri.NewRuntimeServiceClient(conn)

	before := p.calls()
	for range 2 {
		v, err := client.Version(t.Context(), &cri.VersionRequest{Version: "v9"})
		if err != nil || v.RuntimeName != "v9" {
			t.Fatalf("Version = %v, %v", v, err)
		}
	}
	if _, err := client.Status(t.Context(), &cri.StatusRequest{}); status.Code(err) != codes.NotFound || status.Convert(err).Message() != "nothing here" {
		t.Errorf("Status = %v", err)
	}
	if _, err := client.UpdateRuntimeConfig(t.Context(), &cri.UpdateRuntimeConfigRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("UpdateRuntimeConfig = %v", err)
	}
	stream, err := client.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var ids string
	for {
		e, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		ids += e.ContainerId
	}
	if ids != "ab" {
		t.Errorf("the stream brought %q", ids)
	}
	made := since(p.calls(), before)
	if got, want := describe(made), "GetContainerEvents 1, Status 1, UpdateRuntimeConfig 1, Version 2"; got != want || total(made) != 5 {
		t.Errorf("counted %s, want %s", got, want)
	}
}
