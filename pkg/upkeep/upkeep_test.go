package upkeep

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/reclaim"
)

// at waits until d after began. It takes the locks under which the node writes, so that the
// writes meanwhile happen after the reads of the test before.
func (r *running) at(began time.Time, d time.Duration) {
	_ = r.pressures()
	r.pass()
	time.Sleep(time.Until(began.Add(d)))
	synctest.Wait()
}

// In an hour in which no threshold is met, rounds only measure the levels, every ten seconds.
//
// Shows: C-1.35.1
func TestRun_NothingIsShort_ReadsOnlyLevels(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, machine(using("u1", gib, 0)), nil, "memory.available<1Gi", "nodefs.available<10%")
		r.at(time.Now(), time.Hour-time.Second)
		if r.levels != 360 || len(r.observed) != 0 || len(r.events) != 0 || r.pressures() != "[[]]" {
			t.Errorf("levels %d times, observed %v, events %v, conditions %s", r.levels, r.observed, r.events, r.pressures())
		}
	})
}

// The event and the condition come before the first eviction. The next pod is evicted when the
// first is gone or 30 seconds are over. The condition stays for the transition period.
//
// Shows: C-1.35.4, C-1.35.5, C-1.35.7
func TestRun_MemoryIsShort_EvictsOnePodAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 2*gib, 0), using("mid", gib, 0), using("low", gib/2, 0))
		f.slow = true
		r := run(t, f, nil, "memory.available<1Gi")
		began := time.Now()
		r.at(began, time.Second)
		r.set(pod.SignalMemory, gib/8)
		r.at(began, 10*time.Second)
		if got := r.actions(); got != "[evict-pod big]" || fmt.Sprint(r.observed) != "[false]" || r.pressures() != "[[] [MemoryPressure]]" ||
			fmt.Sprint(r.events) != "[EvictionThresholdMet Warning Attempting to reclaim memory]" {
			t.Errorf("%s, observed %v, events %v, conditions %s", got, r.observed, r.events, r.pressures())
		}
		if e := r.evicted[0]; e.Grace != 1 || e.Cause.Resource != "memory" || e.Condition != "MemoryPressure" || !strings.HasPrefix(e.Message, "The node was low on resource: memory. Threshold quantity: 1Gi, available: 128Mi. ") {
			t.Errorf("%+v", e)
		}
		r.at(began, 39*time.Second)
		if got := r.actions(); got != "[]" {
			t.Errorf("while the first pod stops: %s", got)
		}
		r.at(began, 40*time.Second)
		if got := r.actions(); got != "[evict-pod mid]" {
			t.Errorf("after 30 s: %s", got)
		}
		r.fakeNode.mu.Lock()
		r.end("big")
		r.end("mid")
		r.fakeNode.mu.Unlock()
		r.at(began, 41*time.Second)
		r.at(began, 6*time.Minute)
		if got := r.actions(); got != "[]" || r.pressures() != "[[] [MemoryPressure] []]" || len(r.events) != 1 {
			t.Errorf("when both are gone: %s, conditions %s, events %v", got, r.pressures(), r.events)
		}
	})
}

// A threshold that is not met for a moment starts its grace period again.
//
// Shows: C-1.35.3, C-1.35.7
func TestRun_SoftThreshold_ActsAfterItsGracePeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, machine(using("big", 2*gib, 0)), func(p *reclaim.EvictPolicy) { p.Thresholds[0].Grace = 95 * time.Second }, "memory.available<1Gi")
		began := time.Now()
		r.at(began, time.Second)
		r.set(pod.SignalMemory, gib/2)
		r.at(began, 85*time.Second)
		r.set(pod.SignalMemory, 2*gib)
		r.at(began, 91*time.Second)
		r.set(pod.SignalMemory, gib/2)
		r.at(began, 194*time.Second)
		if got := r.actions(); got != "[]" || r.pressures() != "[[] [MemoryPressure]]" {
			t.Errorf("before its grace period ends: %s, conditions %s", got, r.pressures())
		}
		r.at(began, 195*time.Second)
		if got := r.actions(); got != "[evict-pod big]" || r.evicted[0].Grace != 20 {
			t.Errorf("when it ends: %s, %+v", got, r.evicted)
		}
	})
}

// However often the kernel notifies, no more than four rounds begin in a second.
//
// Shows: C-1.35.1
func TestRun_KernelNotifies_RoundBeginsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, machine(using("big", 2*gib, 0)), nil, "memory.available<1Gi")
		began := time.Now()
		r.at(began, 3*time.Second)
		r.set(pod.SignalMemory, gib/2)
		r.wake <- struct{}{}
		synctest.Wait()
		if got := r.actions(); got != "[evict-pod big]" {
			t.Errorf("at once: %s", got)
		}
		before := r.levels
		for range 400 {
			select {
			case r.wake <- struct{}{}:
			default:
			}
			r.at(time.Now(), 10*time.Millisecond)
		}
		if rounds := r.levels - before; rounds < 10 || rounds > 17 {
			t.Errorf("%d measurements in four seconds of notifications", rounds)
		}
	})
}

// Without a notification of the kernel, a pod that takes 200 MiB a second is evicted within two
// seconds after the threshold is met.
//
// Shows: C-1.35.1
func TestRun_MemoryIsUsedUpFast_RoundsComeEarlier(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := run(t, machine(using("big", 2*gib, 0)), nil, "memory.available<1Gi")
		began := time.Now()
		left := 4 * gib
		for step := range 34 { // the threshold is met after 20 s
			r.at(began, 5*time.Second+time.Duration(step)*time.Second/2)
			left -= 100 << 20
			r.set(pod.SignalMemory, left)
		}
		r.at(began, 22*time.Second)
		if got := r.actions(); got != "[evict-pod big]" {
			t.Errorf("after 22 s: %s", got)
		}
	})
}

// Exited containers go first, then images, then a pod. If the removal of an image fails, the next
// round evicts a pod, and a later one tries the image again.
//
// Shows: C-1.35.5, C-1.33.12
func TestRun_DiskIsShort_UnusedDataGoesBeforePods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 0, 20*gib), using("low", 0, gib))
		f.node.Containers = []reclaim.Container{{ID: "c1", Logs: reclaim.Usage{Bytes: gib}}, {ID: "c2", Needed: true}}
		f.node.Images = []reclaim.Image{{ID: "i1", Bytes: gib}, {ID: "i2", Bytes: gib}, {ID: "used", Bytes: 50 * gib, Users: []string{"pod"}}}
		f.fails["i1"] = true
		f.set("nodefs.available", 5*gib)
		r := run(t, f, nil, "nodefs.available<10%")
		began := time.Now()
		synctest.Wait()
		if got := r.actions(); got != "[remove-container c1 remove-image i2]" || fmt.Sprint(r.observed) != "[true]" {
			t.Errorf("first round: %s, observed %v", got, r.observed)
		}
		r.at(began, 2*time.Second)
		if got := r.actions(); got != "[evict-pod big]" || r.pressures() != "[[DiskPressure]]" || r.evicted[0].Condition != "DiskPressure" {
			t.Errorf("second round: %s, conditions %s", got, r.pressures())
		}
		r.set("nodefs.available", 8*gib)
		f.fails = map[string]bool{}
		r.at(began, 90*time.Second)
		if got := r.actions(); !strings.HasPrefix(got, "[evict-pod low remove-image i1") {
			t.Errorf("later: %s", got)
		}
	})
}

// The log names each image that could not be removed.
func TestRun_ImageRemovalsFail_LogNamesEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine()
		f.node.Images = []reclaim.Image{{ID: "i1", Bytes: gib}, {ID: "i2", Bytes: gib}, {ID: "i3", Bytes: gib}}
		f.fails["i2"], f.fails["i3"] = true, true
		f.set("nodefs.available", 5*gib)
		r := run(t, f, nil, "nodefs.available<10%")
		synctest.Wait()
		if got := r.log.String(); strings.Contains(got, "remove-image i1") || !strings.Contains(got, "remove-image i2") || !strings.Contains(got, "remove-image i3") {
			t.Errorf("log:\n%s", got)
		}
	})
}

// While a source has not answered, no pod is evicted for a disk, but one is for memory. If its
// eviction fails, another pod is evicted.
//
// Shows: C-1.35.5
func TestRun_PodsUnknown_NoPodIsEvictedForADisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 2*gib, 20*gib), using("mid", gib, gib))
		f.unread = errPodsUnknown
		f.fails["big"] = true
		f.set("nodefs.available", 5*gib)
		r := run(t, f, nil, "nodefs.available<10%", "memory.available<1Gi")
		began := time.Now()
		r.at(began, 10*time.Minute)
		if got := r.actions(); got != "[]" || r.pressures() != "[[DiskPressure]]" {
			t.Errorf("for the disk: %s, conditions %s", got, r.pressures())
		}
		r.set(pod.SignalMemory, gib/2)
		r.at(began, 10*time.Minute+30*time.Second)
		if got := r.actions(); got != "[evict-pod mid]" {
			t.Errorf("for memory: %s", got)
		}
	})
}

// A forecast with assumed levels has the rounds that would follow, and changes nothing.
func TestForesee_Assumption_PredictsRounds(t *testing.T) {
	t.Parallel()
	f := machine(using("big", 2*gib, 0))
	limit, err := pod.ParseThreshold("memory.available<1Gi")
	if err != nil {
		t.Fatal(err)
	}
	u := New(Config{Policy: reclaim.EvictPolicy{Thresholds: []reclaim.Threshold{{Threshold: limit}}}, Observer: f, Actor: f})
	foresee := func(texts ...string) (Forecast, error) {
		t.Helper()
		assume, err := ParseAssumptions(texts)
		if err != nil {
			return Forecast{}, err
		}
		return u.Foresee(t.Context(), assume)
	}
	if got, err := foresee(); err != nil || len(got.Rounds) != 0 {
		t.Errorf("as it is: %v, %v", got.Rounds, err)
	}
	got, err := foresee("memory.available=50Mi", "nodefs.available=25%")
	if err != nil || len(got.Rounds) != 1 || got.Rounds[0].Steps[0].ID != "big" || got.Node.Filesystems[0].Bytes.Available != 25*gib {
		t.Errorf("%+v, %v", got, err)
	}
	for text, says := range map[string]string{
		"pid.available=1": "does not measure", "memory.available=1Ti": "more than", "memory.available=1,memory.available=2": "twice", "memory": "not of the form",
	} {
		if _, err := foresee(text); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want %q", text, err, says)
		}
	}
	if f.actions() != "[]" || f.node.Levels[pod.SignalMemory].Available != 4*gib {
		t.Error("a forecast has changed the node")
	}
}

// drawn returns a random node with one disk or two.
func drawn(t *rapid.T) *fakeNode {
	amount := func(name string) int64 { return int64(rapid.IntRange(0, 4).Draw(t, name)) * gib }
	level := func(name string) reclaim.Level {
		return reclaim.Level{Available: int64(rapid.IntRange(0, 40).Draw(t, name)) * gib, Capacity: 100 * gib}
	}
	split := rapid.Bool().Draw(t, "split")
	f := &fakeNode{fails: map[string]bool{}, node: reclaim.Node{
		Filesystems: []reclaim.Filesystem{{Name: "/", Bytes: level("/"), Inodes: level("inodes"), Data: true, Images: !split, Writable: !split}},
		Levels:      map[string]reclaim.Level{pod.SignalMemory: level("memory"), pod.SignalPIDs: level("pids")},
	}}
	if split {
		f.node.Filesystems = append(f.node.Filesystems, reclaim.Filesystem{Name: "/images", Bytes: level("/images"), Images: true, Writable: true})
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "images") {
		it := reclaim.Image{ID: fmt.Sprint("i", i), Bytes: amount("image"), Pinned: rapid.IntRange(0, 5).Draw(t, "pinned") == 0}
		if rapid.Bool().Draw(t, "layers") {
			for _, l := range rapid.SliceOfNDistinct(rapid.IntRange(0, 3), 1, 3, rapid.ID).Draw(t, "of") {
				it.Layers = append(it.Layers, reclaim.Layer{ID: fmt.Sprint("l", l), Usage: reclaim.Usage{Bytes: int64(l+1) * gib, Inodes: 1}})
			}
		}
		f.node.Images = append(f.node.Images, it)
	}
	for i := range rapid.IntRange(0, 4).Draw(t, "containers") {
		f.node.Containers = append(f.node.Containers, reclaim.Container{ID: fmt.Sprint("c", i), Needed: rapid.Bool().Draw(t, "needed"), Writable: reclaim.Usage{Bytes: amount("layer")}, Logs: reclaim.Usage{Bytes: amount("logs")}})
		f.node.Sandboxes = append(f.node.Sandboxes, reclaim.Sandbox{ID: fmt.Sprint("b", i), Needed: rapid.Bool().Draw(t, "needed")})
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "pods") {
		p := using(fmt.Sprint("u", i), amount("uses"), amount("volumes"))
		p.Priority, p.PIDs = rapid.SampledFrom([]int32{0, 5, 2_000_000_000}).Draw(t, "priority"), amount("pids")
		p.Measured, p.Stopping, p.Static = rapid.Bool().Draw(t, "measured"), rapid.IntRange(0, 5).Draw(t, "stopping") == 0, rapid.Bool().Draw(t, "static")
		f.node.Pods = append(f.node.Pods, p)
	}
	return f
}

// TestRun_Laws: an agent carries out the steps that a dry run has shown before, in their order.
func TestRun_Laws(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := drawn(rt)
		var limits []string
		for _, signal := range pod.Signals() {
			if rapid.Bool().Draw(rt, signal) {
				limits = append(limits, fmt.Sprintf("%s<%d%%", signal, rapid.IntRange(1, 30).Draw(rt, "percent")))
			}
		}
		soft, cluster := rapid.Bool().Draw(rt, "soft"), rapid.Bool().Draw(rt, "cluster")
		var want []string
		var got string
		synctest.Test(t, func(t *testing.T) {
			r := prepared(t, f, func(p *reclaim.EvictPolicy) {
				p.Cluster = cluster
				if soft && len(p.Thresholds) > 0 {
					p.Thresholds[0].Grace = 10 * time.Minute
				}
			}, limits...)
			foreseen, err := r.Foresee(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, round := range foreseen.Rounds {
				for _, s := range round.Steps {
					want = append(want, fmt.Sprint(s.Action, " ", s.ID))
				}
			}
			r.begin(t)
			r.at(time.Now(), 20*time.Minute)
			got = r.actions()
		})
		if got != fmt.Sprint(want) {
			rt.Fatalf("done %s\nforeseen %v\nlimits %v", got, want, limits)
		}
	})
}

// A read that keeps failing delays an eviction for a disk by two minutes.
//
// Shows: C-1.35.5
func TestRun_ReadFails_EvictionForADiskIsDelayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 0, 20*gib))
		f.unread = errors.New("one sandbox does not answer")
		f.set("nodefs.available", 5*gib)
		r := run(t, f, nil, "nodefs.available<10%")
		began := time.Now()
		r.at(began, unreadFor-time.Second)
		if got := r.actions(); got != "[]" {
			t.Errorf("before: %s", got)
		}
		r.at(began, unreadFor+roundEvery)
		if got := r.actions(); got != "[evict-pod big]" {
			t.Errorf("after: %s", got)
		}
	})
}

// While Observe returns ErrNoVictim, no pod is evicted, not even for memory.
//
// Shows: C-1.35.5
func TestRun_NoVictim_NoPodIsEvicted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 2*gib, 0))
		f.unread = fmt.Errorf("%w: no usage", ErrNoVictim)
		f.set(pod.SignalMemory, gib/2)
		r := run(t, f, nil, "memory.available<1Gi")
		r.at(time.Now(), 10*time.Minute)
		if got := r.actions(); got != "[]" {
			t.Errorf("%s", got)
		}
	})
}

// An observation of disks that hangs delays no eviction for memory.
//
// Shows: C-1.35.1, C-1.35.5
func TestRun_DisksHang_MemoryIsRelievedAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := machine(using("big", 2*gib, 0), using("mid", 2*gib, 0))
		f.hangs = true
		f.set("nodefs.available", 5*gib)
		f.set(pod.SignalMemory, gib/2)
		r := run(t, f, nil, "nodefs.available<10%", "memory.available<1Gi")
		began := time.Now()
		synctest.Wait()
		if got := r.actions(); got != "[evict-pod big]" {
			t.Errorf("at once: %s", got)
		}
		r.at(began, 5*time.Second)
		r.set(pod.SignalMemory, gib/2)
		r.at(began, 5*time.Second+observeFor+roundEvery)
		if got := r.actions(); got != "[evict-pod mid]" {
			t.Errorf("later: %s", got)
		}
	})
}
