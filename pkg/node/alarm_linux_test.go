package node

import (
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestMemoryAlarm_UsageCrossesThreshold_Notifies: the kernel notifies of a threshold near the usage
// once a process takes that much. Arming again for the same thresholds changes nothing.
//
// Shows: C-1.35.1
func TestMemoryAlarm_UsageCrossesThreshold_Notifies(t *testing.T) {
	if _, err := os.Stat("/sys/fs/cgroup/memory/cgroup.event_control"); err != nil || os.Geteuid() != 0 {
		t.Skip("needs root and cgroup v1")
	}
	const size = 256 << 20
	a, err := NewMemoryAlarm("/")
	if err != nil {
		t.Logf("without pressure stall information: %v", err)
	}
	defer a.Close()
	now, err := Meter{Root: "/"}.Read()
	if err != nil {
		t.Fatal(err)
	}
	limits := []int64{now.By["memory.available"].Available - size/4}
	if err := a.Arm(now, limits); err != nil {
		t.Fatal(err)
	}
	armed := a.usage
	if err := a.Arm(now, limits); err != nil || a.usage != armed {
		t.Errorf("armed again: %v", err)
	}
	memory, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_POPULATE)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(memory) }()
	select {
	case <-a.C():
	case <-time.After(30 * time.Second):
		t.Error("the kernel has not notified")
	}
}
