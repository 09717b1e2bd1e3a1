package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/image"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/upkeep"
)

// TestExited_NewestOfItsName_IsNeeded: of the containers and sandboxes of a pod, only those that a
// newer one has replaced may be removed, and only if nothing of them runs.
//
// Shows: C-1.33.2, C-1.33.4
func TestExited_NewestOfItsName_IsNeeded(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, size := range map[string]int{"0.log": 100, "0.log.20260101-000000": 50, "1.log": 7} {
		if err := os.WriteFile(filepath.Join(dir, name), make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	have := pod.Actual{
		Key:     pod.Key{Namespace: "default", Name: "web"},
		Sandbox: &pod.Sandbox{ID: "b3", Ready: true},
		Older:   []pod.Sandbox{{ID: "b2"}, {ID: "b1"}, {ID: "b0", Ready: true}},
		Containers: map[string]pod.Container{
			"init": {ID: "init", Name: "init", SandboxID: "b3", State: pod.StateExited},
			"main": {ID: "new", Name: "main", SandboxID: "b3", State: pod.StateRunning},
		},
		Dead: []pod.Container{
			{ID: "old", Name: "main", SandboxID: "b2", State: pod.StateExited, LogPath: filepath.Join(dir, "0.log")},
			{ID: "double", Name: "main", SandboxID: "b3", State: pod.StateRunning},
		},
	}
	var got []string
	for _, c := range exited(have) {
		got = append(got, fmt.Sprint(c.ID, " ", c.Needed, " ", c.Logs.Bytes, " ", c.Logs.Inodes))
	}
	for _, b := range deadSandboxes(have) {
		got = append(got, fmt.Sprint(b.ID, " ", b.Needed))
	}
	slices.Sort(got)
	if want := []string{"b1 false", "init true 0 0", "old false 150 2"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestRunningPod_SpecStatusAndUsage_AreInTheRanking.
//
// Shows: C-1.35.6, C-1.35.8
func TestRunningPod_SpecStatusAndUsage_AreInTheRanking(t *testing.T) {
	t.Parallel()
	grace, priority := int64(7), int32(5)
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: "u", Annotations: map[string]string{pod.AnnotationConfigSource: "file"}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: &grace, Priority: &priority,
			Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: v1.ResourceList{
				"memory": resource.MustParse("64Mi"), "ephemeral-storage": resource.MustParse("1Gi"),
			}}}},
		},
	}
	if _, runs := runningPod(p, nil); runs {
		t.Error("a pod without a running container runs")
	}
	p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "main", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
	usage := map[string]stats.PodUsage{"u": {
		Measured: true, Memory: 10, PIDs: 3, Volumes: stats.DiskUsage{Bytes: 20, Inodes: 2},
		Containers: map[string]stats.ContainerUsage{"main": {Memory: 9, Writable: stats.DiskUsage{Bytes: 4}, Logs: stats.DiskUsage{Bytes: 5}}},
	}}
	it, runs := runningPod(p, usage)
	if !runs || !it.Static || it.Stopping || it.Grace != 7 || it.Priority != 5 || it.MemoryRequest != 64<<20 || it.DiskRequest != 1<<30 {
		t.Errorf("%+v", it)
	}
	if !it.Measured || it.Memory != 10 || it.PIDs != 3 || it.Volumes != (reclaim.Usage{Bytes: 20, Inodes: 2}) ||
		len(it.Containers) != 1 || it.Containers[0].Memory != 9 || it.Containers[0].Writable.Bytes != 4 || it.Containers[0].Logs.Bytes != 5 {
		t.Errorf("%+v", it)
	}
	if it, _ = runningPod(p, nil); it.Measured {
		t.Error("a pod without usage is measured")
	}
}

// filesystemRuntime is a runtime that is asked for its file systems.
type filesystemRuntime struct {
	calls int
	fails bool
}

func (a *filesystemRuntime) Filesystems(context.Context) (images, containers pod.Filesystem, err error) {
	if a.calls++; a.fails {
		return images, containers, errors.New("the runtime does not answer")
	}
	return pod.Filesystem{Mountpoint: "/"}, pod.Filesystem{Mountpoint: "/proc"}, nil
}

// TestLevels_RuntimeAnsweredOnce_IsNotAskedAgain, and a runtime that does not answer costs no
// other level.
//
// Shows: C-1.35.1
func TestLevels_RuntimeAnsweredOnce_IsNotAskedAgain(t *testing.T) {
	t.Parallel()
	rt := &filesystemRuntime{fails: true}
	measured, places := 0, []string{"/second", ""} // in the order of their calls from the end
	place := func() string {
		last := len(places) - 1
		at := places[last]
		places = places[:last]
		return at
	}
	l := &levels{runtime: rt, place: place, arm: func(node.Levels) { measured++ }, meter: node.Meter{Root: "/", NodeFs: "/"}}
	n, err := l.Levels(t.Context())
	if _, ok := n.Level(pod.SignalNodeFs); err == nil || !ok || time.Since(n.Now) > time.Minute {
		t.Errorf("without the runtime: %+v, %v", n, err)
	}
	rt.fails = false
	for range 3 {
		if n, err = l.Levels(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if rt.calls != 2 || measured != 4 || len(n.Filesystems) != 2 || !n.Filesystems[0].Images || !n.Filesystems[1].Writable {
		t.Errorf("%d calls, %d measurements, %+v", rt.calls, measured, n.Filesystems)
	}
}

// TestObserve_PodWithoutUsage_IsNoVictim: a pod that began to run after the usage was read is no
// victim, one that ran before and was not read is. An evicted pod counts as stopping until its
// volumes are removed. Without usage, or before all pods are observed, no victim can be chosen,
// also if it is not known either which images are unused.
//
// Shows: C-1.35.5, C-1.35.6
func TestObserve_PodWithoutUsage_IsNoVictim(t *testing.T) {
	t.Parallel()
	status := func(name string, runs bool) v1.Pod {
		p := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)}}
		if p.Status.Phase = v1.PodFailed; runs {
			p.Status.Phase = v1.PodRunning
			p.Status.ContainerStatuses = []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}}
		}
		return p
	}
	observed := make(chan struct{})
	pods := []v1.Pod{status("read", true), status("unread", true), status("evicted", false), status("gone", false)}
	usage, failed := map[string]stats.PodUsage{"read": {Measured: true}}, error(nil)
	o := nodeObserver{rootDir: t.TempDir(), observed: observed, pods: func() []v1.Pod { return pods }}
	o.usage = func(ctx context.Context, _ bool) (map[string]stats.PodUsage, error) {
		if _, bounded := ctx.Deadline(); !bounded {
			t.Error("the measurement has no limit")
		}
		pods = append(slices.Clone(pods), status("new", true))
		return usage, failed
	}
	if err := os.MkdirAll(filepath.Join(o.rootDir, "pods", "evicted", "1"), 0o700); err != nil {
		t.Fatal(err)
	}
	look := func() string {
		t.Helper()
		pods = pods[:4]
		n, err := o.Observe(t.Context(), false)
		var text []string
		for _, p := range n.Pods {
			text = append(text, fmt.Sprint(p.UID, " ", p.Measured, " ", p.Stopping))
		}
		return fmt.Sprint(text, " ", errors.Is(err, upkeep.ErrNoVictim))
	}
	if got := look(); !strings.HasSuffix(got, " true") {
		t.Errorf("not all pods are observed: %s", got)
	}
	o.images = image.NewInventory(image.InventoryConfig{
		Runtime: noImages{}, Desired: func() (map[string][]string, bool) { return nil, false },
	})
	if _, err := o.Observe(t.Context(), true); !errors.Is(err, upkeep.ErrNoVictim) || !errors.Is(err, image.ErrPodsUnknown) {
		t.Errorf("not all pods are observed, and disks are: %v", err)
	}
	close(observed)
	if got := look(); got != "[read true false unread false false evicted false true] false" {
		t.Errorf("all pods are observed: %s", got)
	}
	if err := os.RemoveAll(filepath.Join(o.rootDir, "pods", "evicted")); err != nil {
		t.Fatal(err)
	}
	usage, failed = nil, errors.New("no answer")
	if got := look(); got != "[read false false unread false false] true" {
		t.Errorf("nothing is read: %s", got)
	}
	if _, err := o.Observe(t.Context(), true); !errors.Is(err, upkeep.ErrNoVictim) || !errors.Is(err, image.ErrPodsUnknown) {
		t.Errorf("nothing is read, and disks are: %v", err)
	}
}

// noImages is a runtime without images and containers.
type noImages struct{ image.InventoryRuntime }

func (noImages) Images(context.Context) ([]pod.Image, error) { return nil, nil }

func (noImages) ImageUsers(context.Context) ([]pod.ImageUser, error) { return nil, nil }
