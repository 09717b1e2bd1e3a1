// Package soakdevices ends agents at every step of the use of devices, and compares the end with the
// end of a node whose agent was never ended.
//
// The engine and the packages of devices, claims, CPUs and volumes are the real ones. The runtime, the
// plugins, the drivers and the API server are fakes, and time is fake. Files and mounts are real.
//
// A step is a write to the disk, or an outgoing call. The agent ends right after it took effect: the
// answer of a call does not reach the agent.
package soakdevices

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"golang.org/x/sys/unix"
)

// result is the outcome of one life.
type result struct {
	steps    int
	kinds    map[string]int // steps by their names
	ends     []string       // the steps after which agents ended
	problems []string
	broken   map[promise]int
	reboots  int
	repeated int // calls of which a kill had lost the answer
	log      string
}

// play plays a life of a node in fake time.
func play(t *testing.T, life func(w *world), fates map[int]fate) (r result) {
	t.Helper()
	root := machineDir(t)
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, root, fates)
		life(w)
		w.checkEmpty()
		w.leave()
		synctest.Wait()
		w.unmountAll()
		w.mu.Lock()
		defer w.mu.Unlock()
		r = result{
			steps: w.n, kinds: w.steps, ends: w.ends, problems: w.problems, broken: w.broken, reboots: w.boot,
			repeated: w.cards.Prepared.Repeated() + w.disks.Mounted.Repeated(), log: w.log.String(),
		}
	})
	return r
}

// machineDir returns the directory of a node, in memory if possible: a write need not wait for a disk.
func machineDir(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the test needs root, to mount")
	}
	memory := "/dev/shm"
	if _, err := os.Stat(memory); err != nil {
		memory = ""
	}
	dir, err := os.MkdirTemp(memory, "soak")
	if err != nil {
		t.Fatal(err)
	}
	if dir, err = filepath.EvalSymlinks(dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, path := range (&world{root: dir}).mounts() {
			_ = unix.Unmount(path, unix.MNT_DETACH)
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// report fails the test if a life broke a promise.
func (r result) report(t *testing.T, what string) {
	t.Helper()
	if len(r.problems) == 0 {
		return
	}
	t.Errorf("%s, ended after %v:\n%s", what, r.ends, strings.Join(r.problems, "\n"))
	if file := os.Getenv("SOAK_LOG"); file != "" {
		if err := os.WriteFile(file, []byte(r.log), 0o600); err != nil {
			t.Error(err)
		}
	}
}

// spread returns n numbers from 1 to most, at equal distances.
func spread(n, most int) (all []int) {
	for i := range n {
		all = append(all, 1+i*(most-1)/max(n-1, 1))
	}
	return all
}

// killsOf returns the steps after which agents are killed, by life. If there are more kills than steps,
// each step has a life of its own. In further lives, the next agent is killed, too.
func killsOf(kills, steps int) (all []map[int]fate) {
	const together = 10 // kills in a life, if there are fewer kills than steps
	if kills < steps {
		at, n := spread(kills, steps), kills/together
		for i := range n {
			one := make(map[int]fate)
			for j := range together {
				one[at[i+n*j]] = kill
			}
			all = append(all, one)
		}
		return all
	}
	for n := range steps {
		all = append(all, map[int]fate{n + 1: kill})
	}
	after := []int{1, 2, 3, 5, 8, 13, 21} // steps of the next agent
	pairs := (kills - steps + 1) / 2
	for i, n := range spread(pairs, steps-slices.Max(after)) {
		all = append(all, map[int]fate{n: kill, n + after[i%len(after)]: kill})
	}
	return all
}

// rebootsOf returns the steps after which the machine reboots. The next agent is killed, too.
func rebootsOf(reboots, steps int) (all []map[int]fate) {
	for i, n := range spread(reboots+2, steps)[1 : reboots+1] {
		all = append(all, map[int]fate{n: reboot, n + 1 + i%20: kill})
	}
	return all
}

// Agents are ended after steps of the lives of a node; and after other steps the machine reboots, every
// plugin starts 30 s late, and the next agent is ended, too. No pod is refused, no set changes, and
// nothing is left. The flags make the amounts of "make soak-devices".
//
// Shows: F1, F33
func TestSoak_KillsAndReboots_NothingIsRefusedChangedOrLeft(t *testing.T) {
	sum := newSum()
	for _, l := range lives {
		plain := play(t, l.play, nil)
		if plain.report(t, l.name); plain.steps < 100 {
			t.Fatalf("%s: only %d steps: %v", l.name, plain.steps, plain.kinds)
		}
		sum.plain(l.name, plain)
		fates := append(killsOf(*kills/len(lives), plain.steps), rebootsOf(*reboots/len(lives), plain.steps)...)
		for i, f := range fates {
			r := play(t, l.play, f)
			r.report(t, fmt.Sprintf("%s, %v", l.name, f))
			sum.add(r)
			if *docs && i%20 == 0 {
				fmt.Fprintf(os.Stderr, "%s: %d of %d lives, %d breaches\n", l.name, i, len(fates), sum.breaches())
			}
		}
	}
	sum.addIdle(t)
	if n := *kills * 9 / 10; sum.kills < n || sum.reboots < *reboots/len(lives) {
		t.Errorf("only %d kills and %d reboots", sum.kills, sum.reboots)
	}
	if !*docs || t.Failed() {
		return
	}
	if err := sum.write(t.Context()); err != nil {
		t.Error(err)
	}
}
