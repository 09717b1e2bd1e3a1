package stats_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	api "k8s.io/kubelet/pkg/apis/stats/v1alpha1"

	"github.com/nodectl/nodectl/pkg/cgroup"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// stage is pods on a real containerd, made by the adapters without an engine, and Stats of
// them.
type stage struct {
	*testing.T
	node  *node.Node
	rt    *cri.Runtime
	cg    *cgroup.Cgroups
	root  string
	pods  []v1.Pod
	calls atomic.Int64
	*stats.Stats
}

func newStage(t *testing.T) *stage {
	t.Helper()
	s := &stage{T: t, node: node.Shared(t), root: t.TempDir()}
	rt, err := cri.Dial(cri.Config{
		Endpoint: s.node.Endpoint, Node: "n1", RootDir: s.root, PodLogsDir: s.node.LogsDir, CgroupParent: s.node.CgroupParent,
		Observe: func(cri.Call) { s.calls.Add(1) },
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = rt.Close() })
	s.rt = rt
	s.cg = cgroup.New(cgroup.Config{
		Root: s.node.CgroupParent, Node: "n1", RootDir: s.root, Driver: rt.Driver,
		Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("2"), v1.ResourceMemory: resource.MustParse("2Gi")},
	})
	s.Stats = stats.New(stats.Config{
		Node: "n1", RootDir: s.root, PodLogsDir: s.node.LogsDir, Runtime: rt, Cgroups: s.cg,
		Pods: func() []v1.Pod { return s.pods },
	})
	return s
}

// run makes a pod, starts its containers, and returns it with its status from the runtime.
// The pod is removed at the end of the test.
func (s *stage) run(p *v1.Pod) *v1.Pod {
	s.Helper()
	p.Namespace, p.Name, p.UID = "default", "pod-"+strconv.Itoa(len(s.pods)), types.UID(fmt.Sprintf("uid-%d-%d", os.Getpid(), len(s.pods)))
	for i := range p.Spec.Containers {
		p.Spec.Containers[i].Image, p.Spec.Containers[i].ImagePullPolicy = node.Stamp, v1.PullIfNotPresent
		p.Spec.Containers[i].TerminationMessagePath = "/dev/termination-log"
	}
	want := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Hash: "v1-x", SandboxHash: "v1-x", ContainerHashes: map[string]string{}}
	if _, err := s.rt.Ready(s.Context()); err != nil {
		s.Fatal(err)
	}
	parent, err := s.cg.Ensure(want)
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		ctx := context.Background()
		if err := errors.Join(s.node.RemovePods(ctx), s.cg.Destroy(string(p.UID))); err != nil {
			s.Error(err)
		}
		if _, err := s.cg.Sweep(nil); err != nil {
			s.Error(err)
		}
	})
	place := pod.Place{CgroupParent: parent}
	box, err := s.rt.RunSandbox(s.Context(), pod.SandboxRequest{Want: want, Instance: 1, Place: place})
	if err != nil {
		s.Fatal(err)
	}
	now := metav1.Now()
	p.Status.Phase, p.Status.StartTime = v1.PodRunning, &now
	for _, c := range p.Spec.Containers {
		id, err := s.rt.CreateContainer(s.Context(), pod.CreateRequest{Want: want, Container: c.Name, Sandbox: &pod.Sandbox{ID: box, Instance: 1}, Place: place})
		if err == nil {
			err = s.rt.StartContainer(s.Context(), id)
		}
		if err != nil {
			s.Fatal(err)
		}
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Image: c.Image, ContainerID: "containerd://" + id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
	s.pods = append(s.pods, *p)
	return p
}

func one(args ...string) *v1.Pod {
	return &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Args: args}}}}
}

// memoryOf and cpuOf read the kernel's own numbers of a container. They find its cgroup by
// its process, without the code under test.
func (s *stage) memoryOf(id string) uint64 {
	return s.file(id, "memory", "memory.usage_in_bytes", "memory.current", 1)
}

func (s *stage) cpuOf(id string) uint64 {
	return s.file(id, "cpuacct", "cpuacct.usage", "cpu.stat", 1000)
}

// file reads the last word of the first line of a file of the controller, in cgroup v1 or
// v2, each in its unit.
func (s *stage) file(id, controller, v1, v2 string, unit uint64) uint64 {
	s.Helper()
	processes := s.node.Processes(id)
	if len(processes) == 0 {
		s.Fatalf("container %s has no process", id)
	}
	of := func(controller, name string, unit uint64) (uint64, bool) {
		for _, line := range processes[0].Cgroups {
			text, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", controller, line, name))
			if err != nil {
				continue
			}
			first, _, _ := strings.Cut(string(text), "\n")
			words := strings.Fields(first)
			n, err := strconv.ParseUint(words[len(words)-1], 10, 64)
			return n * unit, err == nil
		}
		return 0, false
	}
	if n, ok := of(controller, v1, 1); ok {
		return n
	}
	n, ok := of("", v2, unit)
	if !ok {
		s.Fatalf("container %s is in no cgroup of %s", id, controller)
	}
	return n
}

// holds waits until a container uses so much memory.
func (s *stage) holds(id string, want uint64) {
	s.Helper()
	wait.NoError(s, func() error {
		if used := s.memoryOf(id); used < want {
			return fmt.Errorf("the container uses %d bytes yet", used)
		}
		return nil
	})
}

func idOf(p *v1.Pod, i int) string {
	return strings.TrimPrefix(p.Status.ContainerStatuses[i].ContainerID, "containerd://")
}

// get makes a request as a scraper does.
func get(t testing.TB, h http.Handler) string {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil))
	if w.Code != http.StatusOK {
		t.Fatalf("status %d: %s", w.Code, w.Body)
	}
	return w.Body.String()
}

// parse reads series as any scraper does.
func parse(t testing.TB, text string) map[string]*dto.MetricFamily {
	t.Helper()
	p := expfmt.NewTextParser(model.LegacyValidation)
	all, err := p.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("%v in:\n%s", err, text)
	}
	return all
}

// near reports whether two numbers differ by at most a share.
func near(a, b uint64, share float64) bool {
	return math.Abs(float64(a)-float64(b)) <= share*math.Max(float64(a), float64(b))
}

// between reports whether n, which was read between two other numbers, lies between them. It may
// be outside by a share of them, because the container's memory may still grow.
func between(n, earlier, later uint64, share float64) bool {
	low, high := float64(min(earlier, later)), float64(max(earlier, later))
	return float64(n) >= low*(1-share) && float64(n) <= high*(1+share)
}

// summary returns a summary, and the kernel's numbers of a container: its memory, which is the same
// before and after the summary, and its CPU time before and after. The CPU time may grow by much
// meanwhile: the summary waits for rates, and measures disks.
func (s *stage) summary(id string) (sum *api.Summary, memory, earlier, later uint64) {
	s.Helper()
	age := time.Duration(0)
	wait.NoError(s, func() (err error) {
		s.Later(age) // each reading is new
		age += 2 * time.Second
		memory, earlier = s.memoryOf(id), s.cpuOf(id)
		if sum, err = s.Summary(s.Context(), false); err != nil {
			return err
		}
		later = s.cpuOf(id)
		if now := s.memoryOf(id); now != memory {
			return fmt.Errorf("the container's memory changes from %d to %d bytes", memory, now)
		}
		return nil
	})
	return sum, memory, earlier, later
}

// TestC_1_40_7_SummaryIsWhatTheKernelSays compares each number of a pod with a memory limit
// with its cgroup's.
//
// Shows: C-1.40.7
func TestC_1_40_7_SummaryIsWhatTheKernelSays(t *testing.T) {
	s := newStage(t)
	shape := one("alloc", "24", "print", "said", "forever")
	shape.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("500m")}
	p := s.run(shape)
	id := idOf(p, 0)
	s.holds(id, 24<<20)
	sum, memory, earlier, later := s.summary(id)
	if len(sum.Pods) != 1 || len(sum.Pods[0].Containers) != 1 {
		t.Fatalf("%+v", sum.Pods)
	}
	got := sum.Pods[0]
	c := got.Containers[0]
	if got.PodRef.Name != p.Name || got.PodRef.UID != string(p.UID) || c.Name != "main" {
		t.Errorf("%+v %s", got.PodRef, c.Name)
	}
	if !near(*c.Memory.UsageBytes, memory, 0.1) || *c.Memory.WorkingSetBytes > *c.Memory.UsageBytes || *c.Memory.WorkingSetBytes < 24<<20 {
		t.Errorf("memory %d, working set %d; the kernel says %d", *c.Memory.UsageBytes, *c.Memory.WorkingSetBytes, memory)
	}
	if want := 64<<20 - *c.Memory.WorkingSetBytes; *c.Memory.AvailableBytes != want {
		t.Errorf("available %d, want %d", *c.Memory.AvailableBytes, want)
	}
	if used := *c.CPU.UsageCoreNanoSeconds; used == 0 || used < earlier || used > later {
		t.Errorf("cpu %d; the kernel says %d before and %d after", used, earlier, later)
	}
	if c.CPU.UsageNanoCores == nil || sum.Node.CPU.UsageNanoCores == nil || *sum.Node.CPU.UsageNanoCores == 0 || got.CPU.UsageNanoCores == nil {
		t.Errorf("no rates in the first answer: %+v", c.CPU)
	}
	if *got.Memory.WorkingSetBytes < *c.Memory.WorkingSetBytes || *got.CPU.UsageCoreNanoSeconds < *c.CPU.UsageCoreNanoSeconds {
		t.Errorf("the pod %+v has less than its container %+v", got.Memory, c.Memory)
	}
	if *got.ProcessStats.ProcessCount != 1 { // without the sandbox's
		t.Errorf("%d processes", *got.ProcessStats.ProcessCount)
	}
	if got.Network == nil || got.Network.Name != "eth0" || got.Network.TxBytes == nil {
		t.Errorf("network %+v", got.Network)
	}
	if *c.Rootfs.CapacityBytes == 0 || c.Rootfs.UsedBytes == nil || *c.Logs.UsedBytes == 0 || *got.EphemeralStorage.UsedBytes < *c.Logs.UsedBytes {
		t.Errorf("rootfs %+v, logs %+v, all %+v", c.Rootfs, c.Logs, got.EphemeralStorage)
	}
	n := sum.Node
	if *n.Memory.AvailableBytes == 0 || *n.Fs.CapacityBytes == 0 || *n.Runtime.ImageFs.CapacityBytes == 0 || *n.Rlimit.MaxPID == 0 || *n.Rlimit.NumOfRunningProcesses == 0 {
		t.Errorf("%+v", n)
	}
	var system []string
	for _, c := range n.SystemContainers {
		system = append(system, c.Name)
	}
	if strings.Join(system, " ") != "kubelet pods" {
		t.Errorf("system containers %q", system)
	}
	for _, c := range n.SystemContainers {
		if c.CPU.UsageNanoCores == nil || c.CPU.PSI == nil || c.Memory.PSI == nil || c.IO == nil || c.IO.PSI == nil {
			t.Errorf("%s: CPU %+v, memory %+v, IO %+v", c.Name, c.CPU, c.Memory, c.IO)
		}
	}
}

// TestC_1_40_7_BusyPodHasItsRate: the rate of a busy pod is that between two requests.
//
// Shows: C-1.40.7
func TestC_1_40_7_BusyPodHasItsRate(t *testing.T) {
	s := newStage(t)
	s.run(one("count", "100000000", "0s"))
	ask := func() *api.Summary {
		sum, err := s.Summary(t.Context(), true)
		if err != nil {
			t.Fatal(err)
		}
		return sum
	}
	before := ask().Pods[0].Containers[0].CPU
	sum := wait.Until(t, "there is another answer", func() (*api.Summary, bool) {
		sum := ask()
		return sum, sum.Pods[0].Containers[0].CPU.Time.After(before.Time.Time)
	})
	cpu := sum.Pods[0].Containers[0].CPU
	rate := uint64(float64(*cpu.UsageCoreNanoSeconds-*before.UsageCoreNanoSeconds) / cpu.Time.Sub(before.Time.Time).Seconds())
	if got := *cpu.UsageNanoCores; !near(got, rate, 0.01) || got == 0 {
		t.Errorf("rate %d, want %d", got, rate)
	}
	if sum.Node.Fs != nil || sum.Pods[0].Network != nil || sum.Pods[0].VolumeStats != nil {
		t.Error("only_cpu_and_memory has more")
	}
}

// TestGonePodLeavesNoSeries: a removed pod is neither in a summary nor in any series.
func TestGonePodLeavesNoSeries(t *testing.T) {
	s := newStage(t)
	first, second := s.run(one("forever")), s.run(one("forever"))
	text := func() string { return get(t, s.Resource()) + get(t, s.Cadvisor()) }
	if got := text(); !strings.Contains(got, first.Name) || !strings.Contains(got, second.Name) {
		t.Fatalf("not both pods are there:\n%s", got)
	}
	s.pods = s.pods[1:]
	if _, err := s.node.Runtime.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: idOf(first, 0)}); err != nil {
		t.Fatal(err)
	}
	s.Later(2 * time.Second)
	if got := text(); strings.Contains(got, first.Name) || strings.Contains(got, string(first.UID)) || !strings.Contains(got, second.Name) {
		t.Errorf("of the pod that is gone, or not of the other:\n%s", got)
	}
}

// TestC_1_40_7_CadvisorRowsOnContainerd: the rows have the labels that dashboards join, and
// the kernel's numbers.
//
// Shows: C-1.40.7
func TestC_1_40_7_CadvisorRowsOnContainerd(t *testing.T) {
	s := newStage(t)
	shape := one("alloc", "8", "forever")
	shape.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi"), v1.ResourceCPU: resource.MustParse("500m")}
	p := s.run(shape)
	s.holds(idOf(p, 0), 8<<20)
	earlier := s.memoryOf(idOf(p, 0))
	all := parse(t, get(t, s.Cadvisor()))
	value := func(name string, want map[string]string) float64 {
		t.Helper()
		for _, m := range all[name].GetMetric() {
			has := map[string]string{}
			for _, l := range m.GetLabel() {
				has[l.GetName()] = l.GetValue()
			}
			ok := true
			for k, v := range want {
				ok = ok && has[k] == v
			}
			if ok {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue() + m.GetUntyped().GetValue()
			}
		}
		t.Errorf("no %s with %v", name, want)
		return 0
	}
	of := map[string]string{"namespace": "default", "pod": p.Name, "container": "main", "image": node.Stamp, "name": idOf(p, 0)}
	if got, want := value("container_memory_usage_bytes", of), s.memoryOf(idOf(p, 0)); !between(uint64(got), earlier, want, 0.2) {
		t.Errorf("memory %v, the kernel says %d", got, want)
	}
	if got := value("container_spec_cpu_quota", of); got != 50000 {
		t.Errorf("quota %v", got)
	}
	if got := value("container_spec_memory_limit_bytes", of); got != 64<<20 {
		t.Errorf("limit %v", got)
	}
	value("container_cpu_cfs_periods_total", of)
	if got := value("container_processes", of); got != 1 {
		t.Errorf("%v processes", got)
	}
	pods := map[string]string{"namespace": "default", "pod": p.Name, "container": "", "name": ""}
	if value("container_cpu_usage_seconds_total", pods) < value("container_cpu_usage_seconds_total", of) {
		t.Error("the pod has used less than its container")
	}
	value("container_network_receive_bytes_total", map[string]string{"pod": p.Name, "container": "", "interface": "eth0"})
	if got := value("container_cpu_usage_seconds_total", map[string]string{"id": "/", "cpu": "total"}); got == 0 {
		t.Error("the machine was never busy")
	}
	value("machine_cpu_cores", nil)
	value("machine_memory_bytes", nil)
	if got := value("container_scrape_error", nil); got != 0 {
		t.Errorf("container_scrape_error %v", got)
	}
}
