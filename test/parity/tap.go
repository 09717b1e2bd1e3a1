package main

import (
	"context"
	"time"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// A call is one call of the agent that changes pods.
type call struct {
	at      time.Time // when it came
	request proto.Message
	reply   proto.Message // nil before it was passed on
	err     error
}

// A kind is how a call is shown to a recorder.
type kind struct {
	before         bool // before it is passed on: afterwards its object is gone
	request, reply proto.Message
}

var calls = map[string]kind{
	"RunPodSandbox":            {request: &cri.RunPodSandboxRequest{}, reply: &cri.RunPodSandboxResponse{}},
	"PullImage":                {request: &cri.PullImageRequest{}, reply: &cri.PullImageResponse{}},
	"StopPodSandbox":           {before: true, request: &cri.StopPodSandboxRequest{}},
	"RemovePodSandbox":         {request: &cri.RemovePodSandboxRequest{}, reply: &cri.RemovePodSandboxResponse{}},
	"CreateContainer":          {request: &cri.CreateContainerRequest{}, reply: &cri.CreateContainerResponse{}},
	"StartContainer":           {request: &cri.StartContainerRequest{}, reply: &cri.StartContainerResponse{}},
	"StopContainer":            {before: true, request: &cri.StopContainerRequest{}},
	"RemoveContainer":          {before: true, request: &cri.RemoveContainerRequest{}},
	"UpdateContainerResources": {request: &cri.UpdateContainerResourcesRequest{}, reply: &cri.UpdateContainerResourcesResponse{}},
}

// tap passes the calls that both arms make to see.
func tap(see func(context.Context, call)) criproxy.Hooks {
	return criproxy.Hooks{
		Before: func(c criproxy.Call) {
			if k := calls[c.Method]; k.before {
				request, err := decode(k.request, c.Request)
				see(c.Context, call{at: c.Time, request: request, err: err})
			}
		},
		After: func(c criproxy.Call, err error) {
			k := calls[c.Method]
			if k.reply == nil {
				return
			}
			shown := call{at: c.Time, err: err}
			var broken error
			if shown.request, broken = decode(k.request, c.Request); broken != nil {
				shown.err = broken
			}
			if shown.err == nil {
				shown.reply, shown.err = decode(k.reply, c.Answer)
			}
			see(c.Context, shown)
		},
	}
}

// decode returns a new message of a kind.
func decode(kind proto.Message, m mem.BufferSlice) (proto.Message, error) {
	into := kind.ProtoReflect().New().Interface()
	return into, proto.Unmarshal(m.Materialize(), into)
}
