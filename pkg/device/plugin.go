package device

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Deadlines of calls to a plugin. They are the kubelet's, except for Allocate and
// GetPreferredAllocation, for which the kubelet has no deadline.
const (
	connectTimeout   = 10 * time.Second
	preferredTimeout = 10 * time.Second
	allocateTimeout  = 30 * time.Second
	preStartTimeout  = pluginapi.KubeletPreStartContainerRPCTimeoutInSecs * time.Second
)

// plugin is the connection to one device plugin.
type plugin struct {
	socket  string
	conn    *grpc.ClientConn
	api     pluginapi.DevicePluginClient
	options *pluginapi.DevicePluginOptions
}

// connect connects to a plugin and asks for its options.
func connect(ctx context.Context, by Sockets, socket string) (*plugin, error) {
	conn, err := pluginconn.New(socket, by.Dial, maxMessage)
	if err != nil {
		return nil, fmt.Errorf("failed to dial device plugin: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	p := &plugin{socket: socket, conn: conn, api: pluginapi.NewDevicePluginClient(conn)}
	if p.options, err = p.api.GetDevicePluginOptions(ctx, &pluginapi.Empty{}, grpc.WaitForReady(true)); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("failed to get device plugin options: %w", err)
	}
	return p, nil
}

// watchInterval is the shortest time between two lists that the node reads from a plugin. Further
// lists wait in the connection, whose buffer is small.
const watchInterval = time.Second

// watch calls update with each list of devices, until ctx ends, the plugin ends the stream, or
// a list cannot be used.
func (p *plugin) watch(ctx context.Context, update func(map[string]Device)) error {
	stream, err := p.api.ListAndWatch(ctx, &pluginapi.Empty{})
	if err != nil {
		return err
	}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		answer, err := stream.Recv()
		if err != nil {
			return err
		}
		devices, err := devicesOf(answer.GetDevices())
		if err != nil {
			return err
		}
		update(devices)
		select {
		case <-pause.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		pause.Reset(watchInterval)
	}
}

// preferred returns the devices that the plugin prefers; none if the plugin has no preference.
func (p *plugin) preferred(ctx context.Context, available, must []string, number int) ([]string, error) {
	if !p.options.GetGetPreferredAllocationAvailable() {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, preferredTimeout)
	defer cancel()
	answer, err := p.api.GetPreferredAllocation(ctx, &pluginapi.PreferredAllocationRequest{ContainerRequests: []*pluginapi.ContainerPreferredAllocationRequest{
		{AvailableDeviceIDs: available, MustIncludeDeviceIDs: must, AllocationSize: int32(number)},
	}})
	if err != nil {
		return nil, fmt.Errorf("device plugin GetPreferredAllocation rpc failed with err: %w", err)
	}
	if len(answer.GetContainerResponses()) == 0 {
		return nil, nil
	}
	return answer.GetContainerResponses()[0].GetDeviceIDs(), nil
}

// allocate prepares devices for a container.
func (p *plugin) allocate(ctx context.Context, resource string, devices []string) (pod.DeviceAllocation, error) {
	ctx, cancel := context.WithTimeout(ctx, allocateTimeout)
	defer cancel()
	answer, err := p.api.Allocate(ctx, &pluginapi.AllocateRequest{ContainerRequests: []*pluginapi.ContainerAllocateRequest{{DevicesIds: devices}}})
	if err != nil {
		return pod.DeviceAllocation{}, err
	}
	return allocationOf(resource, devices, answer)
}

// preStart tells the plugin that a container with these devices is about to start, if the plugin
// asked for that.
func (p *plugin) preStart(ctx context.Context, devices []string) error {
	if !p.options.GetPreStartRequired() {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, preStartTimeout)
	defer cancel()
	_, err := p.api.PreStartContainer(ctx, &pluginapi.PreStartContainerRequest{DevicesIds: devices})
	if err != nil {
		return fmt.Errorf("device plugin PreStartContainer rpc failed with err: %w", err)
	}
	return nil
}

// ended reports whether a stream ended because the agent or the plugin stops.
func ended(ctx context.Context, err error) bool {
	return ctx.Err() != nil || errors.Is(err, context.Canceled)
}
