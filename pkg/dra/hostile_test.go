package dra

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// A plugin that registers under a name that is none, with a version that is not known, or with a file
// that is no socket, is refused.
func TestRegister_DriverLies_IsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c := m.agent()
	for _, name := range []string{"", "..", "a/b", "../../etc", strings.Repeat("a", 64), "a\x00b", "A.test"} {
		if err := c.Check(name, "/x", known); err == nil {
			t.Errorf("a driver may be named %q", name)
		}
	}
	for want, versions := range map[string][]string{
		"invalid supported gRPC versions of DRA driver plugin gpu.test at endpoint /x: empty list of supported gRPC services (aka supported versions)":                                                                  nil,
		`invalid supported gRPC versions of DRA driver plugin gpu.test at endpoint /x: none of services supported by the plugin (["v9.DRAPlugin"]) are supported by the kubelet (["v1.DRAPlugin" "v1beta1.DRAPlugin"])`: {"v9.DRAPlugin"},
	} {
		if err := c.Check(driverName, "/x", versions); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
		if err := c.Register(t.Context(), driverName, "/x", versions); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	if err := c.Check(driverName, "/x", known); err != nil {
		t.Error(err)
	}
	file := m.socket("file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	newFake().serve(t, m.socket("real"))
	link := m.socket("link")
	if err := os.Symlink(m.socket("real"), link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, m.socket("absent")} {
		if err := c.Register(t.Context(), driverName, path, known); err == nil {
			t.Errorf("%s is registered", path)
		}
	}
	m.plug(c, newFake())
	if err := c.Register(t.Context(), driverName, m.socket(driverName), known); err == nil || !strings.Contains(err.Error(), "already registered for DRA driver plugin gpu.test") {
		t.Errorf("%v", err)
	}
	c.Unregister(driverName, "/x") // which is not registered
	for i := range maxPlugins - 1 {
		socket := m.socket(fmt.Sprint("more", i))
		newFake().serve(t, socket)
		if err := c.Register(t.Context(), driverName, socket, known); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Register(t.Context(), driverName, m.socket("real"), known); err == nil || !strings.Contains(err.Error(), "no more are accepted") || len(c.drivers[driverName]) != maxPlugins {
		t.Errorf("%v", err)
	}
}

// An answer that is too large, about other claims, or with names that are none, is an error of the
// pod. No container gets devices of it, and the claim is unprepared with the pod.
func TestPrepare_DriverLies_PodGetsNoDevices(t *testing.T) {
	t.Parallel()
	device := func(d *drapb.Device) func(*drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
		return func(q *drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
			return &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{q.GetClaims()[0].GetUid(): {Devices: []*drapb.Device{d}}}}
		}
	}
	for want, answer := range map[string]func(*drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse{
		"NodePrepareResources returned result for unknown claim UID other": func(*drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
			return &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{"other": {}}}
		},
		"NodePrepareResources skipped 1 ResourceClaims": func(*drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
			return &drapb.NodePrepareResourcesResponse{}
		},
		"NodePrepareResources failed for ResourceClaim gpu: no such device": func(q *drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
			return &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{q.GetClaims()[0].GetUid(): {Error: "no such device"}}}
		},
		"received message larger than max": device(&drapb.Device{DeviceName: strings.Repeat("x", 2*maxMessage)}),
		`is not a CDI device`:              device(&drapb.Device{CdiDeviceIds: []string{"/dev/mem"}}),
		`"../gpu=0" is not a CDI device`:   device(&drapb.Device{CdiDeviceIds: []string{"../gpu=0"}}),
		"is not the name of a pool":        device(&drapb.Device{PoolName: "a\x1b[2J"}),
		"a device has 257 CDI devices":     device(&drapb.Device{CdiDeviceIds: make([]string, maxDevices+1)}),
		"257 devices are listed": func(q *drapb.NodePrepareResourcesRequest) *drapb.NodePrepareResourcesResponse {
			return &drapb.NodePrepareResourcesResponse{Claims: map[string]*drapb.NodePrepareResourceResponse{q.GetClaims()[0].GetUid(): {Devices: make([]*drapb.Device, maxDevices+1)}}}
		},
	} {
		m := newMachine(t)
		c, f := m.agent(), newFake()
		m.plug(c, f)
		m.claim("gpu", []string{driverName}, "u1")
		f.set(func(f *fake) { f.answer = answer })
		p := podOf("u1", "gpu")
		of, text := reason(c.Prepare(t.Context(), p))
		if of != pod.ReasonPrepareClaims || !strings.Contains(text, want) || len(text) > 2*pluginconn.MaxText {
			t.Errorf("%s, %.500s\nwant %s", of, text, want)
		}
		if all, err := c.Of(p, "app"); err == nil {
			t.Errorf("%s: the container gets %+v", want, all)
		}
		release(t, c, "u1")
		if got := f.called(); !slices.Equal(got, []string{"prepare uid-gpu", "unprepare uid-gpu"}) || len(m.left()) > 0 {
			t.Errorf("%s: calls %v, left %v", want, got, m.left())
		}
	}
}

// A driver that fails, or answers about other claims, has not unprepared the claim. Its error is cut.
func TestRelease_DriverLies_ClaimStaysAndIsTriedAgain(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("gpu", []string{driverName}, "u1")
	prepare(t, c, podOf("u1", "gpu"))
	undone := func(uid, text string) func(*drapb.NodeUnprepareResourcesRequest) *drapb.NodeUnprepareResourcesResponse {
		return func(*drapb.NodeUnprepareResourcesRequest) *drapb.NodeUnprepareResourcesResponse {
			if uid == "" {
				return &drapb.NodeUnprepareResourcesResponse{}
			}
			return &drapb.NodeUnprepareResourcesResponse{Claims: map[string]*drapb.NodeUnprepareResourceResponse{uid: {Error: text}}}
		}
	}
	for want, change := range map[string]func(*fake){
		"returned result for unknown claim UID other": func(f *fake) { f.undone = undone("other", "") },
		"skipped 1 ResourceClaims":                    func(f *fake) { f.undone = undone("", "") },
		"failed for ResourceClaim gpu: busy":          func(f *fake) { f.undone = undone("uid-gpu", "busy "+strings.Repeat("x", 4*pluginconn.MaxText)) },
		"NodeUnprepareResources: rpc error": func(f *fake) {
			f.undone = nil
			f.before = func(string, string) error {
				return status.Error(codes.Internal, strings.Repeat("x", 4*pluginconn.MaxText))
			}
		},
	} {
		f.set(change)
		if err := c.Release(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 2*pluginconn.MaxText {
			t.Errorf("%.500v\nwant %s", err, want)
		}
		f.set(func(f *fake) { f.undone, f.before = nil, nil })
		if !c.Uses("u1") || len(m.left()) != 1 {
			t.Errorf("%s: left %v", want, m.left())
		}
	}
	release(t, c, "u1")
	if len(m.left()) > 0 {
		t.Errorf("left %v", m.left())
	}
}

// A driver that never answers delays only pods of its own claims. The end of the pod's context ends the
// call.
func TestPrepare_DriverHangs_OtherClaimsArePrepared(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	silent, err := net.Listen("unix", m.socket("silent.test"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	m.register(c, "silent.test")
	m.plug(c, f)
	m.claim("hangs", []string{"silent.test"}, "u1", "u3")
	m.claim("gpu", []string{driverName}, "u2")
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 2)
	go func() { done <- c.Prepare(ctx, podOf("u1", "hangs")) }()
	go func() { done <- c.Prepare(ctx, podOf("u3", "hangs")) }()
	wait.True(t, "the call has begun", func() bool {
		r, _ := c.get("uid-hangs")
		return len(r.Drivers) == 1 && r.Drivers[0].Progress == "begun"
	})
	prepare(t, c, podOf("u2", "gpu"))
	stop()
	for range 2 {
		if of, text := reason(<-done); of != pod.ReasonPrepareClaims {
			t.Errorf("%s, %s", of, text)
		}
	}
	if !c.Uses("u1") && !c.Uses("u3") {
		t.Error("a call that was cut is forgotten")
	}
}

// Names of claims lead to no other file, and files that no agent has written are not believed.
func TestClaims_NamesAndFilesOfOthers_AreRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	dir := filepath.Join(m.dir, "claims")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(m.dir, "secret.json")
	good := `{"namespace": "shop", "name": "x", "uid": "x", "drivers": [{"name": "gpu.test", "progress": "begun"}], "pods": {"u9": null}}`
	for path, text := range map[string]string{
		filepath.Join(dir, "y.json"):   good, // another claim's
		filepath.Join(dir, "z.json"):   `{"uid": "z", "drivers": [{"name": "../x"}]}`,
		filepath.Join(dir, "w.json"):   "{",
		filepath.Join(dir, "v.json"):   `{"uid": "v", "name": "` + strings.Repeat("x", maxRecord) + `"}`,
		filepath.Join(dir, "note.txt"): good,
		secret:                         good,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink(secret, filepath.Join(dir, "x.json")); err != nil {
		t.Fatal(err)
	}
	c := m.agent()
	if len(c.claims) > 0 || c.Uses("u9") {
		t.Errorf("believed: %+v", c.claims)
	}
	m.plug(c, newFake())
	for _, change := range []func(*resourcev1.ResourceClaim){
		func(claim *resourcev1.ResourceClaim) { claim.UID = "../../secret" },
		func(claim *resourcev1.ResourceClaim) { claim.UID = "" },
		func(claim *resourcev1.ResourceClaim) { claim.Namespace = "other" },
		func(claim *resourcev1.ResourceClaim) { claim.Status.Allocation.Devices.Results[0].Driver = "../x" },
	} {
		claim := m.claim("gpu", []string{driverName}, "u1")
		m.set(func(*cluster) { change(claim) })
		if of, text := reason(c.Prepare(t.Context(), podOf("u1", "gpu"))); of != pod.ReasonWaitsForClaim {
			t.Errorf("%+v: %s, %s", claim.ObjectMeta, of, text)
		}
	}
	if text, err := os.ReadFile(secret); string(text) != good {
		t.Errorf("a file of another place has %q, %v", text, err)
	}
}

// A pod that names a claim of another pod, by its template's status or by its name, gets no devices.
func TestCheckClaim_ClaimOfAnotherPod_IsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	c, f := m.agent(), newFake()
	m.plug(c, f)
	m.claim("theirs", []string{driverName}, "u2")
	byName, byTemplate := podOf("u1", "theirs"), podOf("u1", "theirs")
	byTemplate.Pod.Spec.ResourceClaims[0] = v1.PodResourceClaim{Name: "theirs", ResourceClaimTemplateName: new("gpus")}
	byTemplate.Pod.Status.ResourceClaimStatuses = []v1.PodResourceClaimStatus{{Name: "theirs", ResourceClaimName: new("theirs")}}
	for want, p := range map[string]*pod.Spec{"is not allowed to use ResourceClaim theirs": byName, "was not created for Pod": byTemplate} {
		if of, text := reason(c.Prepare(t.Context(), p)); of != pod.ReasonWaitsForClaim || !strings.Contains(text, want) {
			t.Errorf("%s, %s", of, text)
		}
	}
	if got := f.called(); len(got) > 0 {
		t.Errorf("calls %v", got)
	}
}
