package kube

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/test/wait"
)

// cards is a DRA driver. Its devices are the CDI devices of a file, which set a variable.
type cards struct {
	drapb.UnimplementedDRAPluginServer
	registerapi.UnimplementedRegistrationServer
	name, endpoint string

	mu    sync.Mutex
	calls []string
}

func (c *cards) GetInfo(context.Context, *registerapi.InfoRequest) (*registerapi.PluginInfo, error) {
	return &registerapi.PluginInfo{Type: registerapi.DRAPlugin, Name: c.name, Endpoint: c.endpoint, SupportedVersions: []string{drapb.DRAPluginService}}, nil
}

func (c *cards) NotifyRegistrationStatus(context.Context, *registerapi.RegistrationStatus) (*registerapi.RegistrationStatusResponse, error) {
	return &registerapi.RegistrationStatusResponse{}, nil
}

func (c *cards) note(call string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls = append(c.calls, call)
}

func (c *cards) called() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.calls, " ")
}

func (c *cards) NodePrepareResources(_ context.Context, q *drapb.NodePrepareResourcesRequest) (*drapb.NodePrepareResourcesResponse, error) {
	answer := &drapb.NodePrepareResourcesResponse{Claims: make(map[string]*drapb.NodePrepareResourceResponse)}
	for _, claim := range q.GetClaims() {
		c.note("prepare")
		answer.Claims[claim.GetUid()] = &drapb.NodePrepareResourceResponse{Devices: []*drapb.Device{
			{PoolName: "rack", DeviceName: "card-0", RequestNames: []string{"card"}, CdiDeviceIds: []string{c.name + "/card=card-0"}},
		}}
	}
	return answer, nil
}

func (c *cards) NodeUnprepareResources(_ context.Context, q *drapb.NodeUnprepareResourcesRequest) (*drapb.NodeUnprepareResourcesResponse, error) {
	answer := &drapb.NodeUnprepareResourcesResponse{Claims: make(map[string]*drapb.NodeUnprepareResourceResponse)}
	for _, claim := range q.GetClaims() {
		c.note("unprepare")
		answer.Claims[claim.GetUid()] = &drapb.NodeUnprepareResourceResponse{}
	}
	return answer, nil
}

// serve serves the driver and its registration below the directory of the node until stop is called.
func (c *cards) serve(t testing.TB, dir string) (stop func()) {
	t.Helper()
	c.endpoint = filepath.Join(dir, "plugins", c.name, "dra.sock")
	var all []func()
	for _, socket := range []string{c.endpoint, filepath.Join(dir, "plugins_registry", c.name+"-reg.sock")} {
		if err := os.MkdirAll(filepath.Dir(socket), 0o750); err != nil {
			t.Fatal(err)
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		server := grpc.NewServer()
		drapb.RegisterDRAPluginServer(server, c)
		registerapi.RegisterRegistrationServer(server, c)
		go func() { _ = server.Serve(listener) }()
		t.Cleanup(server.Stop)
		all = append(all, server.Stop)
	}
	return func() {
		for _, one := range all {
			one()
		}
	}
}

// describe writes the file of the driver's CDI devices, which the runtime reads.
func (c *cards) describe(t testing.TB) {
	t.Helper()
	const dir = "/var/run/cdi"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, c.name+"-card.json")
	text := fmt.Sprintf(`{"cdiVersion": "0.6.0", "kind": "%s/card", "devices": [{"name": "card-0", "containerEdits": {"env": ["CARD=card-0"]}}]}`, c.name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Remove(path) })
}

// awaitWipes waits until the node has deleted its ResourceSlices so often.
func (w *world) awaitWipes(want int) {
	w.Helper()
	wait.NoError(w, func() error {
		n := 0
		for _, r := range w.audited() {
			if r.User.Username == w.user() && r.Verb == "deletecollection" && r.ObjectRef.Resource == "resourceslices" && r.Stage == "ResponseComplete" {
				n++
			}
		}
		if n < want {
			return fmt.Errorf("the node has deleted its slices %d times, not %d", n, want)
		}
		return nil
	}, wait.WithoutStall)
}

// TestClaims_DeviceOfADRADriver_IsPreparedAndUnprepared: a pod with a claim of a DRA driver on a real
// node. The scheduler allocates the device of the driver's ResourceSlice, the driver prepares the claim
// once, also over a kill of the agent, and unprepares it after the pod. The slices of a driver that goes
// away are deleted.
//
// Shows: F1
func TestClaims_DeviceOfADRADriver_IsPreparedAndUnprepared(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "kd") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	w := shared(t).in(t, "claims").secondNode(t, "claims", "--kubelet-dir", dir)
	c := &cards{name: "card.test"}
	c.describe(t)
	stop := c.serve(t, dir)
	w.awaitWipes(1)
	slice := `apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: card.test-rack}
spec: {driver: card.test, nodeName: ` + w.name + `, pool: {name: rack, generation: 1, resourceSliceCount: 1}, devices: [{name: card-0}]}
---
`
	w.apply(slice + `apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata: {name: card.test}
spec: {selectors: [{cel: {expression: 'device.driver == "card.test"'}}]}
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: cards}
spec: {spec: {devices: {requests: [{name: card, exactly: {deviceClassName: card.test}}]}}}
---
` + strings.NewReplacer("spec:\n", "spec:\n  nodeSelector: {kubernetes.io/hostname: "+w.name+"}\n  tolerations: [{key: test/only, operator: Exists}]\n  resourceClaims: [{name: mine, resourceClaimTemplateName: cards}]\n", "    command:", "    resources: {claims: [{name: mine}]}\n    command:").
		Replace(shell("player", `[ "$CARD" = card-0 ] && exec sleep 100000`)))
	w.awaitReady("player")
	if got := c.called(); got != "prepare" {
		w.Errorf("the driver had the calls %s", got)
	}
	w.agent.Restart(w)
	w.awaitNode("Ready", "True")
	w.awaitReady("player")
	if got := c.called(); got != "prepare" {
		w.Errorf("after a kill of the agent the driver had the calls %s", got)
	}
	w.kubectl("delete", "pod", "player", "--wait=false")
	w.awaitOutput("", "get", "pods", "-o", "name")
	if got := c.called(); got != "prepare unprepare" { // before the pod is gone
		w.Errorf("the driver had the calls %s", got)
	}
	w.awaitWipes(2)
	w.apply(slice)
	stop()
	w.awaitOutput("", "get", "resourceslices", "--field-selector", "spec.nodeName="+w.name, "-o", "name")
	if slices.ContainsFunc(w.audited(), func(r request) bool { return r.User.Username == w.user() && r.ResponseStatus.Code == 403 }) {
		w.Error("a request of the node was forbidden")
	}
}
