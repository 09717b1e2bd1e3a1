package node

import (
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"
)

// Time in which a test could not run does not count; time in which it waited does.
func TestStopwatchCountsWhatRan(t *testing.T) {
	took, begun := Stopwatch(t), time.Now()
	<-time.After(200 * time.Millisecond)
	if got, is := took(), time.Since(begun); got > is || got < 50*time.Millisecond {
		t.Errorf("%v of %v", got, is)
	}
	took, begun = Stopwatch(t), time.Now()
	pid := strconv.Itoa(os.Getpid())
	// Somebody stops this program for a while, as a machine that stands still does.
	if out, err := exec.Command("sh", "-c", "{ kill -STOP "+pid+"; sleep 1; kill -CONT "+pid+"; } >/dev/null 2>&1 &").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	Eventually(t, 30*time.Second, func() error {
		if time.Since(begun) < 1200*time.Millisecond {
			return os.ErrDeadlineExceeded
		}
		return nil
	})
	if got, is := took(), time.Since(begun); is-got < 700*time.Millisecond {
		t.Errorf("%v of %v count, of which the program stood for a second", got, is)
	}
}
