package bundle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLastLinesAreTheReason(t *testing.T) {
	for name, c := range map[string]struct{ log, want string }{
		"fatal": {`time="2026-01-01T00:00:00Z" level=warning msg="cgroup v1"
time="2026-01-01T00:00:00Z" level=fatal msg="cannot start" error="bind: address in use"
`, "cannot start: bind: address in use"},
		"plain":        {"containerd: failed to load TOML: line 3\n", "failed to load TOML: line 3"},
		"word":         {`time="x" level=error error=EOF msg=broken` + "\n", "broken: EOF"},
		"only warning": {`time="x" level=warning msg="careful"` + "\n", "it ended without a message in its log"},
		"nothing":      {"", "it ended without a message in its log"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "log")
			before := "containerd: of an earlier start\n"
			if err := os.WriteFile(file, []byte(before+c.log), 0o600); err != nil {
				t.Fatal(err)
			}
			if got := lastLogMessage(file, int64(len(before))); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// A child of containerd that has not called exec yet has containerd's program and
// arguments, and may have a lower process ID after these wrap around.
func TestFind_ForkOfContainerd_IsNotContainerd(t *testing.T) {
	parents := map[int]int{900: 1, 120: 900, 901: 900}
	got := withoutForks([]process{{pid: 120}, {pid: 900}, {pid: 901}}, func(pid int) int { return parents[pid] })
	if len(got) != 1 || got[0].pid != 900 {
		t.Errorf("%v, want process 900 alone", got)
	}
	if got, want := parent(os.Getpid()), os.Getppid(); got != want {
		t.Errorf("the parent of this process is %d, want %d", got, want)
	}
}

func TestUnitRoots(t *testing.T) {
	const (
		v2     = "25 22 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
		hybrid = "26 22 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd\n" +
			"27 22 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
			"28 22 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
		inside = "25 22 0:26 /docker/x /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
	)
	for name, c := range map[string]struct {
		cgroup, mounts string
		want           []string
	}{
		"v2 unit":       {"0::/system.slice/nodectl.service\n", v2, []string{"/sys/fs/cgroup"}},
		"v2 root":       {"0::/\n", v2, nil},
		"hybrid unit":   {"4:memory:/x\n1:name=systemd:/user.slice/s.scope\n0::/user.slice/s.scope\n", hybrid, []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified"}},
		"only a limit":  {"4:memory:/x\n1:name=systemd:/\n0::/\n", hybrid, nil},
		"in a part":     {"0::/a\n", inside, nil},
		"out of sight":  {"0::/../other\n", v2, nil},
		"blank in name": {"0::/a b\n", v2, []string{"/sys/fs/cgroup"}},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "self")
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for file, text := range map[string]string{"cgroup": c.cgroup, "mountinfo": c.mounts} {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			got := unitRoots(filepath.Dir(dir))
			if len(got) != len(c.want) {
				t.Fatalf("%v, want %v", got, c.want)
			}
			for i := range got {
				if got[i] != c.want[i] {
					t.Errorf("%v, want %v", got, c.want)
				}
			}
		})
	}
}

// TestBoundLog_ContainerdAppends_GoesOnInTheSameFile: containerd keeps its log open for months.
func TestBoundLog_ContainerdAppends_GoesOnInTheSameFile(t *testing.T) {
	r := New(Config{RootDir: t.TempDir()})
	if err := os.MkdirAll(r.root, 0o700); err != nil {
		t.Fatal(err)
	}
	r.boundLog() // there is none
	log, err := os.OpenFile(r.LogFile(), os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	write := func(text string) {
		if _, err := log.WriteString(text); err != nil {
			t.Fatal(err)
		}
	}
	sizes := func() (now, before int64) {
		for file, size := range map[string]*int64{r.LogFile(): &now, r.LogFile() + ".1": &before} {
			if st, err := os.Stat(file); err == nil {
				*size = st.Size()
			}
		}
		return now, before
	}
	write(strings.Repeat("x", logLimit))
	r.boundLog()
	if now, before := sizes(); now != logLimit || before != 0 {
		t.Errorf("at the limit: %d and %d bytes", now, before)
	}
	write("more")
	r.boundLog()
	write("next")
	if now, before := sizes(); now != 4 || before != logLimit {
		t.Errorf("above the limit: %d and %d bytes", now, before)
	}
	if err := os.Truncate(r.LogFile(), 5*logLimit); err != nil {
		t.Fatal(err)
	}
	r.boundLog()
	if now, before := sizes(); now != 0 || before != logLimit {
		t.Errorf("far above the limit: %d and %d bytes", now, before)
	}
}
