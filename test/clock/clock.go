// Package clock gives a nodectl a wall clock that a test sets. The machine's own clock,
// containerd's and the API server's stay as they are: others use the machine, and no Linux
// namespace has its own CLOCK_REALTIME.
//
// The program is built from this tree with one changed line in Go's package time: Now adds an
// offset from a file that both processes have mapped. Timers use monotonic time, which stays
// the machine's, as it does when an administrator sets the clock.
package clock

import (
	"bytes"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/node"
)

// variable names the file whose first eight bytes are the seconds that the clock is ahead.
const variable = "NODECTL_TEST_CLOCK"

// reads is the line of Now in Go's source, and readsAhead its replacement.
const (
	reads      = "sec, nsec, mono := runtimeNow()\n"
	readsAhead = "sec, nsec, mono := runtimeNow()\n\tif ahead != nil {\n\t\tsec += *ahead\n\t}\n"
)

// mapped is the file that is added to package time: it maps the seconds.
const mapped = `package time

import (
	"syscall"
	"unsafe"
)

var ahead = mapAhead()

func mapAhead() *int64 {
	name, ok := syscall.Getenv("` + variable + `")
	if !ok {
		return nil
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic(name + ": " + err.Error())
	}
	page, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic(name + ": " + err.Error())
	}
	return (*int64)(unsafe.Pointer(&page[0]))
}
`

// Build builds nodectl at program, for a Clock to set. The first build compiles everything,
// on all cores for minutes: a parallel test calls it before t.Parallel.
func Build(t testing.TB, program string) {
	t.Helper()
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	source := filepath.Join(strings.TrimSpace(string(root)), "src", "time")
	is, err := os.ReadFile(filepath.Join(source, "time.go"))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Count(is, []byte(reads)) != 1 {
		t.Fatalf("package time does not read the clock by %q any more", reads)
	}
	// Beside the build cache and always the same directory, so that the build is cached. Its
	// name keeps it out of ./... .
	dir := filepath.Join(node.Repo(), "bin", "clock", "_time")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	replace := map[string]string{}
	for name, text := range map[string][]byte{
		"time.go":  bytes.Replace(is, []byte(reads), []byte(readsAhead), 1),
		"ahead.go": []byte(mapped),
	} {
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		replace[filepath.Join(source, name)] = file
	}
	list, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		t.Fatal(err)
	}
	overlay := filepath.Join(dir, "overlay.json")
	if err := os.WriteFile(overlay, list, 0o644); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-tags", "grpcnotrace", "-overlay", overlay, "-o", program, ".")
	build.Dir = node.Repo()
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build nodectl: %v\n%s", err, out)
	}
}

// Clock is the wall clock of the programs that are started with its Env.
type Clock struct {
	file  string
	ahead *int64
}

// New returns a clock without an offset.
func New(t testing.TB) *Clock {
	t.Helper()
	c := &Clock{file: filepath.Join(t.TempDir(), "clock")}
	f, err := os.Create(c.file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(8); err != nil {
		t.Fatal(err)
	}
	page, err := unix.Mmap(int(f.Fd()), 0, 8, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Munmap(page); err != nil {
			t.Error(err)
		}
	})
	c.ahead = (*int64)(unsafe.Pointer(&page[0]))
	return c
}

// Env is a variable for the program's environment.
func (c *Clock) Env() string { return variable + "=" + c.file }

// Set sets the clock ahead of the machine's, by whole seconds; a negative value sets it
// behind.
func (c *Clock) Set(ahead time.Duration) { atomic.StoreInt64(c.ahead, int64(ahead/time.Second)) }
