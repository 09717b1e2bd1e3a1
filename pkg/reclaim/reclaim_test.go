package reclaim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

const gib = int64(1) << 30

// image returns an image of one gibibyte that was first seen a day before noon, and last used
// for idle before noon; 0 is never.
func image(name string, idle time.Duration) Image {
	i := Image{ID: "sha256:" + name, Names: []string{"docker.io/library/" + name + ":1"}, Bytes: gib, FirstSeen: noon.Add(-24 * time.Hour)}
	if idle > 0 {
		i.LastUsed = noon.Add(-idle)
	}
	return i
}

// shared returns an image that consists of these layers, of one gibibyte each.
func shared(name string, idle time.Duration, ids ...string) Image {
	i := image(name, idle)
	i.Layers = []Layer{}
	for _, id := range ids {
		i.Layers = append(i.Layers, Layer{ID: id, Usage: Usage{Bytes: gib, Inodes: 1000}})
	}
	return i
}

func used(i Image, by string) Image {
	i.Users = append(i.Users, by)
	return i
}

// disk returns a file system of 100 GiB for everything.
func disk(available int64) []Filesystem {
	return []Filesystem{{
		Name: "/", Bytes: Level{available * gib, 100 * gib}, Inodes: Level{50_000, 100_000}, Data: true, Images: true, Writable: true,
	}}
}

func hard(text string) Threshold {
	t, err := pod.ParseThreshold(text)
	if err != nil {
		panic(err)
	}
	return Threshold{Threshold: t}
}

func soft(text string, grace time.Duration) Threshold {
	t := hard(text)
	t.Grace = grace
	return t
}

func running(name string, priority int32, memory, request int64) Pod {
	return Pod{
		Key: pod.Key{Namespace: "default", Name: name}, UID: "uid-" + name, Priority: priority, Static: true, Grace: 30, Measured: true,
		Memory: memory, MemoryRequest: request,
	}
}

// lines compares each line of a plan's text with the beginning that it must have.
func lines(t *testing.T, got string, want ...string) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if got == "" {
		all = nil
	}
	ok := len(all) == len(want)
	for i := 0; ok && i < len(all); i++ {
		ok = strings.HasPrefix(all[i], want[i])
	}
	if !ok {
		t.Errorf("the plan is:\n%s\nwant lines that begin with:\n%s", got, strings.Join(want, "\n"))
	}
}

// Shows: C-1.33.8, C-1.33.9
func TestImages_AboveHighThreshold_RemovesLeastRecentlyUsedDownToLow(t *testing.T) {
	t.Parallel()
	policy := ImagePolicy{High: 85, Low: 80, MinAge: 2 * time.Minute}
	fresh := image("fresh", 0)
	fresh.FirstSeen = noon.Add(-time.Minute)
	pinned := image("pinned", 100*time.Hour)
	pinned.Pinned = true
	archive := image("archive", 100*time.Hour)
	archive.Archive = true
	silent := image("silent", 100*time.Hour)
	silent.UnresponsiveRegistry = "registry.example"
	images := []Image{
		image("hour", time.Hour), used(image("web", 200*time.Hour), "pod default/web"), image("day", 20*time.Hour), fresh,
		image("never", 0), pinned, archive, silent, image("minute", time.Minute),
	}
	lines(t, Images(Node{Now: noon, Filesystems: disk(16), Images: images}, policy).String(),
		"keep docker.io/library/web:1 id=sha256:web # used by pod default/web",
		"keep docker.io/library/archive:1 id=sha256:archive # it came from an archive",
		"keep docker.io/library/pinned:1 id=sha256:pinned # pinned by the container runtime",
		"keep docker.io/library/silent:1 id=sha256:silent # its registry registry.example does not answer",
		"keep docker.io/library/never:1 id=sha256:never # not used since it appeared 24h0m0s ago; there is room",
		"keep docker.io/library/fresh:1", "keep docker.io/library/day:1", "keep docker.io/library/hour:1", "keep docker.io/library/minute:1")
	lines(t, Images(Node{Now: noon, Filesystems: disk(15), Images: images}, policy).String(),
		"remove-image docker.io/library/never:1 id=sha256:never bytes=1073741824 # not used since it appeared 24h0m0s ago; the image file system is filled to 85%, the limit is 85%",
		"remove-image docker.io/library/day:1 ", "remove-image docker.io/library/hour:1 ", "remove-image docker.io/library/minute:1 ",
		"keep docker.io/library/web:1", "keep docker.io/library/archive:1", "keep docker.io/library/pinned:1", "keep docker.io/library/silent:1",
		"keep docker.io/library/fresh:1 id=sha256:fresh # here for 1m0s; the minimum is 2m0s", "short of 1073741824 bytes")
	off := policy
	off.High = 100
	if p := Images(Node{Now: noon, Filesystems: disk(0), Images: images}, off); len(p.Steps) > 0 {
		t.Errorf("a high threshold of 100 removes:\n%s", p)
	}
}

// Shows: C-1.33.10, C-1.33.11
func TestImages_UnusedForMaxAge_IsRemovedBelowHighThreshold(t *testing.T) {
	t.Parallel()
	n := Node{Now: noon, Filesystems: disk(90), Images: []Image{image("old", 3*time.Hour), image("new", time.Hour), used(image("web", 0), "pod default/web")}}
	lines(t, Images(n, ImagePolicy{High: 100, Low: 80, MaxAge: 2 * time.Hour}).String(),
		"remove-image docker.io/library/old:1 id=sha256:old bytes=1073741824 # unused for 3h0m0s; the limit is 2h0m0s",
		"keep docker.io/library/web:1", "keep docker.io/library/new:1")
}

// An image whose layers other images have frees nothing, and the last image of a layer frees it.
func TestImages_SharedLayers_CountWhatRemovalFrees(t *testing.T) {
	t.Parallel()
	policy := ImagePolicy{High: 85, Low: 84}
	images := []Image{
		used(shared("web", 0, "base", "web"), "pod default/web"),
		shared("base", 9*time.Hour, "base"), // frees nothing: web has its layer
		shared("a", 8*time.Hour, "base", "x"),
		shared("b", 7*time.Hour, "base", "x"),
		shared("c", 6*time.Hour, "c"),
	}
	n := Node{Now: noon, Filesystems: disk(15), Images: images}
	lines(t, Images(n, policy).String(),
		"remove-image docker.io/library/a:1 id=sha256:a bytes=0 ", "remove-image docker.io/library/b:1 id=sha256:b bytes=1073741824 ",
		"keep docker.io/library/web:1", "keep docker.io/library/base:1", "keep docker.io/library/c:1")
	n.Images = append(n.Images, shared("d", 5*time.Hour, "base"))
	if p := Images(n, ImagePolicy{High: 85, Low: 0}); p.Frees != 2*gib || strings.Contains(p.String(), "remove-image docker.io/library/base") {
		t.Errorf("everything that can be freed is 2 GiB; the plan is:\n%s", p)
	}
}

// Prune removes images of any age, also those from an archive.
func TestPrune_UnusedImages_AreRemovedWhateverTheirAge(t *testing.T) {
	t.Parallel()
	archive, pinned := image("archive", 0), image("pinned", 0)
	archive.Archive, archive.FirstSeen = true, noon
	pinned.Pinned = true
	lines(t, Prune(Node{Now: noon, Filesystems: disk(90), Images: []Image{archive, pinned, image("old", time.Hour), used(image("web", 0), "container x")}}).String(),
		"remove-image docker.io/library/archive:1 id=sha256:archive bytes=1073741824 # not used since it appeared 0s ago; it came from an archive",
		"remove-image docker.io/library/old:1", "keep docker.io/library/pinned:1", "keep docker.io/library/web:1")
}

// Shows: C-1.35.6
func TestRank_MemoryDiskAndPIDs_OrdersAsTheKubelet(t *testing.T) {
	t.Parallel()
	unknown := running("unknown", 9, 0, 0)
	unknown.Measured = false
	pods := []Pod{
		running("below", -5, 90, 100), running("over", 0, 200, 100), running("high", 5, 900, 0), running("over-more", 0, 300, 100), unknown,
		running("below-more", -5, 50, 100),
	}
	for i, pids := range []int64{5, 1, 7, 3, 0, 9} {
		pods[i].PIDs = pids
		pods[i].Volumes = Usage{Bytes: pids, Inodes: 10 - pids}
		pods[i].DiskRequest = 4
		pods[i].Containers = []Running{{Name: "c", Writable: Usage{Bytes: pods[i].Memory}}}
	}
	two := []Filesystem{{Name: "/", Data: true}, {Name: "/images", Images: true, Writable: true}}
	for _, c := range []struct {
		signal string
		disks  []Filesystem
		want   string
	}{
		{pod.SignalMemory, disk(1), "unknown over-more over high below below-more"},
		{pod.SignalPodsMemory, disk(1), "unknown over-more over high below below-more"},
		{pod.SignalPIDs, disk(1), "below-more below over-more over high unknown"},
		{pod.SignalNodeFs, two, "unknown below-more below high over-more over"}, // volumes and logs alone
		{pod.SignalNodeInodes, two, "unknown below below-more over over-more high"},
		{pod.SignalImageFs, two, "unknown below below-more over-more over high"}, // writable layers alone
		{pod.SignalNodeFs, disk(1), "unknown below below-more over-more over high"},
	} {
		var got []string
		for _, p := range (Node{Filesystems: c.disks}).rank(c.signal, pods) {
			got = append(got, p.Key.Name)
		}
		if is := strings.Join(got, " "); is != c.want {
			t.Errorf("%s: %s, want %s", c.signal, is, c.want)
		}
	}
}

// Shows: C-1.35.5, C-1.35.7, C-1.35.8
func TestEvict_Memory_EndsOnePodAndWaitsForIt(t *testing.T) {
	t.Parallel()
	policy := EvictPolicy{Thresholds: []Threshold{hard("memory.available<100Mi")}, Transition: 5 * time.Minute}
	big := running("big", 0, 300<<20, 64<<20)
	big.Containers = []Running{{Name: "main", Memory: 300 << 20, Requests: v1.ResourceList{v1.ResourceMemory: resource.MustParse("64Mi")}}}
	n := Node{
		Now: noon, Levels: map[string]Level{pod.SignalMemory: {50 << 20, gib}},
		Pods: []Pod{running("small", 0, 10<<20, 0), big, running("critical", critical, 500<<20, 0)},
	}
	plan, after := Evict(n, policy, EvictState{})
	lines(t, plan.String(), "evict-pod default/big grace=1 # memory.available is 50.0 MiB, the limit is 100Mi; the pod uses 300.0 MiB, requests 64.0 MiB, its priority is 0", "condition MemoryPressure")
	if want := "The node was low on resource: memory. Threshold quantity: 100Mi, available: 50Mi. Container main was using 300Mi, request is 64Mi, has larger consumption of memory. "; plan.Steps[0].Message != want {
		t.Errorf("message %q, want %q", plan.Steps[0].Message, want)
	}
	if want := (pod.EvictionCause{Resource: "memory", Containers: "main", Usage: "300Mi"}); plan.Steps[0].Cause != want {
		t.Errorf("cause %+v, want %+v", plan.Steps[0].Cause, want)
	}
	n.Now = n.Now.Add(10 * time.Second)
	plan, after = Evict(n, policy, after)
	lines(t, plan.String(), "condition MemoryPressure", "wait 20s: memory.available is 50.0 MiB, the limit is 100Mi; the evicted pod default/big is still stopping")
	n.Now = n.Now.Add(20 * time.Second)
	n.Pods[1].Stopping = true
	plan, after = Evict(n, policy, after)
	lines(t, plan.String(), "evict-pod default/small", "condition MemoryPressure")
	n.Now, n.Pods, n.Levels[pod.SignalMemory] = n.Now.Add(5*time.Minute-time.Second), nil, Level{gib / 2, gib}
	plan, after = Evict(n, policy, after)
	lines(t, plan.String(), "condition MemoryPressure")
	n.Now = n.Now.Add(time.Second)
	plan, _ = Evict(n, policy, after)
	lines(t, plan.String())
}

// Shows: C-1.35.8
func TestEvict_InCluster_StaticPodsAreCritical(t *testing.T) {
	t.Parallel()
	api := running("api", 10, 1, 0)
	api.Static = false
	n := Node{Now: noon, Levels: map[string]Level{pod.SignalMemory: {1, gib}}, Pods: []Pod{running("static", 0, 100<<20, 0), api}}
	policy := EvictPolicy{Thresholds: []Threshold{hard("memory.available<100Mi")}, Cluster: true}
	plan, _ := Evict(n, policy, EvictState{})
	lines(t, plan.String(), "evict-pod default/api", "condition MemoryPressure")
	n.Pods = n.Pods[:1]
	plan, _ = Evict(n, policy, EvictState{})
	lines(t, plan.String(), "condition MemoryPressure", "stuck: memory.available is 1 B, the limit is 100Mi; no unused data and no pod that may be evicted is left")
}

// Shows: C-1.35.3, C-1.35.7
func TestEvict_SoftThreshold_IsDueAfterItsGrace(t *testing.T) {
	t.Parallel()
	policy := EvictPolicy{Thresholds: []Threshold{soft("memory.available<100Mi", time.Minute)}, MaxGrace: 20}
	n := Node{Now: noon, Levels: map[string]Level{pod.SignalMemory: {1, gib}}, Pods: []Pod{running("web", 0, 1<<20, 0)}}
	plan, after := Evict(n, policy, EvictState{})
	lines(t, plan.String(), "condition MemoryPressure", "wait 1m0s: memory.available<100Mi is met; its grace period of 1m0s has not ended")
	// A break starts the grace period again.
	n.Now, n.Levels[pod.SignalMemory] = n.Now.Add(59*time.Second), Level{gib, gib}
	_, after = Evict(n, policy, after)
	n.Now, n.Levels[pod.SignalMemory] = n.Now.Add(time.Second), Level{1, gib}
	plan, after = Evict(n, policy, after)
	lines(t, plan.String(), "condition MemoryPressure", "wait 1m0s")
	n.Now = n.Now.Add(time.Minute)
	plan, _ = Evict(n, policy, after)
	lines(t, plan.String(), "evict-pod default/web grace=20", "condition MemoryPressure")
}

// Shows: C-1.33.12, C-1.35.5
func TestEvict_Disk_RemovesUnusedDataFirst(t *testing.T) {
	t.Parallel()
	t10 := hard("nodefs.available<10Gi")
	t10.Reclaim, _ = pod.NewThreshold(pod.SignalNodeFs, "2Gi")
	policy := EvictPolicy{Thresholds: []Threshold{t10, hard("imagefs.available<15Gi"), hard("nodefs.inodesFree<5%")}}
	n := Node{
		Now: noon, Filesystems: disk(8),
		Containers: []Container{
			{ID: "c2", Name: "b", Pod: pod.Key{Namespace: "default", Name: "job"}, Exited: noon.Add(-time.Minute), Logs: Usage{Bytes: gib}},
			{ID: "c1", Name: "a", Pod: pod.Key{Namespace: "default", Name: "job"}, Exited: noon.Add(-time.Hour), Writable: Usage{Bytes: gib}},
			{ID: "c0", Name: "kept", Exited: noon.Add(-2 * time.Hour), Needed: true, Writable: Usage{Bytes: gib}},
		},
		Sandboxes: []Sandbox{{ID: "s", Pod: pod.Key{Namespace: "default", Name: "job"}}},
		Images:    []Image{image("b", time.Minute), image("a", time.Hour), image("c", time.Second), used(image("web", 0), "pod default/web")},
		Pods:      []Pod{running("web", 0, 1, 0)},
	}
	plan, _ := Evict(n, policy, EvictState{})
	lines(t, plan.String(), // 12 GiB for nodefs, then 15 for imagefs, which is the same disk
		"remove-container default/job a id=c1 bytes=1073741824 # nodefs.available is 8.0 GiB, the limit is 10Gi; the container exited 1h0m0s ago",
		"remove-container default/job b id=c2", "remove-sandbox default/job id=s", "remove-image docker.io/library/a:1", "remove-image docker.io/library/b:1",
		"remove-image docker.io/library/c:1 id=sha256:c bytes=1073741824 # imagefs.available is 8.0 GiB, the limit is 15Gi",
		"condition DiskPressure")
	rounds := Foresee(n, policy, EvictState{})
	if len(rounds) != 3 || len(rounds[1].Steps) != 1 || rounds[1].Steps[0].Action != EvictPod || rounds[2].WaitFor == "" {
		t.Errorf("after the data the pod follows, then nothing is left; foreseen: %v", rounds)
	}
	// Unused images on a disk of their own do not help nodefs.
	n.Filesystems = []Filesystem{
		{Name: "/", Bytes: Level{8 * gib, 100 * gib}, Data: true, Writable: true}, {Name: "/images", Bytes: Level{50 * gib, 100 * gib}, Images: true},
	}
	n.Containers, n.Sandboxes = nil, nil
	plan, _ = Evict(n, policy, EvictState{})
	lines(t, plan.String(), "evict-pod default/web", "condition DiskPressure")
	// Those on a full disk of their own are removed before a pod.
	n.Filesystems[0].Bytes.Available, n.Filesystems[1].Bytes.Available = 50*gib, 14*gib
	plan, _ = Evict(n, policy, EvictState{})
	lines(t, plan.String(), "remove-image docker.io/library/a:1", "condition DiskPressure")
}

// A threshold that was due evicts further pods until its minimum reclaim is reached, too.
func TestEvict_MinimumReclaimNotReached_EvictsAgain(t *testing.T) {
	t.Parallel()
	limit := hard("memory.available<100Mi")
	limit.Reclaim, _ = pod.NewThreshold(pod.SignalMemory, "50Mi")
	policy := EvictPolicy{Thresholds: []Threshold{limit}}
	n := Node{Now: noon, Levels: map[string]Level{pod.SignalMemory: {99 << 20, gib}}, Pods: []Pod{running("a", 0, 2, 0), running("b", 0, 1, 0)}}
	plan, after := Evict(n, policy, EvictState{})
	lines(t, plan.String(), "evict-pod default/a", "condition MemoryPressure")
	n.Pods, n.Levels[pod.SignalMemory] = n.Pods[1:], Level{120 << 20, gib}
	plan, _ = Evict(n, policy, after)
	lines(t, plan.String(), "evict-pod default/b", "condition MemoryPressure")
	if plan, _ := Evict(n, policy, EvictState{}); len(plan.Steps) > 0 {
		t.Errorf("above the threshold, and never below: %s", plan)
	}
}

// On a disk that containerfs shares with nodefs or imagefs, only their thresholds apply.
func TestEvict_ContainerFs_CountsOnlyOnItsOwnDisk(t *testing.T) {
	t.Parallel()
	policy := EvictPolicy{Thresholds: []Threshold{hard("containerfs.available<50%")}}
	n := Node{Now: noon, Filesystems: disk(10), Pods: []Pod{running("web", 0, 1, 0)}}
	if plan, _ := Evict(n, policy, EvictState{}); len(plan.Steps)+len(plan.Conditions) > 0 {
		t.Errorf("nodefs has its own threshold: %s", plan)
	}
	n.Filesystems = []Filesystem{{Name: "/", Data: true, Images: true}, {Name: "/layers", Bytes: Level{gib, 100 * gib}, Writable: true}}
	plan, _ := Evict(n, policy, EvictState{})
	lines(t, plan.String(), "evict-pod default/web", "condition DiskPressure")
}

// Only an image that appears, vanishes, or changes between used and unused changes the history.
func TestRemember_IdleNode_HistoryIsUnchanged(t *testing.T) {
	t.Parallel()
	web, old := used(Image{ID: "web"}, "pod default/web"), Image{ID: "old"}
	seen, history := Remember(nil, []Image{web, old}, noon)
	if !seen[0].LastUsed.Equal(noon) || !seen[1].LastUsed.IsZero() || !seen[1].FirstSeen.Equal(noon) {
		t.Errorf("at first %+v", seen)
	}
	later := noon.Add(time.Hour)
	seen, idle := Remember(history, []Image{web, old}, later)
	if !idle.Equal(history) || !seen[0].LastUsed.Equal(later) || !seen[1].FirstSeen.Equal(noon) {
		t.Errorf("nothing has changed: %+v, then %+v (%+v)", history, idle, seen)
	}
	web.Users = nil
	seen, gone := Remember(history, []Image{web}, later)
	if gone.Equal(history) || len(gone) != 1 || !seen[0].LastUsed.Equal(later) {
		t.Errorf("web is unused, old has gone: %+v (%+v)", gone, seen)
	}
	seen, back := Remember(gone, []Image{web}, noon.Add(-time.Hour))
	if u := back["web"]; u.First.After(noon) || !u.Last.Equal(noon.Add(-time.Hour)) || !seen[0].LastUsed.Equal(u.Last) {
		t.Errorf("the clock was set back: %+v", back)
	}
}

func ExampleImages() {
	n := Node{
		Now:         noon,
		Filesystems: []Filesystem{{Name: "/var", Bytes: Level{Available: 10 * gib, Capacity: 100 * gib}, Data: true, Images: true, Writable: true}},
		Images: []Image{
			{ID: "sha256:1", Names: []string{"docker.io/library/old:1"}, Bytes: 10 * gib, LastUsed: noon.Add(-time.Hour)},
			{ID: "sha256:2", Names: []string{"docker.io/library/web:1"}, Bytes: gib, Users: []string{"pod default/web"}},
		},
	}
	fmt.Print(Images(n, ImagePolicy{High: 85, Low: 80}))
	// Output:
	// remove-image docker.io/library/old:1 id=sha256:1 bytes=10737418240 # unused for 1h0m0s; the image file system is filled to 90%, the limit is 85%
	// keep docker.io/library/web:1 id=sha256:2 # used by pod default/web
}

// A pod whose files cannot be counted ranks first for a disk, and by its usage for memory.
//
// Shows: C-1.35.6
func TestRank_DiskUsageUnknown_IsFirstForADiskOnly(t *testing.T) {
	t.Parallel()
	hides, big := running("hides", 0, gib/2, gib), running("big", 0, 2*gib, gib)
	hides.DiskUnknown, big.Volumes = true, Usage{Bytes: 10 * gib}
	n := Node{Filesystems: []Filesystem{{Data: true, Bytes: Level{gib, 100 * gib}}}}
	for signal, first := range map[string]string{pod.SignalNodeFs: "hides", pod.SignalMemory: "big"} {
		if got := n.rank(signal, []Pod{big, hides})[0].Key.Name; got != first {
			t.Errorf("%s: %s, want %s", signal, got, first)
		}
	}
}
