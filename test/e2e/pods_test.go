package e2e

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/node"
)

// TestB1_InitContainersAndSharedEmptyDir: init containers run one after the other, and to
// completion, before the others. An emptyDir is one directory for all of them. Their output
// is in the kubelet's log files. When the manifest is removed, all of it is removed.
//
// Shows: B1, C-1.20
func TestB1_InitContainersAndSharedEmptyDir(t *testing.T) {
	s := parallelStage(t)
	mount := "volumeMounts: [{name: data, mountPath: /data}]"
	s.write("web.yaml", manifest("web", []string{
		container("a", "cat, /data/two, write, /data/a, from-a, forever", mount),
		container("b", "wait, /data/a, cat, /data/a, forever", mount),
	},
		"volumes: [{name: data, emptyDir: {}}]",
		"initContainers:",
		container("one", "write, /data/one, from-one, sleep, 200ms", mount),
		container("two", "exists, /data/one, write, /data/two, from-two", mount)))
	s.serve()
	first := s.awaitRunning("web", "a", "b")
	s.awaitLog("web", "a", 0, "from-two")
	s.awaitLog("web", "b", 0, "from-a")

	var ends []time.Time
	for _, name := range []string{"one", "two"} {
		s.eventually(func() error {
			if len(s.ended("web", name)) != 1 {
				return fmt.Errorf("init container %s has ended %d times", name, len(s.ended("web", name)))
			}
			return nil
		})
		l := s.ended("web", name)[0]
		if l.exit != 0 {
			t.Errorf("init container %s ended with %d", name, l.exit)
		}
		if n := len(ends); n > 0 && l.from.Before(ends[n-1]) {
			t.Errorf("init container %s began before the one before it had ended", name)
		}
		ends = append(ends, l.to)
	}
	for _, c := range s.containers("web") {
		if c.State == cri.ContainerState_CONTAINER_RUNNING && time.Unix(0, c.CreatedAt).Before(ends[1]) {
			t.Errorf("container %s was made before the init containers had ended", c.Metadata.Name)
		}
	}
	st := s.awaitReady("web", true)
	if st.Phase != v1.PodRunning {
		t.Errorf("status: %s", describe(st))
	}
	found, _ := filepath.Glob(filepath.Join(s.root, "pods", s.uid("web"), "*/volumes/kubernetes.io~empty-dir/data/a"))
	if len(found) != 1 {
		t.Errorf("the emptyDir on the node: %v", found)
	}

	// A restarted container finds the files of the old one, and no init container runs again.
	if err := unix.Kill(first["a"].pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	s.awaitLog("web", "a", 1, "from-two")
	if now := s.awaitRunning("web", "a", "b"); now["b"] != first["b"] || len(s.ended("web", "one")) != 1 {
		t.Errorf("after a crash of a, b was %+v, is %+v; init container one: %v", first["b"], now["b"], s.ended("web", "one"))
	}

	s.remove("web.yaml")
	s.awaitGone("web")
	s.nothingLeft()
}

// TestB1_PodNetwork: a pod has its own address where its page is reachable, its own host
// name, and its host port on the node.
//
// Shows: B1
func TestB1_PodNetwork(t *testing.T) {
	t.Parallel()
	s := newStage(t, node.New(t)) // with host ports
	port := freePort(t)
	s.write("web.yaml", manifest("web", []string{
		container("main", `serve, ":8080", forever`, "ports: [{containerPort: 8080, hostPort: "+port+"}]"),
	}))
	s.serve()
	st := s.awaitReady("web", true)
	box := s.sandbox("web")
	if st.PodIP == "" || st.PodIP != box.Network.GetIp() {
		t.Errorf("pod IP is reported as %q, the sandbox has %q", st.PodIP, box.Network.GetIp())
	}
	for _, address := range []string{st.PodIP + ":8080", "127.0.0.1:" + port} {
		if got := s.page(address, "/"); got != s.full("web") {
			t.Errorf("page of %s: %q, want the pod's name", address, got)
		}
	}
	s.remove("web.yaml")
	s.awaitGone("web")
	if c, err := net.DialTimeout("tcp", "127.0.0.1:"+port, time.Second); err == nil {
		c.Close()
		t.Error("the host port still answers")
	}
}

// TestB1_HostNetwork: such a pod is in the node's network, with the node's host name, and
// reports the node's address.
//
// Shows: B1
func TestB1_HostNetwork(t *testing.T) {
	s := parallelStage(t)
	port := freePort(t)
	s.write("web.yaml", manifest("web", []string{container("main", `serve, "127.0.0.1:`+port+`", forever`)}, "hostNetwork: true"))
	s.serve()
	st := s.awaitReady("web", true)
	main := s.awaitRunning("web", "main")["main"]
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if got := s.page("127.0.0.1:"+port, "/"); got != host {
		t.Errorf("page: %q, want the node's name %q", got, host)
	}
	if st.HostIP == "" || st.PodIP != st.HostIP {
		t.Errorf("pod IP %q, host IP %q", st.PodIP, st.HostIP)
	}
	ours, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if its, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", main.pid)); its != ours {
		t.Errorf("network namespace %s, the node's is %s (%v)", its, ours, err)
	}
}

// TestC_1_22_11_LabelsAndAnnotations: the CRI objects have the labels and annotations that
// tools for the kubelet expect.
//
// Shows: C-1.22.11
func TestC_1_22_11_LabelsAndAnnotations(t *testing.T) {
	s := parallelStage(t)
	text := manifest("web", []string{container("main", "forever")}, "terminationGracePeriodSeconds: 7")
	s.write("web.yaml", strings.Replace(text, "{name: web}",
		"{name: web, labels: {app: web, "+pod.LabelPodName+": fake}, annotations: {note: hello}}", 1))
	s.serve()
	id := s.awaitRunning("web", "main")["main"].id
	box, c := s.sandbox("web"), s.containerStatus(id)
	uid := box.Metadata.Uid
	if box.Metadata.Name != s.full("web") || box.Metadata.Namespace != "default" || len(uid) != 32 {
		t.Errorf("sandbox is %v", box.Metadata)
	}
	for key, want := range map[string]string{
		"io.kubernetes.pod.name": s.full("web"), "io.kubernetes.pod.namespace": "default", "io.kubernetes.pod.uid": uid,
		"nodectl.dev/node": s.name,
	} {
		if box.Labels[key] != want || c.Labels[key] != want {
			t.Errorf("label %s: sandbox %q, container %q, want %q", key, box.Labels[key], c.Labels[key], want)
		}
	}
	if box.Labels["app"] != "web" || c.Labels["io.kubernetes.container.name"] != "main" {
		t.Errorf("labels: sandbox %v, container %v", box.Labels, c.Labels)
	}
	for key, want := range map[string]string{"note": "hello", "kubernetes.io/config.source": "file"} {
		if box.Annotations[key] != want {
			t.Errorf("sandbox annotation %s: %q, want %q", key, box.Annotations[key], want)
		}
	}
	for key, want := range map[string]string{
		"io.kubernetes.container.restartCount":           "0",
		"io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
		"io.kubernetes.pod.terminationGracePeriod":       "7",
	} {
		if c.Annotations[key] != want {
			t.Errorf("container annotation %s: %q, want %q", key, c.Annotations[key], want)
		}
	}
	if c.Annotations["io.kubernetes.container.hash"] == "" || box.Annotations["kubernetes.io/config.hash"] == "" {
		t.Errorf("a hash is missing: %v, %v", c.Annotations, box.Annotations)
	}
	if want := filepath.Join(s.logs, "default_"+s.full("web")+"_"+uid, "main/0.log"); c.LogPath != want {
		t.Errorf("log path %s, want %s", c.LogPath, want)
	}
}

// TestC_1_22_14_ResourcesReachTheCgroup: the kernel has a container's requests and limits,
// and pods are below --cgroup-root.
//
// Shows: C-1.22.14
func TestC_1_22_14_ResourcesReachTheCgroup(t *testing.T) {
	s := parallelStage(t)
	s.write("web.yaml", manifest("web", []string{
		container("some", "forever", "resources: {requests: {cpu: 250m, memory: 16Mi}, limits: {cpu: 500m, memory: 32Mi}}"),
		container("none", "forever"),
	}))
	s.serve()
	now := s.awaitRunning("web", "some", "none")
	groups := func(name string) []string { return s.node.Processes(now[name].id)[0].Cgroups }
	for _, name := range []string{"some", "none"} {
		for _, g := range groups(name) {
			if g != "/" && !strings.HasPrefix(g, s.node.CgroupParent+"/") {
				t.Errorf("container %s is in cgroup %s, want one below %s", name, g, s.node.CgroupParent)
			}
		}
	}
	want := map[string]string{
		"cpu/cpu.shares": "256", "cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000",
		"memory/memory.limit_in_bytes": strconv.Itoa(32 << 20),
	}
	least := "cpu/cpu.shares"
	leastWant := "2"
	if unified() {
		want = map[string]string{"cpu.max": "50000 100000", "memory.max": strconv.Itoa(32 << 20)}
		least, leastWant = "cpu.weight", "1"
	}
	for file, value := range want {
		if got := cgroupFile(groups("some"), file); got != value {
			t.Errorf("%s of the limited container: %s, want %s", file, got, value)
		}
	}
	if got := cgroupFile(groups("none"), least); got != leastWant {
		t.Errorf("%s of the container that asks for nothing: %s, want %s", least, got, leastWant)
	}
}

// TestEnvironmentOfContainers: variables, including references to others.
func TestEnvironmentOfContainers(t *testing.T) {
	s := parallelStage(t)
	s.write("env.yaml", manifest("env", []string{container("main", "env, TWO, print, $(ONE)-$$(ONE), forever",
		`env: [{name: ONE, value: "1"}, {name: TWO, value: "$(ONE)+1"}]`)}))
	s.serve()
	s.awaitRunning("env", "main")
	s.awaitLog("env", "main", 0, "1+1\n", "1-$(ONE)\n")
}

// page returns the first line at a URL of the scenario's pod, once it answers.
func (s *stage) page(address, path string) string {
	s.Helper()
	var line string
	client := http.Client{Timeout: 2 * time.Second}
	s.eventually(func() error {
		r, err := client.Get("http://" + address + path)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err == nil && r.StatusCode != http.StatusOK {
			err = errors.New(r.Status)
		}
		line = strings.TrimSpace(string(text))
		return err
	})
	return line
}

// freePort is a free port for this test, as text for manifests and flags.
func freePort(t *testing.T) string {
	t.Helper()
	return strconv.Itoa(node.FreePort(t))
}

// unified reports whether this machine has only cgroup v2.
func unified() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	return err == nil
}

// cgroupFile returns the content of a file of a process's cgroup, or the error if it cannot
// be read.
func cgroupFile(groups []string, file string) string {
	for _, g := range groups {
		if g == "/" {
			continue
		}
		path := filepath.Join("/sys/fs/cgroup", g, file)
		if dir, name, v1 := strings.Cut(file, "/"); v1 {
			path = filepath.Join("/sys/fs/cgroup", dir, g, name)
		}
		if text, err := os.ReadFile(path); err == nil {
			return strings.TrimSpace(string(text))
		}
	}
	return "not found in " + strings.Join(groups, ", ")
}
