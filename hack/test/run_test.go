package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/suite"
	"github.com/nodectl/nodectl/test/wait"
)

// events are test2json's. A line is SECOND ACTION [TEST [OUTPUT]].
func events(lines string) string {
	var text strings.Builder
	for line := range strings.Lines(lines) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(f) < 2 {
			continue
		}
		f = append(f, "", "")
		if f[2] == "-" {
			f[2] = ""
		}
		if f[1] == "output" {
			f[3] += "\n"
		}
		fmt.Fprintf(&text, `{"Time":"2026-01-01T00:00:%sZ","Action":%q,"Test":%q,"Output":%q}`+"\n", f[0], f[1], f[2], f[3])
	}
	return text.String()
}

func TestRead_Events_BecomeTests(t *testing.T) {
	for name, c := range map[string]struct {
		events string
		tests  []test
		output []string // of the failures
		err    string
	}{
		"pass": {
			events: `00 run TestA
				00 output TestA === RUN
				02 output TestA --- PASS: TestA (2.00s)
				03 pass TestA
				03 output - PASS`,
			tests: []test{{"TestA", "pass", 2 * time.Second}},
		},
		"parallel subtests belong to the time of their test": {
			events: `00 run TestA
				00 run TestA/one
				00 pause TestA/one
				00 cont TestA/one
				09 output TestA/one --- PASS: TestA/one (9.00s)
				09 pass TestA/one
				09 output TestA --- PASS: TestA (0.00s)
				09 pass TestA`,
			tests: []test{{"TestA", "pass", 9 * time.Second}},
		},
		"a test that waits for its turn takes no time": {
			events: `00 run TestA
				01 pause TestA
				30 cont TestA
				33 output TestA --- PASS: TestA (4.00s)
				50 pass TestA`,
			tests: []test{{"TestA", "pass", 4 * time.Second}},
		},
		"subtest fails": {
			events: `00 run TestA
				00 run TestA/one
				00 output TestA/one want 1
				00 output TestA/one --- FAIL: TestA/one
				00 fail TestA/one
				00 output TestA --- FAIL: TestA
				00 fail TestA
				00 run TestB
				00 output TestB good
				00 pass TestB`,
			tests:  []test{{"TestA/one", "fail", 0}, {"TestA", "fail", 0}, {"TestB", "pass", 0}},
			output: []string{"want 1", "--- FAIL: TestA"},
		},
		"skips of both levels": {
			events: `00 run TestA
				00 run TestA/one
				00 skip TestA/one
				00 pass TestA
				00 run TestB
				00 skip TestB`,
			tests: []test{{"TestA/one", "skip", 0}, {"TestA", "pass", 0}, {"TestB", "skip", 0}},
		},
		"panic": {
			events: `00 run TestA
				00 pause TestA
				00 run TestB
				02 output TestB --- FAIL: TestB (0.00s)
				02 output TestB panic: boom`,
			tests:  []test{{"TestA", "fail", 0}, {"TestB", "fail", 2 * time.Second}},
			output: []string{"panic: boom"},
			err:    "2 tests did not end",
		},
		"time-out in a subtest": {
			events: `00 run TestA
				00 run TestA/one
				20 output TestA/one panic: test timed out after 20s`,
			tests:  []test{{"TestA", "fail", 20 * time.Second}, {"TestA/one", "fail", 20 * time.Second}},
			output: []string{"timed out"},
			err:    "2 tests did not end",
		},
		"no tests": {
			events: `00 output - testing: warning: no tests to run
				00 output - PASS`,
			output: []string{"no tests to run"},
		},
		"not an event": {events: "sh: 1: ip: not found", err: "read the events of test2json: "},
	} {
		t.Run(name, func(t *testing.T) {
			text := c.events
			if name != "not an event" {
				text = events(text)
			}
			var r result
			var log bytes.Buffer
			err := r.read(strings.NewReader(text), &log)
			if (err == nil) != (c.err == "") || err != nil && !strings.HasPrefix(err.Error(), c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if !slices.Equal(r.tests, c.tests) {
				t.Errorf("tests %v, want %v", r.tests, c.tests)
			}
			for _, want := range c.output {
				if !strings.Contains(strings.Join(r.output, ""), want) || !strings.Contains(log.String(), want) {
					t.Errorf("%q is not in the output and the log:\n%s\n%s", want, r.output, log.String())
				}
			}
			if strings.Contains(strings.Join(r.output, ""), "good") {
				t.Errorf("the output of a test that passed is shown:\n%s", r.output)
			}
		})
	}
}

// started is a test binary's job. Its command prints events itself.
func started(t *testing.T, script string) job {
	suite.NeedsRoot(t, "a test binary runs in namespaces of its own")
	dir := t.TempDir()
	tool := filepath.Join(dir, "test2json")
	if err := os.WriteFile(tool, []byte("#!/bin/sh\nexec cat\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	passed := filepath.Join(dir, "events")
	if err := os.WriteFile(passed, []byte(events("00 run TestA\n00 output TestA hello\n00 pass TestA\n")), 0o644); err != nil {
		t.Fatal(err)
	}
	return job{
		name: "example", dir: dir, log: filepath.Join(dir, "log"), limit: time.Hour, test2json: tool,
		command: []string{"sh", "-c", "cat events; " + script},
	}
}

func TestRun_TestsPass_AreRecordedAndLogged(t *testing.T) {
	j := started(t, "")
	r := j.run(t.Context())
	if r.err != nil || !slices.Equal(r.tests, []test{{"TestA", "pass", 0}}) {
		t.Errorf("tests %v: %v", r.tests, r.err)
	}
	if text, err := os.ReadFile(j.log); err != nil || string(text) != "hello\n" {
		t.Errorf("log %q: %v", text, err)
	}
}

func TestRun_NoTestRan_Fails(t *testing.T) {
	j := started(t, "")
	j.command = []string{"true"}
	if r := j.run(t.Context()); r.err == nil || r.err.Error() != "no test ran" {
		t.Errorf("error %v", r.err)
	}
}

func TestRun_ProcessExitsWithoutFailedTest_Fails(t *testing.T) {
	if r := started(t, "exit 3").run(t.Context()); r.err == nil || r.err.Error() != "exit status 3" {
		t.Errorf("error %v", r.err)
	}
}

// A daemon leaves the process group, and its child the network namespace, as containerd's
// shims and their containers do.
func TestRun_DaemonsOutliveTheTests_AreKilled(t *testing.T) {
	j := started(t, `
		mkfifo begun
		setsid sh -c 'unshare --net sh -c "echo \$\$ >inner; echo >begun; exec sleep 1000"; true' >/dev/null 2>&1 &
		echo $! >outer
		read line <begun`)
	if r := j.run(t.Context()); r.err != nil || r.notes != nil {
		t.Fatalf("notes %v: %v\n%s", r.notes, r.err, r.output)
	}
	for _, name := range []string{"outer", "inner"} {
		if pid := pidIn(t, filepath.Join(j.dir, name)); isAlive(pid) {
			t.Errorf("the %s process %d is alive", name, pid)
		}
	}
}

func TestRun_OutputHeldByADaemon_FailsAndEnds(t *testing.T) {
	j := started(t, "setsid sleep 1000 & echo $! >daemon")
	j.leave = 10 * time.Millisecond
	if r := j.run(t.Context()); r.err == nil || !strings.Contains(r.err.Error(), "outlived the tests") {
		t.Errorf("error %v", r.err)
	}
	if pid := pidIn(t, filepath.Join(j.dir, "daemon")); isAlive(pid) {
		t.Errorf("the process %d is alive", pid)
	}
}

func TestRun_JobExceedsItsLimit_Fails(t *testing.T) {
	dir := t.TempDir()
	j := job{name: "step", dir: dir, log: filepath.Join(dir, "log"), limit: 10 * time.Millisecond, command: []string{"sleep", "1000"}}
	if r := j.run(t.Context()); r.err == nil || r.err.Error() != "did not end within 10ms" {
		t.Errorf("error %v", r.err)
	}
}

// A step that ignores SIGTERM, and so do its children.
func TestRun_Interrupted_KillsTheProcessGroup(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	j := job{
		name: "step", dir: dir, log: filepath.Join(dir, "log"), limit: time.Hour, leave: 10 * time.Millisecond,
		command: []string{"sh", "-c", `trap "" TERM; sleep 1000 & echo $! >child; cat begun; wait`},
	}
	begun := filepath.Join(dir, "begun")
	if out, err := exec.Command("mkfifo", begun).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	go func() { // opening the pipe waits for its reader
		_ = os.WriteFile(begun, nil, 0)
		cancel()
	}()
	if r := j.run(ctx); !r.interrupted || r.err == nil || r.err.Error() != context.Canceled.Error() {
		t.Errorf("interrupted %t, error %v", r.interrupted, r.err)
	}
	pid := pidIn(t, filepath.Join(dir, "child"))
	wait.True(t, "the child is dead", func() bool { return !isAlive(pid) })
}

// TestStart_RunIsInterrupted_PageHasTheResultsSoFar: one step has ended, tests run, and another step waits.
// Tests that have ended count. The next run with -again runs the rest.
func TestStart_RunIsInterrupted_PageHasTheResultsSoFar(t *testing.T) {
	dir := t.TempDir()
	step := func(name string, command ...string) job {
		return job{name: name, dir: dir, log: filepath.Join(dir, name+".log"), limit: time.Hour, command: command}
	}
	tests := started(t, "echo begun >ready; sleep 1000")
	tests.name = "pkg/a"
	running := events("00 run TestA\n00 output TestA hello\n00 pass TestA\n00 run TestB\n")
	if err := os.WriteFile(filepath.Join(tests.dir, "events"), []byte(running), 0o644); err != nil {
		t.Fatal(err)
	}
	ready := filepath.Join(tests.dir, "ready")
	if out, err := exec.Command("mkfifo", ready).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() { // opening the pipe waits for its writer
		_, _ = os.ReadFile(ready)
		cancel()
	}()
	q := newQueue("first")
	q.jobs = []job{step("before", "true"), tests, step("after", "true")} // in this order
	q.closed = true
	s := summary{compiled: true}
	s.results, s.lanes = start(ctx, options{lanes: 1}, q)()
	if !s.begunAny() || s.failed() != 0 || s.count("pass") != 2 || s.interrupted() != 2 {
		t.Errorf("%d passed, %d failed, %d interrupted: %+v", s.count("pass"), s.failed(), s.interrupted(), s.results)
	}
	page := string(s.page("`0123`", nil))
	for _, want := range []string{
		"| result | 2 passed, 0 failed, 0 skipped; **interrupted**: 2 packages and steps did not end |\n", "| pkg/a `TestA` |",
		"\n- interrupted: after: context canceled\n- interrupted: pkg/a: context canceled\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("%q is not on the page:\n%s", want, page)
		}
	}
	if got, want := failuresOf(page), (failures{"after": nil, "pkg/a": nil}); !maps.EqualFunc(got, want, slices.Equal) {
		t.Errorf("run again: %v", got)
	}
}

// TestKillOnce_ProcessHasLeftItsNamespace_IsWaitedFor: an ending process has no namespaces before it is a
// zombie. Another process with its PID is left alone.
func TestKillOnce_ProcessHasLeftItsNamespace_IsWaitedFor(t *testing.T) {
	space, err := os.Stat("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("cat") // it waits for input
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := process{identity: identity{cmd.Process.Pid, 7}, handle: cmd.Process, name: "cat"}
	if left := killOnce([]process{p}, space, map[identity]bool{{p.pid, 6}: true}); left != nil {
		t.Errorf("another process was killed: %v", left)
	}
	if left := killOnce([]process{p}, space, map[identity]bool{p.identity: true}); len(left) != 1 {
		t.Errorf("processes that are waited for: %v", left)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("the process was not killed")
	}
}

func TestRun_StepPrintsWhatItCannotCheck_IsNoted(t *testing.T) {
	dir := t.TempDir()
	j := job{name: "step", dir: dir, log: filepath.Join(dir, "log"), limit: time.Hour, command: []string{"echo", "not checked: arm64"}}
	if r := j.run(t.Context()); r.err != nil || !slices.Equal(r.notes, []string{"not checked: arm64"}) {
		t.Errorf("notes %v: %v", r.notes, r.err)
	}
}

func pidIn(t *testing.T, file string) int {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return pid
}

// isAlive reports whether there is such a process, and it is no zombie.
func isAlive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !strings.Contains(string(text), ") Z ")
}

func TestLock_SecondRun_IsRefused(t *testing.T) {
	name := filepath.Join(t.TempDir(), "bin", ".lock-test")
	unlock, err := lock(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(name); err == nil || !strings.Contains(err.Error(), "another run") {
		t.Errorf("the second lock: %v", err)
	}
	unlock()
	again, err := lock(name)
	if err != nil {
		t.Fatal(err)
	}
	again()
}
