package cmd

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/wait"
)

var update = flag.Bool("update", false, "rewrite the files that scripts compare with")

func TestMain(m *testing.M) {
	main := func() {
		optionalRuntimeTimeout = 20 * time.Second // a slow machine may need more than two
		completionTime = 20 * time.Second
		os.Exit(Main())
	}
	testscript.Main(m, map[string]func(){"nodectl": main, "kubelet": main})
}

// TestScripts runs testdata/*.txtar: the specification of the command line.
// Beside testscript's own commands there are:
//
//	exits CODE PROGRAM [ARG…]   the program ends with this exit code
//	until CODE[,CODE…] REGEXP PROGRAM [ARG…]   repeats a program that a slow machine may
//	                            disturb, until it prints a matching line and ends with the
//	                            first code; it fails at a code that is neither a time-out's
//	                            nor one of these
//	waitfor FILE REGEXP         until the file has a line that matches
//	rename OLD NEW              replaces a file by rename(2)
//	schema NAME FILE            every JSON document in FILE fits docs/schemas/NAME.json
//	serve DIR                   an HTTP server for DIR, at $URL; /gone answers 503, /locked/… needs a token
//	runtime                     an in-memory container runtime, at $RUNTIME
//	signal NAME FILE            to the process whose number is in FILE
//	screen FILE                 FILE fits on a terminal of 80x24, with a line to spare
func TestScripts(t *testing.T) {
	t.Parallel()
	schemas, err := filepath.Abs("../docs/schemas")
	if err != nil {
		t.Fatal(err)
	}
	examples, err := filepath.Abs("../examples")
	if err != nil {
		t.Fatal(err)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		UpdateScripts:       *update,
		Deadline:            time.Now().Add(40 * time.Minute), // of all scripts together; waitfor has its own
		Setup: func(e *testscript.Env) error {
			e.Setenv("NODECTL_NODE_NAME", "n1")
			e.Setenv("NODECTL_ROOT_DIR", filepath.Join(e.WorkDir, "root"))
			e.Setenv("NODECTL_CONFIG", "")
			e.Setenv("TZ", "UTC")
			e.Setenv("LIMIT", wait.Limit.String()) // of a --timeout that is only a safety net
			e.Setenv("BAD", "me\x1b[31mrge")
			e.Setenv("SCHEMAS", schemas)
			e.Setenv("EXAMPLES", examples)
			e.Setenv("GOGC", "400") // hundreds of short processes, each with one collection at its start
			// Under -race, every nodectl would end a second late, and begin with thousands of page faults.
			e.Setenv("GORACE", "atexit_sleep_ms=0 no_huge_pages_for_shadow=0")
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits":   scriptExits,
			"until":   scriptUntil,
			"waitfor": scriptWaitFor,
			"rename":  scriptRename,
			"schema":  scriptSchema,
			"serve":   scriptServe,
			"runtime": scriptRuntime,
			"screen":  scriptScreen,
			"signal":  scriptSignal,
		},
	})
}

func scriptExits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE PROGRAM [ARG…]")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	if code := scriptCode(ts, args[1:]); code != want {
		ts.Fatalf("exit code %d, want %d", code, want)
	}
}

// scriptCode runs a program and returns its exit code.
func scriptCode(ts *testscript.TestScript, args []string) int {
	err := ts.Exec(args[0], args[1:]...)
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	ts.Check(err)
	return 0
}

func scriptUntil(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 3 {
		ts.Fatalf("usage: until CODE[,CODE…] REGEXP PROGRAM [ARG…]")
	}
	var codes []int
	for text := range strings.SplitSeq(args[0], ",") {
		code, err := strconv.Atoi(text)
		ts.Check(err)
		codes = append(codes, code)
	}
	want := codes[0]
	re := regexp.MustCompile("(?m)" + args[1])
	ts.Check(wait.Try(func() error {
		code := scriptCode(ts, args[2:])
		text := ts.ReadFile("stdout") + ts.ReadFile("stderr")
		if code == want && re.MatchString(text) {
			return nil
		}
		err := fmt.Errorf("exit code %d, want %d and a line that matches %s: %s", code, want, args[1], text)
		if code != exitTimeout && !slices.Contains(codes, code) {
			ts.Fatalf("%v", err)
		}
		return err
	}))
}

func scriptWaitFor(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waitfor FILE REGEXP")
	}
	re := regexp.MustCompile("(?m)" + args[1])
	ts.Check(wait.Try(func() error {
		data, _ := os.ReadFile(ts.MkAbs(args[0]))
		if re.Match(data) {
			return nil
		}
		return fmt.Errorf("%s has no line that matches %s:\n%s", args[0], args[1], data)
	}))
}

func scriptRename(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: rename OLD NEW")
	}
	ts.Check(os.Rename(ts.MkAbs(args[0]), ts.MkAbs(args[1])))
}

func scriptSchema(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: schema NAME FILE")
	}
	problems, n := checkSchema(filepath.Join(ts.Getenv("SCHEMAS"), args[0]+".json"), ts.ReadFile(args[1]))
	if len(problems) > 0 {
		ts.Fatalf("%s:\n%s", args[0], strings.Join(problems, "\n"))
	}
	if n == 0 {
		ts.Fatalf("%s holds no document", args[1])
	}
}

func scriptServe(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: serve DIR")
	}
	dir := ts.MkAbs(args[0])
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/gone" {
			http.Error(w, "try later", http.StatusServiceUnavailable)
			return
		}
		if strings.HasPrefix(r.URL.Path, "/locked/") && r.Header.Get("Authorization") != "Bearer sesame" {
			http.Error(w, "token missing", http.StatusForbidden)
			return
		}
		data, err := os.ReadFile(filepath.Join(dir, filepath.Base(r.URL.Path)))
		if err != nil {
			http.NotFound(w, r)
			return
		}
		_, _ = w.Write(data)
	}))
	ts.Defer(server.Close)
	ts.Setenv("URL", server.URL)
}

func scriptSignal(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: signal NAME FILE")
	}
	pid, err := strconv.Atoi(strings.TrimSpace(ts.ReadFile(args[1])))
	ts.Check(err)
	s := unix.SignalNum("SIG" + args[0])
	if s == 0 || pid < 2 {
		ts.Fatalf("no signal %s or no process %d", args[0], pid)
	}
	ts.Check(unix.Kill(pid, s))
}

func scriptScreen(ts *testscript.TestScript, neg bool, args []string) {
	lines := strings.Split(strings.TrimSuffix(ts.ReadFile(args[0]), "\n"), "\n")
	if len(lines) > 23 {
		ts.Fatalf("%d lines", len(lines))
	}
	for _, l := range lines {
		if len([]rune(l)) > 80 {
			ts.Fatalf("%d columns: %s", len([]rune(l)), l)
		}
	}
}
