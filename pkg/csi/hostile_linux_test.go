package csi

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A driver is rejected if it registers under the name of another one, or reports an invalid node.
func TestRegister_DriverLies_IsRefused(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	v := m.agent()
	for want, change := range map[string]func(*fake){
		`is named "other.test", and registers as "disk.test"`: func(f *fake) { f.name = "other.test" },
		"driverNodeID must not be empty":                      func(f *fake) { f.info.NodeId = "" },
		"more than 256":                                       func(f *fake) { f.info.NodeId = strings.Repeat("n", 257) },
		"is not a label": func(f *fake) {
			f.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"a b": "c"}}
		},
		"is not a valid label value": func(f *fake) {
			f.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"x.test/zone": strings.Repeat("z", 64)}}
		},
		`topology value collision: driver reported "zone":"b" but existing label is "zone":"a"`: func(f *fake) {
			f.info.AccessibleTopology = &csipb.Topology{Segments: map[string]string{"zone": "b"}}
		},
		"received message larger than max": func(f *fake) { f.info.NodeId = strings.Repeat("n", 2*maxMessage) },
	} {
		f := newFake(t)
		change(f)
		socket, stop := f.serve(t, m.dir)
		if err := v.Register(t.Context(), driverName, socket); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		stop()
	}
	for _, name := range []string{"", "..", "a/b", "../../etc", strings.Repeat("a", 64), "a\x00b"} {
		if err := v.Check(name, "/x", []string{"1.0.0"}); err == nil {
			t.Errorf("a driver may be named %q", name)
		}
	}
	for _, versions := range [][]string{nil, {"0.3.0"}, {"2.0.0"}, {"x"}} {
		if err := v.Check(driverName, "/x", versions); err == nil || !strings.HasPrefix(err.Error(), "validation failed for CSI Driver disk.test at endpoint /x: ") {
			t.Errorf("%v: %v", versions, err)
		}
	}
	if err := v.Check(driverName, "/x", []string{"1.0.0", "2.0.0"}); err != nil {
		t.Error(err)
	}
	if len(v.drivers) > 0 {
		t.Errorf("registered: %v", v.drivers)
	}
}

// A second driver cannot take the name of a live driver; it can take the name of a dead one.
func TestRegister_NameIsTaken_OnlyADeadDriverIsReplaced(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	stop := m.plug(v, f)
	other := filepath.Join(m.dir, "plugins", driverName, "other.sock")
	if err := v.Register(t.Context(), driverName, other); err == nil || !strings.Contains(err.Error(), "Another driver with the same name is already registered") {
		t.Errorf("%v", err)
	}
	v.Unregister(driverName, other) // which is not registered
	if v.drivers[driverName] == nil {
		t.Error("the driver of another socket is unregistered")
	}
	stop()
	second := newFake(t)
	second.info.NodeId = "node-2"
	socket, _ := second.serve(t, m.dir)
	if err := os.Rename(socket, other); err != nil {
		t.Fatal(err)
	}
	if err := v.Register(t.Context(), driverName, other); err != nil || v.drivers[driverName].info.nodeID != "node-2" {
		t.Errorf("%v", err)
	}
}

// A driver that never answers delays only its own registration.
func TestRegister_DriverNeverAnswers_EndsWithItsContext(t *testing.T) {
	t.Parallel()
	m := newMachine(t)
	v := m.agent()
	socket := filepath.Join(m.dir, "silent.sock")
	silent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- v.Register(ctx, driverName, socket) }()
	if _, err := silent.Accept(); err != nil {
		t.Fatal(err)
	}
	m.plug(v, &fake{name: "other.test", info: csipb.NodeGetInfoResponse{NodeId: "n"}})
	if cancel(); <-done == nil {
		t.Error("a driver that never answers is registered")
	}
}

// A driver that mounts nothing, or creates a link, cannot give a pod a path of the node.
func TestPublish_DriverPlantsALink_IsRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for _, call := range []string{"NodeStageVolume", "NodePublishVolume"} {
		m := newMachine(t)
		v, f := m.agent(), newFake(t)
		secret := filepath.Join(m.dir, "secret")
		if err := os.WriteFile(secret, []byte("kept"), 0o600); err != nil {
			t.Fatal(err)
		}
		planted := false
		f.plant = func(is, target string) error {
			if is != call {
				return os.MkdirAll(target, 0o750)
			}
			planted = true
			_ = os.Remove(target)
			return os.Symlink(m.dir, target)
		}
		m.plug(v, f)
		_, err := v.Publish(t.Context(), request("u1", "pv-1", "vol-1"))
		if err == nil || !planted || !strings.Contains(err.Error(), "is not a directory") && !strings.Contains(err.Error(), "has mounted nothing on") {
			t.Errorf("%s: %v", call, err)
		}
		if err := v.Unpublish(t.Context(), "u1"); err != nil {
			t.Errorf("%s: %v", call, err)
		}
		if text, err := os.ReadFile(secret); string(text) != "kept" {
			t.Errorf("%s: the node's file has %q, %v", call, text, err)
		}
	}
}

// Names and handles of volumes lead to no other path, and links on the way are not followed.
func TestPublish_PathTricks_AreRefused(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	for _, q := range []pod.CSIRequest{
		request("..", "pv-1", "h"), request("u/../../x", "pv-1", "h"), request("", "pv-1", "h"),
		request("u1", "..", "h"), request("u1", "../../../etc", "h"), request("u1", "a/b", "h"), request("u1", strings.Repeat("n", 300), "h"),
		request("u1", "pv-1", ""), request("u1", "pv-1", "a\x00b"), request("u1", "pv-1", strings.Repeat("h", maxHandle+1)),
		{Want: podOf("u1"), Volume: "v"},
		{Want: podOf("u1"), Volume: "..", Inline: &v1.CSIVolumeSource{Driver: driverName}},
	} {
		if _, err := v.Publish(t.Context(), q); err == nil {
			t.Errorf("published: %+v", q)
		}
	}
	q := request("u1", "pv-1", "h")
	q.Persistent.Spec.CSI.Driver = "../../../../etc"
	if _, err := v.Publish(t.Context(), q); err == nil {
		t.Error("a driver has a path as its name")
	}
	elsewhere := t.TempDir()
	if err := os.Symlink(elsewhere, filepath.Join(m.dir, "pods")); err != nil {
		t.Fatal(err)
	}
	if _, err := v.Publish(t.Context(), request("u1", "pv-1", "h")); err == nil || !strings.Contains(err.Error(), "links are not followed") {
		t.Errorf("through a link: %v", err)
	}
	if entries, err := os.ReadDir(elsewhere); err != nil || len(entries) > 0 {
		t.Errorf("elsewhere are %v, %v", entries, err)
	}
}

// A vol_data.json with another content, or a link in its place, names no volume: the mount stays,
// and the error reports that.
func TestUnpublish_DamagedFile_LeavesTheMount(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	mount := publish(t, v, request("u1", "pv-1", "vol-1"))
	file := filepath.Join(filepath.Dir(mount.Path), dataFile)
	for _, text := range []string{"", "{", `{"driverName":"../x","volumeHandle":"h"}`, strings.Repeat(" ", maxData+1)} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		again := m.agent()
		m.plug(again, f)
		if err := again.Unpublish(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), "unmount it") || !again.Mounted(mount.Path) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
	again := m.agent()
	m.plug(again, f)
	publish(t, again, request("u1", "pv-1", "vol-1")) // the pod is desired: it is known again
	if err := again.Unpublish(t.Context(), "u1"); err != nil || len(m.left()) > 0 {
		t.Errorf("%v, left %v", err, m.left())
	}
}

// If a driver reports an unmount that did not happen, the pod's directory stays. A volume that is
// mounted for another pod is not unstaged.
func TestUnpublish_DriverDoesNotUnmount_VolumeStays(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	v, f := m.agent(), newFake(t)
	m.plug(v, f)
	mount := publish(t, v, request("u1", "pv-1", "vol-1"))
	if err := bind(f.disk("vol-1"), filepath.Join(m.dir, "pods", "other")); err != nil { // it shows the volume, too
		t.Fatal(err)
	}
	f.called()
	f.lies = true
	if err := v.Unpublish(t.Context(), "u1"); err == nil || !strings.Contains(err.Error(), "CSI driver disk.test has not unmounted "+mount.Path) || !v.Mounted(mount.Path) {
		t.Errorf("%v", err)
	}
	f.lies = false
	f.called()
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if calls := f.called(); len(calls) != 1 || len(v.InUse()) != 1 {
		t.Errorf("a volume that is mounted elsewhere is unstaged: %v", calls)
	}
}

// No log, error or file contains Secrets or tokens.
func TestPublish_DriverFails_SecretsAreNowhere(t *testing.T) {
	t.Parallel()
	needRoot(t)
	m := newMachine(t)
	f := newFake(t)
	var log bytes.Buffer
	v := m.agent()
	v.cfg.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	m.plug(v, f)
	m.secrets["shop/s"] = map[string]string{"key": "hunter2"}
	m.object(func(s *storagev1.CSIDriverSpec) { s.TokenRequests = []storagev1.TokenRequest{{Audience: "a"}} })
	q := request("u1", "pv-1", "vol-1")
	q.Persistent.Spec.CSI.NodeStageSecretRef = &v1.SecretReference{Namespace: "shop", Name: "s"}
	q.Persistent.Spec.CSI.NodePublishSecretRef = &v1.SecretReference{Namespace: "shop", Name: "s"}
	f.before = func(call string) error {
		if call == "NodePublishVolume" {
			return status.Error(codes.Unavailable, "try again")
		}
		return nil
	}
	_, failed := v.Publish(t.Context(), q)
	q.Persistent.Spec.CSI.NodePublishSecretRef.Name = "absent"
	_, absent := v.Publish(t.Context(), q)
	if failed == nil || absent == nil || !strings.Contains(absent.Error(), "fetching NodePublishSecretRef shop/absent failed") {
		t.Errorf("%v; %v", failed, absent)
	}
	text := fmt.Sprint(failed, absent, log.String())
	for _, path := range m.left() {
		if strings.HasSuffix(path, dataFile) {
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			text += string(content)
		}
	}
	if strings.Contains(text, "hunter2") || strings.Contains(text, "token of clerk") {
		t.Errorf("a secret is shown: %s", text)
	}
	f.before = nil
	if err := v.Unpublish(t.Context(), "u1"); err != nil {
		t.Error(err)
	}
}
