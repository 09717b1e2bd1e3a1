package cgroup

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestC_1_41_2_PodOnThisKernel compares the limits with the kernel's files.
//
// Shows: C-1.41.2
func TestC_1_41_2_PodOnThisKernel(t *testing.T) {
	g := cgroupsOf(t, func(c *Config) { c.PodPIDs = 77 })
	for _, c := range []struct{ spec, shares, quota, memory string }{
		{guaranteed, "512", "50000", "67108864"},
		{burstablePod, "256", "-1", "33554432"},
		{bestEffortPod, "2", "-1", "9223372036854771712"},
	} {
		at := put(t, g, shape(t, "a", c.spec))
		want(t, at+" shares", value(t, at, "cpu.shares"), c.shares)
		want(t, at+" quota", value(t, at, "cpu.cfs_quota_us"), c.quota)
		want(t, at+" period", value(t, at, "cpu.cfs_period_us"), 100000)
		want(t, at+" memory", value(t, at, "memory.limit_in_bytes"), c.memory)
		want(t, at+" processes", value(t, at, "pids.max"), 77)
		if got := names(t, g.cfg.Root); len(got) != 5 { // the one of the previous class is gone
			t.Errorf("%q", got)
		}
	}
}

// TestC_1_41_6_LimitsChangeWithTheAgent: an agent that starts with other reserves changes
// the limits of all pods. If they use more memory already, only the memory limit is not
// set.
//
// Shows: C-1.41.6
func TestC_1_41_6_LimitsChangeWithTheAgent(t *testing.T) {
	var log strings.Builder
	g := cgroupsOf(t, func(c *Config) { c.Log = slog.New(slog.NewTextHandler(&log, nil)) })
	put(t, g, shape(t, "a", bestEffortPod))
	all := g.cfg.Root + "/kubepods"
	for _, c := range []struct{ cpu, memory, shares, limit, said string }{
		{"1", "512Mi", "1024", "536870912", ""},
		{"500m", "1", "512", "536870912", "Failed to limit pods to what is allocatable"}, // the kernel refuses it
		{"250m", "256Mi", "256", "268435456", ""},
	} {
		log.Reset()
		g = again(g)
		g.cfg.Limits = v1.ResourceList{v1.ResourceCPU: resource.MustParse(c.cpu), v1.ResourceMemory: resource.MustParse(c.memory)}
		for range 2 {
			put(t, g, shape(t, "a", bestEffortPod))
			want(t, "shares", value(t, all, "cpu.shares"), c.shares)
			want(t, "memory", value(t, all, "memory.limit_in_bytes"), c.limit)
		}
		if got := log.String(); (c.said == "") != (got == "") || !strings.Contains(got, c.said) {
			t.Errorf("%s is said, want %q", got, c.said)
		}
	}
}

// TestC_1_34_5_ResizeRaisesFirstAndLowersLast: the kernel checks a container's limits
// against its pod's; in the kubelet's order it refuses none.
//
// Shows: C-1.34.5
func TestC_1_34_5_ResizeRaisesFirstAndLowersLast(t *testing.T) {
	g := cgroupsOf(t)
	const form = `{containers: [{name: a, resources: {requests: {cpu: %s, memory: 1Mi}, limits: {cpu: %s, memory: %s}}}]}`
	small, large := shape(t, "a", fmt.Sprintf(form, "100m", "200m", "32Mi")), shape(t, "a", fmt.Sprintf(form, "200m", "1", "64Mi"))
	at := put(t, g, small)
	tier := g.cfg.Root + "/kubepods/burstable"
	cpu := filepath.Join("/sys/fs/cgroup/cpu", at, "c")
	if err := os.Mkdir(cpu, 0o755); err != nil {
		t.Fatal(err)
	}
	quota := func(micros int) error {
		return os.WriteFile(filepath.Join(cpu, "cpu.cfs_quota_us"), fmt.Append(nil, micros), 0)
	}
	numbers := func() string {
		return fmt.Sprint(value(t, at, "cpu.shares"), " ", value(t, at, "cpu.cfs_quota_us"), " ", value(t, at, "memory.limit_in_bytes"), " ", value(t, tier, "cpu.shares"))
	}
	if err := quota(20000); err != nil {
		t.Fatal(err)
	}
	if err := quota(100000); err == nil {
		t.Fatal("the kernel lets a container have more than its pod")
	}
	if err := errors.Join(g.Raise(large), quota(100000)); err != nil {
		t.Fatal(err)
	}
	want(t, "raised", numbers(), "204 100000 67108864 204")
	if err := g.Raise(small); err != nil {
		t.Fatal(err)
	}
	want(t, "raised to less", numbers(), "204 100000 67108864 204")
	if err := g.Lower(small); err == nil {
		t.Error("the pod has less than its container")
	}
	if err := errors.Join(quota(20000), g.Lower(small)); err != nil {
		t.Fatal(err)
	}
	want(t, "lowered", numbers(), "102 20000 33554432 102")
	none := shape(t, "a", `{containers: [{name: a, resources: {requests: {cpu: 100m}}}]}`)
	if err := g.Raise(none); err != nil {
		t.Fatal(err)
	}
	want(t, "without limits", numbers(), "102 -1 9223372036854771712 102")

	before := snapshot(t, g.cfg.Root)
	for _, f := range []func(*pod.Spec) error{g.Raise, g.Lower} { // not ours; another class
		for _, s := range []*pod.Spec{shape(t, "b", burstablePod), shape(t, "a", guaranteed)} {
			if err := f(s); err != nil {
				t.Error(err)
			}
		}
	}
	unchanged(t, g.cfg.Root, before)
}

// TestC_1_41_3_TierKnowsOfPodsFromBefore: a restarted agent counts the running pods that it
// has not put.
//
// Shows: C-1.41.3
func TestC_1_41_3_TierKnowsOfPodsFromBefore(t *testing.T) {
	g := cgroupsOf(t)
	put(t, g, shape(t, "a", burstablePod))
	put(t, g, shape(t, "m", `{containers: [{name: a, resources: {requests: {memory: 1Mi}}}]}`))
	tier := g.cfg.Root + "/kubepods/burstable"
	want(t, "one of 250m", value(t, tier, "cpu.shares"), 256)
	g = again(g)
	put(t, g, shape(t, "b", burstablePod))
	want(t, "two", value(t, tier, "cpu.shares"), 512)
	g = again(g)
	if err := g.Destroy("a"); err != nil {
		t.Fatal(err)
	}
	want(t, "one again", value(t, tier, "cpu.shares"), 256)
}

// TestI6_DestroyWaitsForProcesses: Destroy waits for processes that end, and removes the cgroups
// that containers made. Sweep names processes that are left, and kills none.
//
// Shows: I6
func TestI6_DestroyWaitsForProcesses(t *testing.T) {
	g := cgroupsOf(t)
	at := put(t, g, shape(t, "a", burstablePod))
	mkdir(t, at, "container/nested")
	end := inside(t, at+"/container")
	mkdir(t, at, "empty")
	before := names(t, g.cfg.Root)
	removed, err := again(g).Sweep(nil)
	if len(removed) > 0 || err == nil || !strings.Contains(err.Error(), "(sleep)") || !strings.Contains(err.Error(), "/poda") {
		t.Errorf("swept %q, %v", removed, err)
	}
	want(t, "while it runs", names(t, g.cfg.Root), before)
	want(t, "still a parent", g.Parent(shape(t, "a", burstablePod)), at)
	var said strings.Builder
	g.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	g.endTimeout = time.Hour
	synctest.Test(t, func(t *testing.T) { // time passes while Destroy waits
		go func() {
			time.Sleep(5 * pause)
			end() // the last process ends
		}()
		began := time.Now()
		if err := g.Destroy("a"); err != nil || said.Len() > 0 {
			t.Errorf("%v; said: %s", err, said.String())
		}
		if took := time.Since(began); took < 5*pause {
			t.Errorf("removed after %s, while its process runs", took)
		}
	})
	want(t, "left", names(t, g.cfg.Root), []string{})
}

// TestC_1_18_4_WhatAPodLeftIsKilled: processes are killed only by the second Destroy, then in
// all cgroups below the pod's; processes of other pods keep running.
//
// Shows: C-1.18.4
func TestC_1_18_4_WhatAPodLeftIsKilled(t *testing.T) {
	g := cgroupsOf(t)
	var said strings.Builder
	g.cfg.Log = slog.New(slog.NewTextHandler(&said, nil))
	at := put(t, g, shape(t, "a", burstablePod))
	other := put(t, g, shape(t, "b", burstablePod))
	for _, in := range []string{at + "/container", at + "/container/nested", other + "/container"} {
		mkdir(t, in, "")
		inside(t, in)
	}
	before := names(t, g.cfg.Root)
	if err := g.Destroy("a"); err == nil || !strings.Contains(err.Error(), "(sleep)") || !strings.Contains(err.Error(), "pod a:") || said.Len() > 0 {
		t.Errorf("the first time: %v; said: %s", err, said.String())
	}
	want(t, "after the first time", names(t, g.cfg.Root), before)
	if err := g.Destroy("a"); err != nil {
		t.Error(err)
	}
	if !strings.Contains(said.String(), "(sleep)") {
		t.Errorf("said: %s", said.String())
	}
	if left, err := processes(rootDirs(t, other)); err != nil || len(left) != 1 {
		t.Errorf("in the other pod's cgroup are %v, %v", left, err)
	}
	want(t, "left", slices.Contains(names(t, g.cfg.Root), "/kubepods/burstable/poda"), false)
}

// Shows: I6
func TestI6_SweepKeepsWhatIsKnown(t *testing.T) {
	g := cgroupsOf(t)
	for _, uid := range []string{"a", "b", "c"} {
		put(t, g, shape(t, uid, burstablePod))
	}
	put(t, g, shape(t, "d", guaranteed))
	g = again(g)
	removed, err := g.Sweep(map[string]bool{"b": true})
	want(t, "removed", removed, []string{"a", "c", "d"})
	want(t, "error", err, nil)
	want(t, "shares", value(t, g.cfg.Root+"/kubepods/burstable", "cpu.shares"), 256)
	want(t, "left", names(t, g.cfg.Root), []string{"", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable", "/kubepods/burstable/podb"})
	put(t, g, shape(t, "new", guaranteed)) // put after keep was made
	removed, err = g.Sweep(nil)
	want(t, "but what this agent has put", removed, []string{"b"})
	want(t, "error", err, nil)
	removed, err = again(g).Sweep(nil)
	want(t, "all", removed, []string{"new"})
	want(t, "error", err, nil)
	want(t, "nothing is left", names(t, g.cfg.Root), []string{})
}

// TestI6_SweepBesideStarts: pods that start during a sweep are not changed by it.
//
// Shows: I6
func TestI6_SweepBesideStarts(t *testing.T) {
	g := cgroupsOf(t)
	var pods []*pod.Spec
	for i := range 8 {
		pods = append(pods, shape(t, fmt.Sprintf("p%d", i), burstablePod))
		put(t, g, pods[i])
	}
	for range 10 {
		g = again(g)
		var wg sync.WaitGroup
		for _, s := range pods {
			wg.Go(func() {
				if _, err := g.Ensure(s); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Go(func() {
			if _, err := g.Sweep(nil); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
	expect := []string{"", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable"}
	for _, s := range pods {
		expect = append(expect, "/kubepods/burstable/pod"+s.UID())
	}
	want(t, "there are", names(t, g.cfg.Root), expect)
	want(t, "shares of 8 × 250m", value(t, g.cfg.Root+"/kubepods/burstable", "cpu.shares"), 2048)
}

// TestF3_HalfMadeIsMended: the next agent repairs the cgroups of an agent that died after
// any step of Ensure.
//
// Shows: F3
func TestF3_HalfMadeIsMended(t *testing.T) {
	s := shape(t, "a", burstablePod)
	for what, cut := range map[string]func(g *Cgroups, dirs []string){
		"said": func(g *Cgroups, dirs []string) {},
		"made in one": func(g *Cgroups, dirs []string) {
			if err := os.Mkdir(dirs[0], 0o755); err != nil {
				t.Fatal(err)
			}
		},
		"made in all": func(g *Cgroups, dirs []string) {
			for _, dir := range dirs {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
		},
		"marked in some": func(g *Cgroups, dirs []string) {
			for _, dir := range dirs {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := g.marks.mark(dirs[:4], 250); err != nil {
				t.Fatal(err)
			}
		},
	} {
		for _, mend := range []string{"put", "take", "sweep"} {
			for _, kernel := range []string{"attributes", "list"} {
				t.Run(what+"/"+mend+"/"+kernel, func(t *testing.T) {
					g := cgroupsOf(t)
					if kernel == "list" {
						bare(g)
					}
					put(t, g, shape(t, "other", burstablePod))
					tree := g.trees[false]
					dirs := tree.host.dirs(tree.pod(v1.PodQOSBurstable, "a").path(false))
					if err := g.marks.claim(dirs, 250); err != nil {
						t.Fatal(err)
					}
					cut(g, dirs)
					set := g.marks.set
					g = again(g)
					g.marks.set = set
					switch mend {
					case "put":
						put(t, g, s)
						want(t, "shares of both", value(t, g.cfg.Root+"/kubepods/burstable", "cpu.shares"), 512)
						if err := g.Destroy("a"); err != nil {
							t.Fatal(err)
						}
					case "take":
						if err := g.Destroy("a"); err != nil {
							t.Fatal(err)
						}
					case "sweep":
						if _, err := g.Sweep(map[string]bool{"other": true}); err != nil {
							t.Fatal(err)
						}
					}
					want(t, "left", names(t, g.cfg.Root), []string{"", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable", "/kubepods/burstable/podother"})
					if mend != "sweep" && kernel == "attributes" {
						return // Sweep drops a claim without a cgroup
					}
					mkdir(t, g.cfg.Root, "kubepods/burstable/poda") // made later by another program
					if o, _, err := g.marks.owner(dirs[0]); kernel == "attributes" && (o != unmarked || err != nil) {
						t.Errorf("another's is owner %d, %v", o, err)
					}
				})
			}
		}
	}
}

// TestF3_KilledAtAnyMoment kills an agent that makes and removes cgroups; the next one repairs its
// remains.
//
// Shows: F3, F34
func TestF3_KilledAtAnyMoment(t *testing.T) { killedAtAnyMoment(t, 10) }

// killedAtAnyMoment kills as many processes as cuts says while they make and remove cgroups.
func killedAtAnyMoment(t *testing.T, cuts int) {
	if root := os.Getenv("NODECTL_TEST_CGROUPS"); root != "" {
		churn(t, root)
		return
	}
	g := cgroupsOf(t)
	mkdir(t, g.cfg.Root, ".")
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range cuts {
		cmd := exec.Command(os.Args[0], "-test.run", "^"+t.Name()+"$")
		cmd.Env = append(os.Environ(), "NODECTL_TEST_CGROUPS="+g.cfg.Root+" "+g.cfg.RootDir, "TMPDIR="+t.TempDir()) // TMPDIR is removed with this test
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		if _, err := out.Read(make([]byte, 1)); err != nil { // it has started
			t.Fatal(err)
		}
		for end := time.Now().Add(time.Duration(random.IntN(12_000)) * time.Microsecond); time.Now().Before(end); {
		}
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait()

		next := again(g)
		if i%2 == 0 {
			put(t, next, shape(t, "a", burstablePod))
			want(t, "parent", next.Parent(shape(t, "a", burstablePod)), g.cfg.Root+"/kubepods/burstable/poda")
			next = again(g)
		}
		if _, err := next.Sweep(nil); err != nil {
			t.Fatal(err)
		}
		// A cgroup made without our mark counts as another program's until the next pod
		// comes.
		for _, left := range names(t, g.cfg.Root) {
			if left, _, _ = strings.Cut(left, " in "); left != "" && left != "/kubepods" {
				t.Fatalf("after cut %d there is %s", i, left)
			}
		}
		put(t, next, shape(t, "a", burstablePod))
		if err := next.Destroy("a"); err != nil {
			t.Fatal(err)
		}
		want(t, "left", names(t, g.cfg.Root), []string{""})
	}
}

// churn runs as the agent that is killed.
func churn(t *testing.T, where string) {
	f := strings.Fields(where)
	g := New(Config{Root: f[0], RootDir: f[1], Node: "n1", Driver: cgroupsOf(t).cfg.Driver})
	fmt.Println("at work")
	for {
		for _, spec := range []string{burstablePod, guaranteed} {
			put(t, g, shape(t, "a", spec))
			put(t, g, shape(t, "b", bestEffortPod))
			for _, uid := range []string{"a", "b"} {
				if err := g.Destroy(uid); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// TestC_1_41_3_AnySequence: after any sequence of Ensure and Destroy, the cgroups are those of
// the present pods, and the tier has the sum of their requests.
//
// Shows: C-1.41.3
func TestC_1_41_3_AnySequence(t *testing.T) {
	g := cgroupsOf(t)
	specs := []struct {
		text, tier string
		milli      int64
	}{
		{guaranteed, "", 0}, {burstablePod, "/burstable", 250}, {bestEffortPod, "/besteffort", 0},
		{`{containers: [{name: a, resources: {requests: {cpu: 333m}}}]}`, "/burstable", 333},
		{`{containers: [{name: a, resources: {requests: {memory: 1Mi}}}]}`, "/burstable", 0},
	}
	rapid.Check(t, func(r *rapid.T) {
		g = again(g)
		if _, err := g.Sweep(nil); err != nil { // of the previous run
			r.Fatal(err)
		}
		here := map[string]int{}
		uid := rapid.SampledFrom([]string{"a", "b-1", "c"})
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			id := uid.Draw(r, "uid")
			switch rapid.SampledFrom([]string{"put", "put", "take", "again", "sweep", "resize"}).Draw(r, "step") {
			case "put":
				i := rapid.IntRange(0, len(specs)-1).Draw(r, "spec")
				put(t, g, shape(t, id, specs[i].text))
				here[id] = i
			case "take":
				if err := g.Destroy(id); err != nil {
					r.Fatal(err)
				}
				delete(here, id)
			case "again":
				g = again(g)
			case "sweep":
				keep := map[string]bool{id: true}
				g = again(g)
				if _, err := g.Sweep(keep); err != nil {
					r.Fatal(err)
				}
				maps.DeleteFunc(here, func(other string, _ int) bool { return other != id })
			case "resize":
				i, ok := here[id]
				if !ok || specs[i].tier != "/burstable" {
					continue
				}
				j := rapid.SampledFrom([]int{1, 3, 4}).Draw(r, "to")
				s := shape(t, id, specs[j].text)
				if err := errors.Join(g.Raise(s), g.Lower(s)); err != nil {
					r.Fatal(err)
				}
				here[id] = j
			}
			expect := []string{}
			if len(here) > 0 {
				expect = append(expect, "", "/kubepods", "/kubepods/besteffort", "/kubepods/burstable")
			}
			var sum int64
			for id, i := range here {
				expect = append(expect, "/kubepods"+specs[i].tier+"/pod"+id)
				sum += specs[i].milli
			}
			slices.Sort(expect)
			if got := names(t, g.cfg.Root); !slices.Equal(got, expect) {
				r.Fatalf("there are %q, want %q", got, expect)
			}
			if len(here) > 0 {
				if got := value(t, g.cfg.Root+"/kubepods/burstable", "cpu.shares"); got != fmt.Sprint(max(2, sum*1024/1000)) {
					r.Fatalf("shares %s of %dm", got, sum)
				}
			}
		}
	})
}
