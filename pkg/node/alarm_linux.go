package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/wakeup"
)

// MemoryAlarm is the kernel's notification that memory becomes short. With cgroup v1 the kernel
// notifies when the machine's usage crosses a threshold, for which the alarm is armed; a
// kernel with pressure stall information also when processes wait for memory. Both sources
// cost nothing at rest. Its methods may be called from many goroutines.
type MemoryAlarm struct {
	root string // of /proc and /sys
	wake wakeup.Signal

	mu     sync.Mutex
	closed bool
	usage  *os.File // eventfd of the thresholds; nil: not armed
	armed  []int64  // thresholds of usage
	stall  *os.File // eventfd that ends the goroutine of the pressure trigger; nil: there is none
	wg     sync.WaitGroup
}

// rearm is by how much a threshold has to move to be set again.
const rearm = 8 << 20

// psiTrigger fires when tasks waited for memory for 100 ms within a second, at most once a second.
const psiTrigger = "some 100000 1000000\x00"

// NewMemoryAlarm returns an alarm. root is that of /proc and /sys. An error says why pressure
// stall information is not used; the alarm works without it. Close it.
func NewMemoryAlarm(root string) (*MemoryAlarm, error) {
	a := &MemoryAlarm{root: root, wake: wakeup.New()}
	return a, a.watchStalls()
}

// C is readable after a notification.
func (a *MemoryAlarm) C() <-chan struct{} { return a.wake }

// Close ends all notifications.
func (a *MemoryAlarm) Close() {
	a.mu.Lock()
	a.closed = true
	a.disarm()
	if a.stall != nil {
		_, _ = a.stall.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	a.mu.Unlock()
	a.wg.Wait()
	if a.stall != nil {
		_ = a.stall.Close()
	}
}

// Arm makes the kernel notify when the available memory falls to one of limits. now is the newest
// measurement. Files in the cache count as available, so their amount is part of the kernel's
// threshold and Arm is to be called again when it may have changed. With cgroup v2 it does nothing:
// the root group has no such thresholds.
func (a *MemoryAlarm) Arm(now Levels, limits []int64) error {
	memory, measured := now.By["memory.available"]
	group := filepath.Join(a.root, "sys/fs/cgroup/memory")
	if _, err := os.Stat(filepath.Join(group, "cgroup.event_control")); err != nil || !measured {
		return nil
	}
	thresholds := make([]int64, 0, len(limits))
	for _, limit := range limits {
		thresholds = append(thresholds, memory.Capacity-limit+now.Cached)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.usage != nil && slices.EqualFunc(a.armed, thresholds, func(x, y int64) bool { return max(x-y, y-x) < rearm }) {
		return nil
	}
	a.disarm()
	if len(thresholds) == 0 {
		return nil
	}
	f, err := usageEvents(group, thresholds)
	if err != nil {
		return fmt.Errorf("watch memory usage of %s: %w", group, err)
	}
	a.usage, a.armed = f, thresholds
	a.wg.Go(func() {
		var count [8]byte
		for {
			if _, err := f.Read(count[:]); err != nil { // closed
				return
			}
			a.wake.Send()
		}
	})
	return nil
}

// disarm drops the thresholds; the kernel forgets them with the file.
func (a *MemoryAlarm) disarm() {
	if a.usage != nil {
		_ = a.usage.Close()
		a.usage, a.armed = nil, nil
	}
}

// usageEvents returns a file that is readable when the usage of a cgroup crosses a threshold.
func usageEvents(group string, thresholds []int64) (*os.File, error) {
	usage, err := os.Open(filepath.Join(group, "memory.usage_in_bytes"))
	if err != nil {
		return nil, err
	}
	defer usage.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, os.NewSyscallError("eventfd", err)
	}
	f := os.NewFile(uintptr(fd), "eventfd") // nonblocking: reads wait without a thread
	for _, t := range thresholds {
		text := fmt.Sprintf("%d %d %d", fd, usage.Fd(), t)
		if err := os.WriteFile(filepath.Join(group, "cgroup.event_control"), []byte(text), 0); err != nil {
			_ = f.Close()
			return nil, err
		}
	}
	return f, nil
}

// watchStalls sets a trigger on the machine's memory pressure, where the kernel has it.
func (a *MemoryAlarm) watchStalls() error {
	trigger, err := os.OpenFile(filepath.Join(a.root, "proc/pressure/memory"), os.O_RDWR|unix.O_NONBLOCK, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = trigger.WriteString(psiTrigger)
	}
	var fd int
	if err == nil {
		fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	}
	if err != nil {
		if trigger != nil {
			_ = trigger.Close()
		}
		return fmt.Errorf("watch memory pressure: %w", err)
	}
	a.stall = os.NewFile(uintptr(fd), "eventfd")
	a.wg.Go(func() {
		defer trigger.Close()
		for stalled(trigger, fd) {
			a.wake.Send()
		}
	})
	return nil
}

// stalled waits for the trigger. It returns false when the other file becomes readable. It needs
// a thread of its own: Go's poller does not wait for POLLPRI.
func stalled(trigger *os.File, end int) bool {
	for {
		fds := []unix.PollFd{{Fd: int32(trigger.Fd()), Events: unix.POLLPRI}, {Fd: int32(end), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, -1)
		switch {
		case errors.Is(err, unix.EINTR) || n == 0:
			continue
		case err != nil || fds[1].Revents != 0 || fds[0].Revents&unix.POLLERR != 0:
			return false
		}
		return fds[0].Revents&unix.POLLPRI != 0
	}
}
