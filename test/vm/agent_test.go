//go:build vm

package vm

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/test/node"
)

// agent is a nodectl under the shipped unit's rules beside the shipped one, with a
// containerd of its own, whose cgroup driver is as the test says.
type agent struct {
	unit, home, manifests, socket string
	systemd                       bool
	top, prefix                   string // all pods' cgroup; with systemd, the prefix of the names in it
}

// containerdConfig is as a distribution has it, with the driver for SystemdCgroup.
const containerdConfig = `version = 4
root = '%[1]s/containerd'
state = '%[2]s/state'
oom_score = -999
[plugins.'io.containerd.server.v1.grpc']
  address = '%[2]s/containerd.sock'
[plugins.'io.containerd.server.v1.ttrpc']
  address = '%[2]s/containerd.sock.ttrpc'
[plugins.'io.containerd.nri.v1.nri']
  disable = true
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '%[5]s'
[plugins.'io.containerd.cri.v1.runtime']
  disable_hugetlb_controller = false
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dirs = ['%[3]s/cni']
  conf_dir = '%[1]s/cni'
[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
  runtime_type = 'io.containerd.runc.v2'
  runtime_path = '%[3]s/containerd-shim-runc-v2'
  disable_pause_image_pull = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
    BinaryName = '%[3]s/runc'
    Root = '%[2]s/runc'
    SystemdCgroup = %[4]t
`

const network = `{"cniVersion": "1.0.0", "name": "%[1]s", "plugins": [{"type": "bridge", "bridge": "%[1]s", "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": "%[2]s/ipam", "ranges": [[{"subnet": "10.99.0.0/16"}]]}}]}`

// newAgent starts an agent, and removes all of it when the test ends. root is its
// --cgroup-root, one part of letters and dashes, or "".
func newAgent(t testing.TB, driver, root string) *agent {
	t.Helper()
	programs, err := node.Programs()
	if err != nil {
		t.Fatal(err)
	}
	home, run := "/var/lib/vm-"+driver, "/run/vm-"+driver
	a := &agent{
		unit: "vm-nodectl-" + driver, home: home, manifests: home + "/manifests",
		socket: "unix://" + run + "/containerd.sock", systemd: driver == "systemd",
		top: filepath.Join(cgroupRoot, root, "kubepods"),
	}
	if a.systemd { // whose dashes lead a level down
		slice := strings.ReplaceAll(root, "-", "_")
		if a.prefix = "kubepods"; slice != "" {
			a.prefix = slice + "-kubepods"
			slice += ".slice"
		}
		a.top = filepath.Join(cgroupRoot, slice, a.prefix+".slice")
	}
	for _, dir := range []string{home + "/root/images", a.manifests, home + "/cni", run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	unit := read(t, unitFile)
	const start = "ExecStart=/usr/bin/nodectl serve"
	if !strings.Contains(unit, start+"\n") {
		t.Fatalf("%s does not say %s", unitFile, start)
	}
	unit = strings.Replace(unit, start, start+" --root-dir "+home+"/root --pod-logs-dir "+home+"/logs --node-name "+nodeName+" --filename "+a.manifests+
		" --runtime-endpoint "+a.socket+" --cgroup-root /"+root+" --pod-pids-limit 150 --system-reserved cpu=100m,memory=256Mi,pid=1000 --log-level debug", 1)
	for file, text := range map[string]string{
		home + "/config.toml":                        fmt.Sprintf(containerdConfig, home, run, programs, a.systemd, node.Pause),
		home + "/cni/10-net.conflist":                fmt.Sprintf(network, "vm-"+driver, run),
		home + "/root/images/stamp.tar":              read(t, filepath.Join(node.Repo(), "bin/images/stamp.tar")),
		home + "/root/images/pause.tar":              read(t, filepath.Join(programs, "pause.tar")),
		"/run/systemd/system/" + a.unit + ".service": unit,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { a.end(t) })
	output(t, "systemd-run", "--collect", "--unit=vm-containerd-"+driver, "-p", "Delegate=yes", "-p", "KillMode=process", "-p", "LimitNOFILE=65536",
		"-p", "TasksMax=infinity", "-E", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", programs+"/containerd", "-c", home+"/config.toml")
	systemctl(t, "daemon-reload")
	systemctl(t, "start", a.unit)
	return a
}

// end stops the agent when its pods have gone, and its containerd.
func (a *agent) end(t testing.TB) {
	all, _ := filepath.Glob(a.manifests + "/*")
	for _, f := range all {
		_ = os.Remove(f)
	}
	eventually(t, func() error {
		if left := a.under(""); len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	if t.Failed() {
		out, _ := exec.Command("journalctl", "--no-pager", "-o", "short-monotonic", "-u", a.unit, "-n", "150").CombinedOutput()
		t.Logf("%.30000s", out)
		out, _ = exec.Command("journalctl", "--no-pager", "-o", "short-monotonic", "-u", "vm-containerd-*", "-p", "warning", "-n", "40").CombinedOutput()
		t.Logf("%.20000s", out)
	}
	for _, unit := range []string{a.unit, strings.Replace(a.unit, "nodectl", "containerd", 1)} {
		if out, err := exec.Command("systemctl", "stop", unit).CombinedOutput(); err != nil {
			t.Errorf("stop %s: %v\n%s", unit, err, out)
		}
	}
}

// put writes a pod's manifest: spec is YAML between braces.
func (a *agent) put(t testing.TB, name, uid, spec string) {
	t.Helper()
	text := "apiVersion: v1\nkind: Pod\nmetadata: {name: " + name + ", uid: " + uid + "}\nspec: {terminationGracePeriodSeconds: 2, " + spec + "}\n"
	file := filepath.Join(a.manifests, name+".yaml")
	if err := os.WriteFile(file+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

func (a *agent) drop(t testing.TB, name string) {
	t.Helper()
	if err := os.Remove(filepath.Join(a.manifests, name+".yaml")); err != nil {
		t.Fatal(err)
	}
}

// await returns when ok accepts the agent's last report of a pod.
func (a *agent) await(t testing.TB, name, what string, ok func(*v1.Pod) bool) {
	t.Helper()
	eventually(t, func() error {
		all, err := journal.Read(a.home + "/root/journal.jsonl")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		for key, e := range all {
			if key.Name != name+"-"+nodeName || e.Pod == nil {
				continue
			}
			if ok(e.Pod) {
				return nil
			}
			return fmt.Errorf("pod %s: %s: is %+v", name, what, e.Pod.Status)
		}
		return fmt.Errorf("pod %s: %s: not there", name, what)
	})
}

// said returns all that the agent has reported of a pod.
func (a *agent) said(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile(a.home + "/root/journal.jsonl")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var b strings.Builder
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, name+"-"+nodeName) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// kill ends the agent as kill -9 does, and returns when there is another one.
func (a *agent) kill(t testing.TB) {
	t.Helper()
	old := systemctl(t, "show", a.unit, "--value", "-p", "MainPID")
	systemctl(t, "kill", "-s", "KILL", a.unit)
	eventually(t, func() error {
		now := systemctl(t, "show", a.unit, "--value", "-p", "MainPID")
		state := systemctl(t, "show", a.unit, "--value", "-p", "ActiveState")
		if now == old || now == "0" || state != "active" {
			return fmt.Errorf("process %s was %s, %s", now, old, state)
		}
		return nil
	})
}

// ids returns the containers that run, by pod and name.
func (a *agent) ids(t testing.TB) map[string]map[string]string {
	t.Helper()
	conn, err := grpc.NewClient(a.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	list, err := cri.NewRuntimeServiceClient(conn).ListContainers(t.Context(), &cri.ListContainersRequest{
		Filter: &cri.ContainerFilter{State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}})
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]map[string]string{}
	for _, c := range list.Containers {
		name := strings.TrimSuffix(c.Labels["io.kubernetes.pod.name"], "-"+nodeName)
		if all[name] == nil {
			all[name] = map[string]string{}
		}
		all[name][c.Metadata.Name] = c.Id
	}
	return all
}

func same(a, b map[string]map[string]string) bool {
	return maps.EqualFunc(a, b, maps.Equal)
}

// dir is where a QoS class has its pods; "" is that of guaranteed ones, and all.
func (a *agent) dir(class string) string {
	if a.systemd && class != "" {
		return a.top + "/" + a.prefix + "-" + class + ".slice"
	}
	return filepath.Join(a.top, class)
}

// pod is where a pod's cgroup is (C-1.41.1).
func (a *agent) pod(class, uid string) string {
	dir := a.dir(class)
	if !a.systemd {
		return dir + "/pod" + uid
	}
	return dir + "/" + strings.TrimSuffix(filepath.Base(dir), ".slice") + "-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice"
}

// scope is where the runtime has a container's cgroup.
func (a *agent) scope(pod, id string) string {
	if a.systemd {
		return pod + "/cri-containerd-" + id + ".scope"
	}
	return pod + "/" + id
}

// under lists the cgroups of all pods: the top, tiers and pods, without the runtime's cgroups in
// them.
func (a *agent) under(class string) (all []string) {
	dir := a.dir(class)
	children, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	all = append(all, dir)
	for _, e := range children {
		child := filepath.Join(dir, e.Name())
		switch {
		case !e.IsDir():
		case class == "" && (child == a.dir("burstable") || child == a.dir("besteffort")):
			all = append(all, a.under(strings.TrimSuffix(strings.TrimPrefix(e.Name(), a.prefix+"-"), ".slice"))...)
		default:
			all = append(all, child)
		}
	}
	slices.Sort(all)
	return all
}
