package node

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMemoryAlarm_UsageCrossesThreshold_Notifies: the kernel notifies of a threshold near the usage
// once a process takes that much. Arming again for the same thresholds changes nothing. On cgroup
// v2, whose root has no thresholds, arming does nothing. The alarm has no pressure trigger here,
// which could notify as well.
//
// Shows: C-1.35.1
func TestMemoryAlarm_UsageCrossesThreshold_Notifies(t *testing.T) {
	const size, rounds = 256 << 20, 10
	a := &MemoryAlarm{root: "/", wake: make(chan struct{}, 1)}
	defer a.Close()
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.event_control"); err != nil {
		if err := a.Arm(Levels{By: map[string]Level{"memory.available": {Available: size, Capacity: 2 * size}}}, []int64{size}); err != nil || a.usage != nil {
			t.Errorf("armed on cgroup v2: %v", err)
		}
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root may open the cgroup.event_control of the machine; make test, as CI runs it, is root")
	}
	for range rounds { // other processes may free as much as this one takes
		now, err := Meter{Root: "/"}.Read()
		if err != nil {
			t.Fatal(err)
		}
		limits := []int64{now.By["memory.available"].Available - size/4}
		if err := a.Arm(now, limits); err != nil || a.usage == nil {
			t.Fatalf("not armed: %v", err)
		}
		armed := a.usage
		if err := a.Arm(now, limits); err != nil || a.usage != armed {
			t.Errorf("armed again: %v", err)
		}
		memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
		if err != nil {
			t.Fatal(err)
		}
		notified := false
		select {
		case <-a.C():
			notified = true
		case <-time.After(3 * time.Second):
		}
		if err := unix.Munmap(memory); err != nil {
			t.Fatal(err)
		}
		if notified {
			return
		}
	}
	t.Errorf("the kernel has not notified in %d rounds", rounds)
}
