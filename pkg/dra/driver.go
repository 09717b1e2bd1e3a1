package dra

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/connectivity"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	drabeta "k8s.io/kubelet/pkg/apis/dra/v1beta1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Limits of calls to a driver.
const (
	callTimeout = 45 * time.Second // the kubelet's
	lockTimeout = 2 * callTimeout
	maxMessage  = 1 << 20 // bytes of an answer
)

// known are the services of drivers that this node can call.
var known = []string{drapb.DRAPluginService, drabeta.DRAPluginService}

// driver is one registered plugin of a driver.
type driver struct {
	name, socket string
	conn         *grpc.ClientConn
	api          service
	stop         context.CancelFunc // of its watches

	// Guarded by Claims.mu.
	connected bool
	calls     int  // that use the connection
	closed    bool // no call may begin
	health    map[pod.DeviceName]reported
	expiry    *time.Timer // when the first report in health expires; nil: it has not been set
}

// service has the calls of each version of the interface, in the form of the newest version.
type service interface {
	NodePrepareResources(ctx context.Context, q *drapb.NodePrepareResourcesRequest, o ...grpc.CallOption) (*drapb.NodePrepareResourcesResponse, error)
	NodeUnprepareResources(ctx context.Context, q *drapb.NodeUnprepareResourcesRequest, o ...grpc.CallOption) (*drapb.NodeUnprepareResourcesResponse, error)
}

// dial returns a driver of a socket. It sends nothing.
func (c *Claims) dial(name, socket, version string) (*driver, error) {
	conn, err := pluginconn.New(socket, c.cfg.Dial, maxMessage,
		grpc.WithIdleTimeout(0), // watch would not see that the driver is gone
		grpc.WithUnaryInterceptor(c.count(name)))
	if err != nil {
		return nil, err
	}
	d := &driver{name: name, socket: socket, conn: conn, api: drapb.NewDRAPluginClient(conn)}
	if version == drabeta.DRAPluginService {
		d.api = drabeta.V1Beta1ClientWrapper{DRAPluginClient: drabeta.NewDRAPluginClient(conn)}
	}
	return d, nil
}

// watch calls changed with each change of the connection, until ctx ends. It keeps the driver
// connected, to see when it goes away. A driver that ends each connection is connected to with a back-off:
// each connection makes waiting pods try again.
func (d *driver) watch(ctx context.Context, changed func(connected bool)) {
	pace := backoff.Pace{First: 200 * time.Millisecond, Last: 10 * time.Second, Calm: time.Minute}
	for {
		state := d.conn.GetState()
		changed(state == connectivity.Ready)
		if state == connectivity.Idle {
			at, _ := pace.Next(time.Now())
			if !backoff.Sleep(ctx, time.Until(at)) {
				return
			}
			d.conn.Connect()
		}
		if !d.conn.WaitForStateChange(ctx, state) {
			return
		}
	}
}

// prepare calls the driver to prepare a claim, and returns the devices. The texts are the
// kubelet's.
func (d *driver) prepare(ctx context.Context, r record) ([]pod.ClaimDevice, error) {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	defer d.note(ctx, "NodePrepareResources", r.Name)()
	answer, err := d.api.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: r.Namespace, Uid: r.UID, Name: r.Name}}})
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources: %w", pluginconn.ShortError(err))
	}
	for uid, of := range answer.GetClaims() {
		if uid != r.UID {
			return nil, fmt.Errorf("NodePrepareResources returned result for unknown claim UID %.80s", uid)
		}
		if of.GetError() != "" {
			return nil, fmt.Errorf("NodePrepareResources failed for ResourceClaim %s: %s", r.Name, pluginconn.Short(of.GetError()))
		}
	}
	of, answered := answer.GetClaims()[r.UID]
	if !answered {
		return nil, errors.New("NodePrepareResources skipped 1 ResourceClaims")
	}
	devices, err := devicesOf(d.name, of.GetDevices())
	if err != nil {
		return nil, fmt.Errorf("NodePrepareResources of ResourceClaim %s: %w", r.Name, err)
	}
	return devices, nil
}

// unprepare calls the driver to unprepare a claim.
func (d *driver) unprepare(ctx context.Context, r record) error {
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	defer d.note(ctx, "NodeUnprepareResources", r.Name)()
	answer, err := d.api.NodeUnprepareResources(ctx, &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{{Namespace: r.Namespace, Uid: r.UID, Name: r.Name}}})
	if err != nil {
		return fmt.Errorf("NodeUnprepareResources: %w", pluginconn.ShortError(err))
	}
	for uid, of := range answer.GetClaims() {
		if uid != r.UID {
			return fmt.Errorf("NodeUnprepareResources returned result for unknown claim UID %.80s", uid)
		}
		if of.GetError() != "" {
			return fmt.Errorf("NodeUnprepareResources failed for ResourceClaim %s: %s", r.Name, pluginconn.Short(of.GetError()))
		}
	}
	if _, answered := answer.GetClaims()[r.UID]; !answered {
		return errors.New("NodeUnprepareResources skipped 1 ResourceClaims")
	}
	return nil
}

// note shows a call on the activity board, for "nodectl why", until the call ends.
func (d *driver) note(ctx context.Context, name, claim string) (end func()) {
	call := activity.Call{Kind: activity.Claim, Name: name, Target: claim, Host: d.name}
	call.Limit, _ = ctx.Deadline()
	return activity.Begin(ctx, call)
}
