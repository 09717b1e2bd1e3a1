// Package kinds has every kind of wait, marked by a comment where real time reaches it.
package kinds

import (
	"context"
	"net"
	"os/exec"
	"testing"
	"testing/synctest"
	"time"
	clock "time"

	kernel "golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

type double struct{ takes time.Duration }

func (d *double) Run() { time.Sleep(d.takes) }

type realDouble struct{}

func (realDouble) Run() { time.Sleep(1) } // WAIT

func bubble(t *testing.T, f func(d *double)) {
	synctest.Test(t, func(*testing.T) { f(&double{}) })
}

func inBoth()   { time.Sleep(1) } // WAIT
func inBubble() { time.Sleep(1) }
func perhaps(t *testing.T, f func()) {
	synctest.Test(t, func(*testing.T) { f() })
	f()
}

func pass() {
	time.Sleep(1)
	synctest.Wait()
}

func TestFakeTime(t *testing.T) {
	bubble(t, func(d *double) {
		d.Run()
		inBoth()
		inBubble()
		<-time.After(1)
	})
}

func TestRealTime(t *testing.T) {
	pass()
	inBoth()
	realDouble{}.Run()
	perhaps(t, func() { time.Sleep(1) }) // WAIT
	sleep := time.Sleep                  // WAIT
	sleep(1)
	<-time.After(1) // WAIT
	later := time.After(1)
	_ = <-later // WAIT
	tick := time.NewTicker(1)
	for range tick.C { // WAIT
	}
	ctx, event := context.Background(), make(chan int)
	select { // WAIT
	case <-tick.C:
	case <-ctx.Done():
	}
	go func() { event <- 1 }()
	select {
	case <-event:
	case <-later:
	}
	for ; ; <-time.After(1) { // WAIT
	}
}

func TestContexts(t *testing.T) {
	ctx, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	<-ctx.Done() // WAIT
	select {     // WAIT
	case <-ctx.Done():
	case <-t.Context().Done():
	}
	net, end := context.WithTimeout(t.Context(), wait.Limit)
	defer end()
	<-net.Done()
	<-t.Context().Done()
}

func TestSelects(t *testing.T) {
	select { // WAIT
	case <-time.After(1):
	default:
	}
	var none chan int
	select { // WAIT
	case <-time.After(1):
	case <-none:
	}
	unread := make(chan int)
	select { // WAIT
	case <-time.After(1):
	case unread <- 1:
	}
	select { // WAIT
	case <-time.After(1):
	case <-make(chan int):
	}
	event := make(chan int)
	go func() { event <- 1 }()
	select { // WAIT
	case <-event:
		t.Error("it came")
	case <-time.After(1):
	}
	select {
	case <-event:
	case <-time.After(1):
		t.Error("it did not come")
	}
}

func TestLateEvents(t *testing.T) {
	answer := make(chan int)
	time.AfterFunc(1, func() { close(answer) }) // WAIT
	<-answer
	time.AfterFunc(wait.Limit, func() { panic("stuck") })
	var c net.Conn
	_ = c.SetReadDeadline(time.Now().Add(time.Second)) // WAIT
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	_ = c.SetReadDeadline(time.Now())
	begun := time.Now()
	wait.True(t, "late", func() bool { return time.Since(begun) > 1 })            // WAIT
	eventually(t, func() bool { return time.Now().After(begun) })                 // WAIT
	wait.Until(t, "late", func() (int, bool) { return 1, time.Until(begun) < 0 }) // WAIT
	wait.True(t, "now", func() bool { return begun.IsZero() })
	for time.Now().Before(begun) { // WAIT
	}
}

func eventually(t *testing.T, f func() bool) { wait.True(t, "it happens", f) }

func TestOtherNames(t *testing.T) {
	clock.Sleep(1)                                      // WAIT
	_ = kernel.Nanosleep(nil, nil)                      // WAIT
	_ = exec.Command("sleep", "1").Run()                // WAIT
	_ = exec.Command("sh", "-c", "true; sleep 1").Run() // WAIT
	asleep := exec.Command("/bin/sleep", "1")
	_ = asleep.Start()
	_ = asleep.Wait() // WAIT
}

func TestSubjectsThatSleep(t *testing.T) {
	subject := exec.Command("sleep", "600")
	_ = subject.Start()
	_ = subject.Process.Kill()
	_ = subject.Wait()
}
