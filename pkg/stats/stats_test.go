package stats_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/stats"
)

// fake is pods on critest: a runtime that reports everything, and no cgroups.
type fake struct {
	*stats.Stats
	rt   *critest.Runtime
	cri  *cri.Runtime
	root string
	pods []v1.Pod
}

func newFake(t *testing.T, n int, edit func(*stats.Config)) *fake {
	t.Helper()
	f := &fake{rt: critest.New(), root: t.TempDir()}
	f.cri = f.rt.CRI(cri.Config{Node: "n1"})
	for i := range n {
		f.run(t, fmt.Sprintf("pod-%03d", i))
	}
	c := stats.Config{Node: "n1", RootDir: f.root, Runtime: f.cri, Pods: func() []v1.Pod { return f.pods }}
	if edit != nil {
		edit(&c)
	}
	f.Stats = stats.New(c)
	return f
}

func (f *fake) run(t *testing.T, name string) {
	t.Helper()
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	p.Spec.Containers = []v1.Container{{Name: "main", Image: "busybox"}, {Name: "side", Image: "busybox"}}
	want := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Hash: "v1-x", SandboxHash: "v1-x", ContainerHashes: map[string]string{}}
	box, err := f.cri.RunSandbox(t.Context(), pod.SandboxRequest{Want: want, Instance: 1})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.Now()
	p.Status.Phase, p.Status.StartTime = v1.PodRunning, &now
	for _, c := range p.Spec.Containers {
		id, err := f.cri.CreateContainer(t.Context(), pod.CreateRequest{Want: want, Container: c.Name, Sandbox: &pod.Sandbox{ID: box, Instance: 1}})
		if err == nil {
			err = f.cri.StartContainer(t.Context(), id)
		}
		if err != nil {
			t.Fatal(err)
		}
		f.rt.SetMemory(want.Key, c.Name, 1<<20)
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, v1.ContainerStatus{
			Name: c.Name, Image: c.Image, ContainerID: "critest://" + id, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: now}},
		})
	}
	f.pods = append(f.pods, *p)
}

// TestCostAt110Pods: a scrape is one call to the runtime, for any endpoint and any number
// of concurrent requests, and no goroutine is left.
func TestCostAt110Pods(t *testing.T) {
	f := newFake(t, 110, nil)
	now := time.Now()
	f.Clock(func() time.Time { return now }) // constant, however busy the machine is
	before := f.rt.Calls()
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() { _ = get(t, f.Resource()) })
		all.Go(func() {
			if sum, err := f.Summary(t.Context(), true); err != nil || len(sum.Pods) != 110 {
				t.Errorf("%v", err)
			}
		})
	}
	all.Wait()
	after := f.rt.Calls()
	for method := range after {
		want := 0
		if method == "ListContainerStats" {
			want = 1
		}
		if got := after[method] - before[method]; got != want {
			t.Errorf("%d calls of %s, want %d", got, method, want)
		}
	}
	stacks := make([]byte, 4<<20)
	if all := string(stacks[:runtime.Stack(stacks, true)]); strings.Contains(all, "nodectl/pkg/stats.(") || strings.Contains(all, "promhttp.") {
		t.Errorf("something still runs:\n%s", all)
	}
	f.Later(2 * time.Second)
	_ = get(t, f.Cadvisor())
	if got := f.rt.Calls()["ListContainerStats"] - before["ListContainerStats"]; got != 2 {
		t.Errorf("%d calls after the second question, want 2", got)
	}
}

// TestSummary_CallerLeaves_OthersGetTheirAnswer: a caller that leaves neither waits for others nor makes them
// fail.
func TestSummary_CallerLeaves_OthersGetTheirAnswer(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, nil)
	lift := f.rt.Fault(critest.Fault{Method: "ListContainerStats", Hang: true})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := f.Summary(ctx, true); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v", err)
	}
	lift()
	if sum, err := f.Summary(t.Context(), true); err != nil || len(sum.Pods) != 1 {
		t.Errorf("%v", err)
	}
}

// TestSummary_SystemContainers_HaveRateAndPressure: the agent and the runtime have the values
// that the kubelet reports of them, and a rate from the first request on. A kernel that does not measure pressure
// reports zeros. A runtime without a process is left out.
//
// Shows: C-1.40.7
func TestSummary_SystemContainers_HaveRateAndPressure(t *testing.T) {
	t.Parallel()
	pid := os.Getpid()
	f := newFake(t, 1, func(c *stats.Config) { c.RuntimePID = func() int { return pid } })
	sum, err := f.Summary(t.Context(), false)
	if err != nil || len(sum.Node.SystemContainers) != 2 {
		t.Fatalf("%v, %+v", err, sum)
	}
	for i, name := range []string{"kubelet", "runtime"} {
		c := sum.Node.SystemContainers[i]
		if c.Name != name || c.CPU.UsageNanoCores == nil || *c.CPU.UsageCoreNanoSeconds == 0 || *c.Memory.RSSBytes == 0 || c.Memory.AvailableBytes != nil ||
			c.CPU.PSI == nil || c.Memory.PSI == nil || c.IO.PSI == nil || c.Swap == nil || c.StartTime.IsZero() {
			t.Errorf("%s: %+v", name, c)
		}
	}
	if n := sum.Node; n.CPU.PSI == nil || n.Memory.PSI == nil || n.IO == nil {
		t.Errorf("node: %+v", n)
	}
	pid = 0
	f.Later(time.Minute)
	if sum, err = f.Summary(t.Context(), true); err != nil || len(sum.Node.SystemContainers) != 1 || sum.Node.SystemContainers[0].CPU.PSI != nil {
		t.Errorf("%v, %+v", err, sum.Node.SystemContainers)
	}
}

// TestHungRuntimeIsAskedOnce: callers that wait for a runtime that hangs share its
// deadline; one after the other would take minutes.
func TestHungRuntimeIsAskedOnce(t *testing.T) {
	t.Parallel()
	hung := &slow{took: 1500 * time.Millisecond}
	f := newFake(t, 1, func(c *stats.Config) { hung.Runtime, c.Runtime = c.Runtime, hung })
	began := time.Now()
	// Time passes only while the runtime hangs, not while a busy machine does something
	// else.
	f.Clock(func() time.Time { return began.Add(time.Duration(hung.calls.Load()) * hung.took) })
	var all sync.WaitGroup
	for range 10 {
		all.Go(func() {
			if got := get(t, f.Resource()); !strings.Contains(got, "\nresource_scrape_error 1\n") || !strings.Contains(got, "node_cpu_usage_seconds_total") {
				t.Errorf("%s", got)
			}
		})
	}
	all.Wait()
	if n := hung.calls.Load(); n != 1 {
		t.Errorf("ten questions were %d calls", n)
	}
}

// slow is a runtime that returns an error late.
type slow struct {
	stats.Runtime
	took  time.Duration
	calls atomic.Int32 // finished calls
}

func (s *slow) ContainerUsage(ctx context.Context) ([]pod.ContainerUsage, error) {
	defer s.calls.Add(1)
	select {
	case <-time.After(s.took):
		return nil, errors.New("did not answer")
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// TestRuntimeThatDoesNotSay: the node's own numbers are there, and no pod has any.
func TestRuntimeThatDoesNotSay(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, nil)
	f.rt.Fault(critest.Fault{Method: "ListContainerStats", Err: status.Error(codes.Unimplemented, "no")})
	f.rt.Fault(critest.Fault{Method: "ImageFsInfo", Err: status.Error(codes.Unimplemented, "no")})
	sum, err := f.Summary(t.Context(), false)
	if err != nil || len(sum.Pods) != 0 || *sum.Node.Memory.WorkingSetBytes == 0 || *sum.Node.CPU.UsageCoreNanoSeconds == 0 || sum.Node.Runtime != nil {
		t.Errorf("%+v %v", sum, err)
	}
}

// TestPodWithoutCgroup: its usage is the sum of the runtime's numbers of its containers.
func TestPodWithoutCgroup(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, nil)
	sum, err := f.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	p := sum.Pods[0]
	if len(p.Containers) != 2 || *p.Memory.WorkingSetBytes != 2<<20 || *p.CPU.UsageCoreNanoSeconds == 0 || *p.Containers[0].Rootfs.UsedBytes != 4096 ||
		*p.EphemeralStorage.UsedBytes != 8192 || *sum.Node.Runtime.ImageFs.UsedBytes != 1<<20 {
		t.Errorf("%+v", p)
	}
}

// TestC_1_40_7_Volumes: each volume's usage and claim, and the pod's ephemeral storage.
//
// Shows: C-1.40.7
func TestC_1_40_7_Volumes(t *testing.T) {
	t.Parallel()
	f := newFake(t, 1, nil)
	p := &f.pods[0]
	quantity := resource.MustParse("1Mi")
	p.Spec.Volumes = []v1.Volume{
		{Name: "work", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &quantity}}},
		{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "claimed"}}},
		{Name: "host", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/"}}},
		{Name: "absent", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
	}
	work := filepath.Join(f.root, "pods", string(p.UID), "2", "volumes", "kubernetes.io~empty-dir", "work")
	data := filepath.Join(f.root, "volumes", "default", "claimed", "data")
	for _, dir := range []string{work, data, filepath.Join(f.root, "pods", string(p.UID), "1", "volumes", "kubernetes.io~empty-dir", "work")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(work, "f"), make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	sum, err := f.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, v := range sum.Pods[0].VolumeStats {
		names = append(names, v.Name)
		if v.CapacityBytes == nil || *v.CapacityBytes == 0 || (v.Name == "data") != (v.PVCRef != nil && v.PVCRef.Name == "claimed") {
			t.Errorf("%+v", v)
		}
		if v.Name == "work" && (*v.UsedBytes < 100<<10 || *v.UsedBytes > 200<<10 || *v.InodesUsed != 2) {
			t.Errorf("work takes %d bytes in %d files", *v.UsedBytes, *v.InodesUsed)
		}
	}
	if strings.Join(names, " ") != "work data" {
		t.Errorf("volumes %q", names)
	}
	if got := *sum.Pods[0].EphemeralStorage.UsedBytes; got < 100<<10+8192 || got > 200<<10 {
		t.Errorf("ephemeral storage %d", got)
	}
	claims := collect(t, f.Volumes())
	if len(claims) != 6 || !strings.Contains(claims[0], `persistentvolumeclaim="claimed"`) {
		t.Errorf("%q", claims)
	}
	if err := os.WriteFile(filepath.Join(work, "g"), make([]byte, 100<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, after := range []time.Duration{30 * time.Second, 2 * time.Minute} {
		f.Later(after)
		sum, err := f.Summary(t.Context(), false)
		if err != nil {
			t.Fatal(err)
		}
		if got := *sum.Pods[0].VolumeStats[0].UsedBytes; (got >= 200<<10) != (after > time.Minute) {
			t.Errorf("after %s it takes %d", after, got)
		}
	}
}

var update = flag.Bool("update", false, "rewrite testdata")

// golden compares lines with a file of testdata.
func golden(t *testing.T, name string, lines []string) {
	t.Helper()
	file, text := filepath.Join("testdata", name), strings.Join(lines, "\n")+"\n"
	if *update {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if text != string(want) {
		t.Errorf("%s differs (-update rewrites it):\n%s", name, text)
	}
}

// shape lists the names of series with their types and labels.
func shape(t *testing.T, text string) []string {
	t.Helper()
	all := map[string]bool{}
	for name, family := range parse(t, text) {
		for _, m := range family.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, l.GetName())
			}
			stamp := ""
			if m.TimestampMs != nil {
				stamp = " timestamp"
			}
			all[fmt.Sprintf("%s{%s} %s%s", name, strings.Join(labels, ","), strings.ToLower(family.GetType().String()), stamp)] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// TestC_1_40_7_NamesAndLabels: every series has cAdvisor's or the kubelet's name and
// labels.
//
// Shows: C-1.40.7
func TestC_1_40_7_NamesAndLabels(t *testing.T) {
	s := newStage(t)
	p := one("forever")
	p.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")}
	s.run(p)
	var all []string
	for _, line := range shape(t, get(t, s.Cadvisor())) {
		// These depend on the machine's hardware.
		hardware := func(prefix string) bool { return strings.HasPrefix(line, prefix) }
		if !slices.ContainsFunc([]string{"container_fs_read", "container_fs_write", "container_fs_sector", "container_fs_io_", "container_blkio", "container_pressure"}, hardware) {
			all = append(all, line)
		}
	}
	golden(t, "cadvisor.txt", all)
	golden(t, "resource.txt", shape(t, get(t, s.Resource())))
}

// The usage of a volume that a CSI driver has mounted is the driver's, with its claim. A volume
// whose driver does not report it is left out, and does not count as the pod's ephemeral storage.
func TestSummary_VolumesOfDrivers_AreTheDrivers(t *testing.T) {
	t.Parallel()
	var f *fake
	f = newFake(t, 1, func(c *stats.Config) {
		c.Driven = func(_ context.Context, uid, volume string) (pod.VolumeUsage, bool, error) {
			switch {
			case uid != string(f.pods[0].UID) || volume == "away":
				return pod.VolumeUsage{}, false, nil
			case volume == "silent":
				return pod.VolumeUsage{}, true, errors.New("not reported")
			}
			return pod.VolumeUsage{Capacity: 9 << 30, Available: 5 << 30, Used: 4 << 30, Inodes: 3, InodesFree: 2, InodesUsed: 1}, true, nil
		}
	})
	p := &f.pods[0]
	p.Spec.Volumes = []v1.Volume{
		{Name: "db", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}},
		{Name: "own", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{}}},
		{Name: "inline", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}},
		{Name: "silent", VolumeSource: v1.VolumeSource{CSI: &v1.CSIVolumeSource{}}},
		{Name: "away", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "away"}}},
	}
	sum, err := f.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range sum.Pods[0].VolumeStats {
		claim := "none"
		if v.PVCRef != nil {
			claim = v.PVCRef.Name
		}
		got = append(got, fmt.Sprintf("%s %s %d %d %d %d", v.Name, claim, *v.CapacityBytes>>30, *v.AvailableBytes>>30, *v.UsedBytes>>30, *v.InodesUsed))
	}
	if want := []string{"db data 9 5 4 1", "own " + p.Name + "-own 9 5 4 1", "inline none 9 5 4 1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if used := *sum.Pods[0].EphemeralStorage.UsedBytes; used > 1<<30 {
		t.Errorf("ephemeral storage %d", used)
	}
}

// A volume that its driver finds abnormal is reported for each measurement, also if no other caller
// measures. The summary and the metric show it, and nothing for a volume whose condition is unknown.
func TestWatchVolumes_VolumeIsAbnormal_IsReported(t *testing.T) {
	t.Parallel()
	reports := make(chan string, 1)
	f := newFake(t, 1, func(c *stats.Config) {
		c.Remeasure = time.Millisecond
		c.Driven = func(_ context.Context, _, volume string) (pod.VolumeUsage, bool, error) {
			u := pod.VolumeUsage{Capacity: 9}
			if volume != "unknown" {
				u.Health = pod.VolumeHealth{Known: true, Abnormal: volume == "broken", Message: "disk is gone"}
			}
			return u, true, nil
		}
		c.Abnormal = func(p *v1.Pod, volume, message string) {
			select {
			case reports <- p.Name + " " + volume + ": " + message:
			default:
			}
		}
	})
	for _, name := range []string{"broken", "healthy", "unknown"} {
		claim := &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}
		f.pods[0].Spec.Volumes = append(f.pods[0].Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: claim}})
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); f.WatchVolumes(ctx) }()
	if got, want := <-reports, f.pods[0].Name+" broken: disk is gone"; got != want {
		t.Errorf("reported %q, want %q", got, want)
	}
	stop()
	<-done
	sum, err := f.Summary(t.Context(), false)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, v := range sum.Pods[0].VolumeStats {
		health := "unknown"
		if h := v.VolumeHealthStats; h != nil {
			health = fmt.Sprint(h.Abnormal)
		}
		got = append(got, v.Name+" "+health)
	}
	if want := []string{"broken true", "healthy false", "unknown unknown"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(f.Volumes())
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]float64{}
	for _, family := range families {
		for _, m := range family.GetMetric() {
			if family.GetName() == "kubelet_volume_stats_health_status_abnormal" {
				series[m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	if want := map[string]float64{"broken": 1, "healthy": 0}; !maps.Equal(series, want) {
		t.Errorf("%v, want %v", series, want)
	}
}
