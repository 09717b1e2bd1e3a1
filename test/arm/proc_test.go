package arm

import (
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"
)

// The name in /proc/PID/stat may hold blanks and brackets; all four CPU times
// count.
func TestParseStat(t *testing.T) {
	text := "42 (a) b (c) S 1 42 42 0 -1 4194304 1 2 3 4 100 20 3 4 20 0 9 0 5 6 7"
	if got, want := parseStat([]byte(text)), 127*tick; got != want {
		t.Errorf("parseStat = %s, want %s", got, want)
	}
	if got := parseStat([]byte("42 (a) S 1")); got != 0 {
		t.Errorf("parseStat of half a line = %s", got)
	}
}

func TestStatusBytes(t *testing.T) {
	text := "Name:\tx\nVmRSS:\t   36000 kB\nRssAnon:\t   12 kB\n"
	if got := statusBytes(text, "VmRSS:"); got != 36000<<10 {
		t.Errorf("VmRSS = %d", got)
	}
	if got := statusBytes(text, "RssAnon:"); got != 12<<10 {
		t.Errorf("RssAnon = %d", got)
	}
	if got := statusBytes(text, "VmSwap:"); got != 0 {
		t.Errorf("VmSwap = %d, and is not there", got)
	}
}

func TestParseIO(t *testing.T) {
	text := "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 8192\ncancelled_write_bytes: 7\n"
	if got, err := parseIO(text); got != 8192 || err != nil {
		t.Errorf("parseIO = %d, %v", got, err)
	}
	if got, err := parseIO("cancelled_write_bytes: 7\n"); err == nil {
		t.Errorf("parseIO without the line = %d", got)
	}
}

// TestWritten_ProcessHasEnded_IsAnError: its bytes would count as none in a window.
func TestWritten_ProcessHasEnded_IsAnError(t *testing.T) {
	if got, err := Written(os.Getpid()); err != nil {
		t.Errorf("of this process: %d, %v", got, err)
	}
	cmd := exec.Command("true")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	if err := unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := Written(pid); err == nil {
		t.Errorf("before its parent has waited for it: %d bytes", got)
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if got, err := Written(pid); err == nil {
		t.Errorf("after that: %d bytes", got)
	}
}
