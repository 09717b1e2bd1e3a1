package device

import (
	"bytes"
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A plugin that sends more than a node needs is disconnected, and its message is not read. Other
// plugins are not affected.
func TestPlugins_ListIsTooLarge_OnlyItsPluginIsDisconnected(t *testing.T) {
	t.Parallel()
	n, good := start(t), newFake()
	n.plug(good, "a")
	var large, many []*pluginapi.Device
	for range 2 * maxMessage / maxID {
		large = append(large, &pluginapi.Device{ID: strings.Repeat("i", maxID), Health: pluginapi.Healthy})
	}
	for range maxDevices + 1 {
		many = append(many, &pluginapi.Device{ID: "i"})
	}
	for _, list := range [][]*pluginapi.Device{large, many} {
		bad := newFake()
		stop := bad.serve(t, filepath.Join(n.dir, pluginsDir, "bad.sock"))
		if err := n.register("x.com/bad", "bad.sock"); err != nil {
			t.Fatal(err)
		}
		bad.lists <- list
		n.until("the plugin is disconnected", func() bool { return !n.Supply()["x.com/bad"].Registered })
		stop()
	}
	if s := n.Supply(); s["x.com/gpu"].Healthy != 1 || s["x.com/bad"].Healthy != 0 {
		t.Errorf("%+v", s)
	}
	if err := n.register("x.com/"+strings.Repeat("a", 1<<20), "gpu.sock"); err == nil {
		t.Error("a registration of a mebibyte is accepted")
	}
}

// A plugin that registers and never answers delays no other plugin.
func TestRegister_PluginNeverAnswers_OthersRegister(t *testing.T) {
	t.Parallel()
	n := start(t)
	silent, err := net.Listen("unix", filepath.Join(n.dir, pluginsDir, "silent.sock"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = silent.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan error, 1)
	go func() { hangs <- n.Plugins.register(ctx, "x.com/silent", silent.Addr().String()) }()
	if _, err := silent.Accept(); err != nil { // from here on it hangs
		t.Fatal(err)
	}
	n.plug(newFake(), "a")
	if cancel(); <-hangs == nil {
		t.Error("a plugin that never answers is registered")
	}
}

// A second plugin takes the resource of another one, as a restarted plugin does. The log names both
// sockets, and a container keeps its devices with the mounts that it had.
func TestRegister_ResourceOfAnotherPlugin_ContainersKeepTheirDevices(t *testing.T) {
	t.Parallel()
	n := start(t)
	var log bytes.Buffer
	n.cfg.Log = slog.New(slog.NewTextHandler(&log, nil))
	n.plug(newFake(), "a", "b")
	had, err := n.allocate("u1", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	other := newFake()
	other.options.GetPreferredAllocationAvailable = true
	other.prefer = func([]string) []string { return []string{"a"} } // it is the first pod's
	other.allocate = func([]string) (*pluginapi.ContainerAllocateResponse, error) {
		return &pluginapi.ContainerAllocateResponse{Mounts: []*pluginapi.Mount{{HostPath: "/etc", ContainerPath: "/opt/lib"}}}, nil
	}
	other.serve(t, filepath.Join(n.dir, pluginsDir, "other.sock"))
	if err := n.register("x.com/gpu", "other.sock"); err != nil {
		t.Fatal(err)
	}
	other.lists <- devices("a", "b", "c")
	n.until("the other plugin lists", func() bool { return n.Supply()["x.com/gpu"].Healthy == 3 })
	kept, err := n.allocate("u1", 1, nil)
	if err != nil || kept[0].Devices[0] != "a" || !slices.Equal(kept[0].Mounts, had[0].Mounts) || len(other.calls) > 0 {
		t.Errorf("the container has %+v, %v; the other plugin got %q", kept, err, other.calls)
	}
	if second, err := n.allocate("u2", 1, nil); err != nil || second[0].Devices[0] != "b" {
		t.Errorf("another pod got %+v, %v", second, err)
	}
	n.mu.Lock() // it is held while the log is written
	defer n.mu.Unlock()
	if text := log.String(); !strings.Contains(text, "Another device plugin replaces the one of a resource") || !strings.Contains(text, "gpu.sock") || !strings.Contains(text, "other.sock") {
		t.Errorf("log %s", text)
	}
}

// A plugin that may write into the directories cannot make the agent connect to a socket elsewhere.
func TestRegister_LinkToASocketElsewhere_IsRefused(t *testing.T) {
	t.Parallel()
	n := start(t)
	elsewhere, err := os.MkdirTemp("", "dev")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(elsewhere) })
	target := newFake()
	target.serve(t, filepath.Join(elsewhere, "x.sock"))
	link := func(from, to string) {
		t.Helper()
		if err := os.Symlink(to, filepath.Join(n.dir, from)); err != nil {
			t.Fatal(err)
		}
	}
	link(pluginsDir+"/link.sock", filepath.Join(elsewhere, "x.sock"))
	if err := n.register("x.com/gpu", "link.sock"); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a link as the endpoint: %v", err)
	}
	link(registryDir+"/away", elsewhere)
	for _, endpoint := range []string{registryDir + "/away/x.sock", pluginsDir + "/../../" + filepath.Base(elsewhere) + "/x.sock"} {
		info := &registerapi.PluginInfo{Type: registerapi.DevicePlugin, Name: "x.com/gpu", SupportedVersions: []string{"v1beta1"}}
		if _, err := n.handlerOf(info, n.dir+"/"+endpoint); err == nil || !strings.Contains(err.Error(), "is not below") {
			t.Errorf("%s: %v", endpoint, err)
		}
		if _, err := n.handlerOf(info, filepath.Join(n.dir, pluginsDir, "gpu.sock")); err != nil {
			t.Error(err)
		}
	}
	if found, err := scan(filepath.Join(n.dir, registryDir), func(string) error { return nil }); err != nil || len(found) > 0 {
		t.Errorf("the registry follows a link: %v, %v", found, err)
	}
}

// A process that is not root reaches neither the directories nor the socket, even if it knows their
// paths. With SELinux, containers may use the directories.
func TestRun_Directories_AreRoots(t *testing.T) {
	t.Parallel()
	n := start(t)
	var labelled []string
	second := New(Config{Dir: n.dir, Log: n.cfg.Log, Label: func(dir string) error {
		labelled = append(labelled, filepath.Base(dir))
		return os.ErrPermission // it is logged
	}})
	if err := second.Run(t.Context()); err == nil || !slices.Equal(labelled, []string{pluginsDir, registryDir}) {
		t.Errorf("labelled %v, %v", labelled, err)
	}
	for _, path := range []string{pluginsDir, registryDir, pluginsDir + "/" + socketName} {
		info, err := os.Stat(filepath.Join(n.dir, path))
		if err != nil {
			t.Fatal(err)
		}
		if mode := info.Mode().Perm(); mode&0o007 != 0 {
			t.Errorf("%s has mode %o", path, mode)
		}
	}
}

// An init container's devices go to a container after it; a container that an edit removed, and a
// pod that ended, free theirs.
//
// Shows: C-1.31.7
func TestKeep_ContainersEndAndChange_DevicesAreFree(t *testing.T) {
	t.Parallel()
	n := start(t)
	n.plug(newFake(), "a", "b")
	usable := func(want int) {
		t.Helper()
		if got := len(n.claims.inUse("x.com/gpu")); got != 2-want {
			t.Errorf("%d devices are in use, want %d", got, 2-want)
		}
	}
	if _, err := n.allocate("u1", 2, nil); err != nil {
		t.Fatal(err)
	}
	n.Keep("u1", map[string]bool{"c": true})
	usable(0)
	if got, err := n.allocate("u1", 0, nil); err != nil || len(got) > 0 { // an edit: it requests none
		t.Errorf("%+v, %v", got, err)
	}
	usable(2)
	if _, err := n.allocate("u1", 1, nil); err != nil {
		t.Fatal(err)
	}
	n.Keep("u1", map[string]bool{"other": true}) // an edit removed the container
	usable(2)
	n.Adopt([]pod.DeviceHolder{{UID: "u3", Others: []pod.DeviceAllocation{{Resource: "x.com/gpu", Devices: []string{"a"}}}}}, true)
	n.Keep("u3", map[string]bool{"c": true})
	usable(1)
	n.Keep("u3", nil)
	usable(2)
}
