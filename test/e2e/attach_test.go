package e2e

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/nodectl/nodectl/test/wait"
)

// line is one of watch -o json.
type line struct {
	Seq      int
	Op       string
	Source   string
	Location string
	Dropped  int
	Problem  problem
	Ended    bool
	Pods     []struct {
		Name    string
		Fields  []struct{ Path, Old, New string }
		Restart struct {
			Pod        bool
			Containers []string
		}
	}
}

// reader is a running watch --attach.
type reader struct {
	*stage
	cmd  *exec.Cmd
	wait sync.WaitGroup
	done chan struct{} // capacity 0; closed at its end
	mu   sync.Mutex
	all  []line
	bad  []string // lines that cannot be parsed
}

// attach follows the running agent until the test ends.
func (s *stage) attach(args ...string) *reader {
	s.Helper()
	r := &reader{stage: s, cmd: s.command(append([]string{"watch", "--attach", "-o", "json"}, args...)...), done: make(chan struct{})}
	out, err := r.cmd.StdoutPipe()
	s.must(err)
	s.must(r.cmd.Start())
	r.wait.Go(func() {
		r.listen(out)
		_ = r.cmd.Wait() // the caller checks its exit code
		close(r.done)
	})
	s.Cleanup(func() {
		_ = r.cmd.Process.Signal(syscall.SIGCONT)
		_ = r.cmd.Process.Kill()
		r.wait.Wait()
		for _, b := range r.bad {
			s.Errorf("no line of watch: %q", b)
		}
		for i, l := range r.all {
			if l.Seq != r.all[0].Seq+i {
				s.Errorf("line %d of watch has seq %d, the first one %d", i, l.Seq, r.all[0].Seq)
			}
		}
	})
	return r
}

func (r *reader) listen(out io.Reader) {
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var l line
		err := json.Unmarshal(lines.Bytes(), &l)
		r.mu.Lock()
		if err != nil {
			r.bad = append(r.bad, lines.Text())
		} else {
			r.all = append(r.all, l)
		}
		r.mu.Unlock()
	}
}

// await returns the first line that ok accepts.
func (r *reader) await(what string, ok func(line) bool) line {
	r.Helper()
	var found line
	r.eventually(func() error {
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, l := range r.all {
			if ok(l) {
				found = l
				return nil
			}
		}
		return fmt.Errorf("watch --attach did not tell of %s; its lines: %+v", what, r.all)
	})
	return found
}

// of accepts lines of one operation on one pod.
func (r *reader) of(op, name string) func(line) bool {
	return func(l line) bool { return l.Op == op && len(l.Pods) == 1 && l.Pods[0].Name == r.full(name) }
}

// TestAttach_FollowsTheAgent: watch --attach shows the agent's pods and then each change with
// its consequence, including errors of sources. It ends when the agent does. Without an agent
// it reports that, as get sources does.
func TestAttach_FollowsTheAgent(t *testing.T) {
	s := parallelStage(t)
	for _, args := range [][]string{{"watch", "--attach"}, {"get", "sources"}} {
		if r := s.run(args...); r.code != 1 || !strings.Contains(r.err, "no agent answers at "+s.root) || !strings.Contains(r.err, "hint: ") {
			t.Errorf("%v without an agent: %d\n%s", args, r.code, r.err)
		}
	}
	a := s.serve()
	kept := s.keep()
	r := s.attach()
	r.await("keep", r.of("ADD", "keep"))
	s.write("keep.yaml", labelled(simple("keep"), "one"))
	r.await("its label", r.of("UPDATE", "keep"))
	s.untouched("keep", kept)
	s.write("web.yaml", simple("web"))
	r.await("web", r.of("ADD", "web"))
	s.awaitRunning("web", "main")
	s.write("web.yaml", strings.Replace(simple("web"), "forever", "print, edited, forever", 1))
	if l := r.await("its edit", r.of("UPDATE", "web")); len(l.Pods[0].Restart.Containers) != 1 || len(l.Pods[0].Fields) == 0 || l.Source != "file" || l.Location != s.manifests {
		t.Errorf("the edit: %+v", l)
	}
	s.write("web.yaml", "kind: [")
	r.await("a fault", func(l line) bool {
		return l.Op == "REJECT" && strings.HasSuffix(l.Problem.File, "web.yaml") && !l.Ended
	})
	s.remove("web.yaml")
	r.await("the end of the fault", func(l line) bool { return l.Op == "REJECT" && l.Ended })
	r.await("its end", r.of("REMOVE", "web"))
	s.awaitGone("web")
	s.must(os.Rename(s.manifests, s.manifests+".away"))
	r.await("an outage", func(l line) bool { return l.Op == "ERROR" && !l.Ended && l.Location == s.manifests })
	s.must(os.Rename(s.manifests+".away", s.manifests))
	r.await("the end of it", func(l line) bool { return l.Op == "ERROR" && l.Ended })

	text := s.run("watch", "--attach", "--max-events", "1")
	if text.code != 0 || !strings.Contains(text.out, s.full("keep")) || strings.Contains(text.out, "\x1b") {
		t.Errorf("as text: %d\n%s%s", text.code, text.out, text.err)
	}
	if info, err := os.Stat(filepath.Join(s.root, "nodectl.sock")); err != nil || info.Mode() != os.ModeSocket|0o600 {
		t.Errorf("the socket: %v, %v", info, err)
	}
	table := s.run("get", "sources")
	if l := strings.Split(strings.TrimSpace(table.out), "\n"); table.code != 0 || len(l) != 2 || !holds(l[0], []string{"SOURCE", "LOCATION", "PODS", "STATE", "LAST READ"}) ||
		!holds(l[1], []string{"file", s.manifests, " 1 ", "ok", "ago"}) {
		t.Errorf("get sources: %d\n%s%s", table.code, table.out, table.err)
	}
	a.leave()
	wait.Receive(t, "the end of watch --attach without its agent", r.done)
	if code := r.cmd.ProcessState.ExitCode(); code != 0 {
		t.Errorf("watch --attach ended with %d", code)
	}
	s.untouched("keep", kept)
}
