package node

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// Time in which a test could not run does not count; time in which it waited does.
func TestStopwatchCountsWhatRan(t *testing.T) {
	begun := time.Now()
	took := Stopwatch(t)
	<-time.After(200 * time.Millisecond)
	if got, is := took(), time.Since(begun); got > is || got == 0 {
		t.Errorf("%v of %v", got, is)
	}
	begun = time.Now()
	took = Stopwatch(t)
	pid := strconv.Itoa(os.Getpid())
	// Somebody stops this program for a while, as a machine that stands still does.
	if out, err := exec.Command("sh", "-c", "{ kill -STOP "+pid+"; sleep 1; kill -CONT "+pid+"; } >/dev/null 2>&1 &").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	Eventually(t, 30*time.Second, func() error {
		if got, is := took(), time.Since(begun); is-got < 700*time.Millisecond {
			return fmt.Errorf("%v of %v count, and the program stood for a second", got, is)
		}
		return nil
	})
}
