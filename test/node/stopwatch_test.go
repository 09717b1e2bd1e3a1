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
	var counted []string
	for tries, enough := 0, false; !enough; tries++ { // this machine does not stand still for long
		begun := time.Now()
		took := Stopwatch(t)
		<-time.After(200 * time.Millisecond)
		got, is := took(), time.Since(begun)
		counted = append(counted, fmt.Sprintf("%v of %v", got, is))
		if enough = got >= is/2; got > is || !enough && tries == 19 {
			t.Fatal(counted)
		}
	}
	begun := time.Now()
	took := Stopwatch(t)
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
