package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// A job is one test binary, or one step that is a program of its own.
type job struct {
	name    string
	dir     string
	command []string
	env     []string      // beside that of this process
	log     string        // file that receives its output while it runs
	limit   time.Duration // the job fails when it takes longer
	// test2json is the program that turns the output of a test binary into events. A test
	// binary runs in namespaces of its own. Empty for a step.
	test2json string
	leave     time.Duration // if not zero, instead of leaveTime
}

// A result is the result of a job.
type result struct {
	name   string
	log    string // file with all output
	took   time.Duration
	cpu    time.Duration // of its processes, but for those that outlived their parents
	err    error
	tests  []test   // top-level tests, and subtests that failed or were skipped
	output []string // of each failure
	notes  []string
	// interrupted means that the end of the run stopped the job. Only its completed tests count.
	interrupted bool
	unended     int // tests that have begun and not ended: the last ones of tests
}

// A test is one test function, or a subtest.
type test struct {
	name   string
	action string        // pass, fail or skip
	took   time.Duration // with its parallel subtests, without waiting for its turn
}

func (t test) isSubtest() bool { return strings.Contains(t.name, "/") }

// A lane runs one job after the other.
type lane struct {
	last string        // name of its last job
	took time.Duration // until that ended
}

// A queue gives the lanes their jobs, the longest queued one first.
type queue struct {
	tier string

	mu     sync.Mutex
	more   sync.Cond // on mu: jobs were added, or the queue was closed
	jobs   []job
	closed bool
}

func newQueue(tier string) *queue {
	q := &queue{tier: tier}
	q.more.L = &q.mu
	return q
}

func (q *queue) add(jobs ...job) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.jobs = append(q.jobs, jobs...)
	order(q.tier, q.jobs)
	q.more.Broadcast()
}

// close marks the queue as complete: no job follows.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.more.Broadcast()
}

// next waits for a job; false: there is none and none follows.
func (q *queue) next() (job, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.jobs) == 0 && !q.closed {
		q.more.Wait()
	}
	if len(q.jobs) == 0 {
		return job{}, false
	}
	j := q.jobs[0]
	q.jobs = q.jobs[1:]
	return j, true
}

// start runs the jobs of the queue in lanes, and prints a line for each as it ends. wait returns
// when the queue is closed and empty.
func start(ctx context.Context, o options, q *queue) (wait func() ([]result, []lane)) {
	var (
		mu      sync.Mutex
		results []result
		all     = make([]lane, o.lanes)
		lanes   sync.WaitGroup
	)
	begun := time.Now()
	for i := range all {
		lanes.Go(func() {
			for j, ok := q.next(); ok; j, ok = q.next() {
				r := j.run(ctx)
				mu.Lock()
				all[i] = lane{last: j.name, took: time.Since(begun)}
				results = append(results, r)
				r.print()
				mu.Unlock()
			}
		})
	}
	return func() ([]result, []lane) {
		lanes.Wait()
		return results, all
	}
}

// inside waits for the end of file descriptor 3, and prepares the new namespaces for tests: a
// loopback device, an address for the node, a route for the addresses of a cluster's services
// (kube-proxy replaces them only after the kernel has found a route) and no other, an empty /run,
// and a /sys that shows the namespace's own network devices, with the cgroups of the machine.
const inside = `read -r begin <&3; exec 3<&-; ip link set lo up && ip link add eth0 type veth peer name eth0-peer &&
	ip address add 198.19.0.1/24 dev eth0 && ip link set eth0 up && ip link set eth0-peer up &&
	ip route add 10.96.0.0/24 dev eth0 && mount -t tmpfs -o mode=755 tmpfs /run &&
	mkdir /run/cgroup && mount --move /sys/fs/cgroup /run/cgroup && umount --lazy /sys && mount -t sysfs sysfs /sys &&
	mount --move /run/cgroup /sys/fs/cgroup && rmdir /run/cgroup && exec "$0" "$@"`

// leaveTime is how long the processes of a job get after SIGTERM, and how long a process
// that outlives the job's own may hold the job's output.
const leaveTime = 30 * time.Second

// run runs the job until it ends, exceeds its limit, or ctx ends. A job is a background
// process group: the terminal's SIGINT does not reach it, the end of ctx sends it SIGTERM.
// SIGTERM ends a Go test binary without its cleanups, and a daemon such as containerd has
// left the group. So run kills all processes that the job has left. Their namespaces end with
// them, and only files and empty cgroups can remain.
func (j job) run(ctx context.Context) result {
	begun, r := time.Now(), result{name: j.name, log: j.log}
	whole := ctx
	if whole.Err() != nil {
		r.err, r.interrupted = whole.Err(), true
		return r
	}
	ctx, cancel := context.WithTimeoutCause(ctx, j.limit, fmt.Errorf("did not end within %s", j.limit))
	defer cancel()
	file, err := os.Create(j.log)
	if err != nil {
		r.err = err
		return r
	}
	defer file.Close()
	args, attr := j.command, &syscall.SysProcAttr{Setpgid: true}
	if j.test2json != "" {
		args = append([]string{"sh", "-c", inside}, args...)
		attr.Unshareflags = syscall.CLONE_NEWNS | syscall.CLONE_NEWNET // its mounts become private, too
	}
	cmd := exec.CommandContext(ctx, args[0], args[1:]...)
	cmd.Dir, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = j.dir, attr, file, file
	cmd.Env = append(cmd.Environ(), j.env...)
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = cmp.Or(j.leave, leaveTime)
	finish := func() error { return nil }
	if j.test2json != "" {
		in, wait, err := r.convert(j, file)
		if err != nil {
			r.err = fmt.Errorf("start test2json: %w", err)
			return r
		}
		cmd.Stdout, cmd.Stderr, finish = in, in, wait
	}
	r.err = j.wait(cmd, &r)
	if err := finish(); r.err == nil {
		r.err = err
	}
	if cause := context.Cause(ctx); cause != nil && r.err != nil {
		r.err = cause
		if whole.Err() != nil {
			r.interrupt()
		}
	}
	r.took = time.Since(begun)
	if p := cmd.ProcessState; p != nil {
		r.cpu = p.UserTime() + p.SystemTime()
	}
	if j.test2json != "" {
		if r.err == nil && len(r.tests) == 0 {
			r.err = errors.New("no test ran")
		}
		return r
	}
	if r.interrupted {
		return r
	}
	text, _ := os.ReadFile(j.log)
	if r.err != nil {
		r.output = []string{string(text)}
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "not checked: ") {
			r.notes = append(r.notes, strings.TrimSpace(line))
		}
	}
	return r
}

// interrupt marks the result of a job that the end of the run has stopped. Tests that have not ended
// have no result.
func (r *result) interrupt() {
	r.interrupted = true
	r.tests = r.tests[:len(r.tests)-r.unended]
	failed := slices.ContainsFunc(r.tests, func(t test) bool { return t.action == "fail" })
	if !failed {
		r.output = nil
	}
}

// wait runs the command and kills the processes that it leaves: its process group and, for a test
// binary, everything in its network namespace.
func (j job) wait(cmd *exec.Cmd, r *result) error {
	space, err := j.start(cmd)
	if err != nil {
		return err
	}
	if space != nil {
		defer space.Close()
	}
	err = cmd.Wait()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = fmt.Errorf("a process that outlived the tests held their output: %w", err)
	}
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) // most groups are empty
	if space != nil {
		if left := killNamespace(space); left != nil {
			r.notes = append(r.notes, "processes survive SIGKILL: "+strings.Join(left, ", "))
		}
	}
	return err
}

// start starts the command. For a test binary it returns the network namespace, open, so that no other
// namespace gets its number. The test binary begins only after that: a process that has ended has no
// namespace. A process that was killed before has none either.
func (j job) start(cmd *exec.Cmd) (space *os.File, err error) {
	if j.test2json == "" {
		return nil, cmd.Start()
	}
	gate, opener, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer gate.Close()
	defer opener.Close()
	cmd.ExtraFiles = []*os.File{gate} // its descriptor 3
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	space, _ = os.Open(fmt.Sprintf("/proc/%d/ns/net", cmd.Process.Pid))
	return space, nil
}

// convert starts test2json, which has no part in the job's process group, and reads its
// events until finish is called.
func (r *result) convert(j job, log io.Writer) (in io.Writer, finish func() error, err error) {
	cmd := exec.Command(j.test2json, "-t", "-p", j.name)
	cmd.SysProcAttr, cmd.Stderr = &syscall.SysProcAttr{Setpgid: true}, os.Stderr
	pipe, err := cmd.StdinPipe()
	if err != nil {
		return nil, nil, err
	}
	events, err := cmd.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, nil, err
	}
	done := make(chan error, 1)
	go func() { done <- r.read(events, log) }()
	finish = func() error {
		_ = pipe.Close() // test2json has ended, or ends now
		return errors.Join(<-done, cmd.Wait())
	}
	// Not the pipe itself: a process that outlives the job would inherit it, and test2json
	// would not end before that process.
	return struct{ io.Writer }{pipe}, finish, nil
}

// A span is the time that a test has taken so far.
type span struct {
	begun, last time.Time
	pausedAt    time.Time // not zero: the test waits for its turn
	paused      time.Duration
}

func (s *span) took() time.Duration {
	if !s.pausedAt.IsZero() {
		return s.pausedAt.Sub(s.begun) - s.paused
	}
	return s.last.Sub(s.begun) - s.paused
}

// read takes the tests and the output of those that failed from test2json's events, and
// writes all output to the log as it comes. A test that begins and does not end has failed:
// after a panic, a time-out, or os.Exit.
func (r *result) read(events io.Reader, log io.Writer) error {
	output, spans := make(map[string]*strings.Builder), make(map[string]*span) // of top-level tests; of tests that have not ended
	var latest time.Time
	decoder := json.NewDecoder(events)
	var err error
	for {
		var e struct {
			Time                 time.Time
			Action, Test, Output string
		}
		if err = decoder.Decode(&e); err != nil {
			break
		}
		latest = e.Time
		top, _, sub := strings.Cut(e.Test, "/")
		s := spans[e.Test]
		if s == nil {
			s = &span{begun: e.Time, last: e.Time}
			if e.Test != "" {
				spans[e.Test] = s
			}
		}
		switch e.Action {
		case "output":
			_, _ = io.WriteString(log, e.Output) // a lost log costs no result
			// The event pass or fail waits for the next line of output. The line
			// "--- PASS" is the last output before it, and comes in time.
			s.last = e.Time
			if output[top] == nil {
				output[top] = new(strings.Builder)
			}
			output[top].WriteString(e.Output)
		case "pause":
			s.pausedAt = e.Time
		case "cont":
			s.paused += e.Time.Sub(s.pausedAt)
			s.pausedAt = time.Time{}
		case "pass", "fail", "skip":
			if e.Test == "" {
				continue
			}
			delete(spans, e.Test)
			if !sub || e.Action != "pass" {
				r.tests = append(r.tests, test{e.Test, e.Action, s.took()})
			}
			if !sub {
				if text := output[top]; text != nil && e.Action == "fail" {
					r.output = append(r.output, text.String())
				}
				delete(output, top)
			}
		}
	}
	r.unended = len(spans)
	for _, name := range slices.Sorted(maps.Keys(spans)) {
		s := spans[name]
		s.last = latest
		r.tests = append(r.tests, test{name, "fail", s.took()})
	}
	for _, top := range slices.Sorted(maps.Keys(output)) {
		r.output = append(r.output, output[top].String())
	}
	switch {
	case !errors.Is(err, io.EOF):
		_, _ = io.Copy(io.Discard, events) // test2json must not wait for a reader
		return fmt.Errorf("read the events of test2json: %w", err)
	case len(spans) > 0:
		return fmt.Errorf("%d tests did not end", len(spans))
	}
	return nil
}

// print prints the line of a job that has ended, and its failures.
func (r result) print() {
	word := "ok  "
	switch {
	case r.interrupted && r.took == 0: // it did not begin
		return
	case r.interrupted:
		word = "INTR"
	case r.err != nil:
		word = "FAIL"
	}
	fmt.Printf("%s  %-32s %s\n", word, r.name, round(r.took))
	if r.err != nil {
		fmt.Printf("%s\n%s: %v\n\n", strings.TrimRight(strings.Join(r.output, ""), "\n"), r.name, r.err)
	}
}
