// Package suite gives the tests of one package something that is expensive to start, as
// an API server: the first test that asks for it starts it, and Main ends it.
//
//	var server = suite.Once(func(t testing.TB) *cluster.Cluster { return cluster.Start(t) })
//
//	func TestMain(m *testing.M) { os.Exit(suite.Main(m)) }
//
// A program that uses the helpers of tests has a TB of its own.
//
// A test leaves shared objects unchanged, or does not run beside others: without t.Parallel it
// runs before those that have it.
package suite

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"
)

// parallel is how many tests run at the same time unless -parallel says so: tests that
// share a server wait for it most of their time, and those that start containers must not
// starve each other on two cores.
const parallel = "4"

// Main runs the tests and then the cleanups of the shared objects. It returns the exit code.
func Main(m *testing.M) int {
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", parallel); err != nil {
			panic(err) // package testing has another flag
		}
	}
	code := m.Run()
	if code != 0 {
		all.Fail()
	}
	all.End()
	if all.Failed() {
		return max(code, 1)
	}
	return code
}

// NeedsRoot skips a test that needs root's privileges, with the reason. make test runs as root and
// fails when a test is skipped.
func NeedsRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: " + what)
	}
}

// Once returns a function that calls start for its first caller, and returns the same
// value to each. If start fails, every caller fails with its error. The testing.TB that
// start gets ends with Main.
func Once[T any](start func(testing.TB) T) func(testing.TB) T {
	var once sync.Once
	var value T
	var failure error
	return func(t testing.TB) T {
		t.Helper()
		once.Do(func() { failure = Try(func() { value = start(all) }) })
		if failure != nil {
			t.Fatal(failure.Error())
		}
		return value
	}
}

// fatal is the panic by which Fatal ends what Try calls.
type fatal string

// Try calls f, and returns the message with which it ended itself by Fatal, or nil.
func Try(f func()) (err error) {
	defer func() {
		r := recover()
		if message, ok := r.(fatal); ok {
			err = errors.New(string(message))
		} else if r != nil {
			panic(r)
		}
	}()
	f()
	return nil
}

// all is the testing.TB of the shared objects.
var all = New(context.Background(), "")

// A TB is a testing.TB outside of a test. Methods that it does not have panic.
type TB struct {
	testing.TB

	ctx context.Context
	dir string // above its temporary directories

	mu       sync.Mutex // guards the fields below
	failed   bool
	cleanups []func()
}

// New returns a TB whose files go below dir. The caller ends it.
func New(ctx context.Context, dir string) *TB { return &TB{ctx: ctx, dir: dir} }

func (s *TB) Helper()                  {}
func (s *TB) Name() string             { return "suite" }
func (s *TB) Context() context.Context { return s.ctx }

func (s *TB) Cleanup(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cleanups = append(s.cleanups, f)
}

// End calls the cleanups, the last one first.
func (s *TB) End() {
	s.mu.Lock()
	cleanups := s.cleanups
	s.cleanups = nil
	s.mu.Unlock()
	for _, f := range slices.Backward(cleanups) {
		_ = Try(f) // it has been printed
	}
}

func (s *TB) Fail() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.failed = true
}

func (s *TB) Failed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.failed
}

func (s *TB) Log(args ...any)                 { fmt.Fprintln(os.Stderr, args...) }
func (s *TB) Logf(format string, args ...any) { s.Log(fmt.Sprintf(format, args...)) }
func (s *TB) Error(args ...any)               { s.Fail(); s.Log(args...) }
func (s *TB) Errorf(f string, args ...any)    { s.Error(fmt.Sprintf(f, args...)) }
func (s *TB) Fatalf(f string, args ...any)    { s.Fatal(fmt.Sprintf(f, args...)) }

func (s *TB) Fatal(args ...any) {
	s.Error(args...)
	panic(fatal(fmt.Sprint(args...)))
}

// TempDir returns a new directory, which is removed by Main.
func (s *TB) TempDir() string {
	dir, err := os.MkdirTemp(s.dir, "nodectl-suite-")
	if err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			s.Error(err)
		}
	})
	return dir
}
