package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A tap passes every CRI call on as it is, and shows some of them to whoever
// records. It is what both arms talk to.
type tap struct {
	path   string
	conn   *grpc.ClientConn
	server *grpc.Server
	wg     sync.WaitGroup
	see    func(context.Context, call)
}

// A call is one call of the agent that changes pods.
type call struct {
	at      time.Time // when it came
	request proto.Message
	reply   proto.Message // nil before it was passed on
	err     error
}

// before lists the requests that are shown before they are passed on: afterwards
// what they name is gone.
var before = map[string]bool{"RemoveContainer": true, "StopContainer": true, "StopPodSandbox": true}

// messages makes the request and the reply of the calls that are shown.
var messages = map[string]func() (request, reply proto.Message){
	"RunPodSandbox":    func() (_, _ proto.Message) { return &cri.RunPodSandboxRequest{}, &cri.RunPodSandboxResponse{} },
	"StopPodSandbox":   func() (_, _ proto.Message) { return &cri.StopPodSandboxRequest{}, &cri.StopPodSandboxResponse{} },
	"RemovePodSandbox": func() (_, _ proto.Message) { return &cri.RemovePodSandboxRequest{}, &cri.RemovePodSandboxResponse{} },
	"CreateContainer":  func() (_, _ proto.Message) { return &cri.CreateContainerRequest{}, &cri.CreateContainerResponse{} },
	"StartContainer":   func() (_, _ proto.Message) { return &cri.StartContainerRequest{}, &cri.StartContainerResponse{} },
	"StopContainer":    func() (_, _ proto.Message) { return &cri.StopContainerRequest{}, &cri.StopContainerResponse{} },
	"RemoveContainer":  func() (_, _ proto.Message) { return &cri.RemoveContainerRequest{}, &cri.RemoveContainerResponse{} },
	"UpdateContainerResources": func() (_, _ proto.Message) {
		return &cri.UpdateContainerResourcesRequest{}, &cri.UpdateContainerResourcesResponse{}
	},
}

// newTap listens on path. Close ends it.
func newTap(endpoint, path string, see func(context.Context, call)) (*tap, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{}), grpc.MaxCallRecvMsgSize(maxMessage)))
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	t := &tap{path: path, conn: conn, see: see}
	t.server = grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(t.pass), grpc.MaxRecvMsgSize(maxMessage))
	t.wg.Go(func() { _ = t.server.Serve(l) }) // its error is that Close was called
	return t, nil
}

const maxMessage = 64 << 20

func (t *tap) endpoint() string { return "unix://" + t.path }

func (t *tap) close() error {
	t.server.Stop()
	t.wg.Wait()
	return t.conn.Close()
}

func (t *tap) pass(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	ctx := in.Context()
	out, err := t.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method)
	if err != nil {
		return err
	}
	// CRI has no call whose client streams: there is one request.
	var ask mem.BufferSlice
	if err := in.RecvMsg(&ask); err != nil {
		return err
	}
	bare := method[strings.LastIndexByte(method, '/')+1:]
	shown := call{at: time.Now()}
	if make := messages[bare]; make != nil {
		shown.request, shown.reply = make()
		if err := proto.Unmarshal(ask.Materialize(), shown.request); err != nil {
			return status.Error(codes.Internal, err.Error())
		}
	}
	if before[bare] {
		t.see(ctx, call{at: shown.at, request: shown.request})
	}
	if err := errors.Join(out.SendMsg(ask), out.CloseSend()); err != nil {
		return err
	}
	for {
		var answer mem.BufferSlice
		err := out.RecvMsg(&answer)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if shown.request != nil && !before[bare] {
			if shown.err = err; err == nil {
				shown.err = proto.Unmarshal(answer.Materialize(), shown.reply)
			}
			t.see(ctx, shown)
			shown.request = nil
		}
		if err != nil {
			return status.Convert(err).Err()
		}
		if err := in.SendMsg(answer); err != nil {
			return err
		}
	}
}

// raw leaves messages as they are.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("not a message as it came: %T", v)
	}
	return m, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*mem.BufferSlice)
	if !ok {
		return fmt.Errorf("no room for a message as it came: %T", v)
	}
	*m = mem.BufferSlice{mem.SliceBuffer(data.Materialize())}
	return nil
}
