package e2e

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
)

// TestF83_CrashLoop: a container that ends as soon as it starts is started again
// after its back-off and not before; of all its lives the newest records alone
// are kept, with their logs, and its neighbours live on.
func TestF83_CrashLoop(t *testing.T) {
	s := parallelStage(t)
	s.write("loop.yaml", manifest("loop", []string{container("main", `append, /x/loop, print, words, exit, "3"`, scratchMount, secret), container("calm", "forever")},
		s.scratchVolume()))
	s.serve("--max-container-restart-period", "1s")
	calm := func() running {
		var r running
		s.eventually(func() error {
			for _, c := range s.containers("loop") {
				if p := s.node.Processes(c.Id); c.Metadata.Name == "calm" && c.State == cri.ContainerState_CONTAINER_RUNNING && len(p) == 1 {
					r = running{c.Id, c.Metadata.Attempt, p[0].Pid, p[0].Started}
					return nil
				}
			}
			return errors.New("the other container does not run")
		})
		return r
	}
	was := calm()
	const rounds = 6
	s.eventually(func() error {
		records := 0
		for _, c := range s.containers("loop") {
			if c.Metadata.Name == "main" {
				records++
			}
		}
		if records > 3 { // the last that ended, the one before until it is removed, the next
			t.Errorf("%d records of one container", records)
		}
		if n := s.stamps("loop"); n < rounds {
			return fmt.Errorf("it was started %d times", n)
		}
		return nil
	})
	all := s.ended("loop", "main")
	for i, l := range all {
		if int(l.attempt) != i || l.exit != 3 {
			t.Errorf("life %d is attempt %d and ended with %d", i, l.attempt, l.exit)
		}
		if i > 1 { // the first crash restarts at once
			if pause := l.from.Sub(all[i-1].to); pause < time.Second {
				t.Errorf("attempt %d began %s after the one before had ended", i, pause)
			}
		}
	}
	if now := calm(); now != was {
		t.Errorf("the other container was %+v, is %+v", was, now)
	}
	s.awaitStatus("loop", "in back-off", func(st v1.PodStatus) bool {
		return waiting(st, "main").Reason == "CrashLoopBackOff" && containerStatus(st, "main").LastTerminationState.Terminated != nil
	})
	s.invariants()
	s.eventually(func() error { // logs and their links are those of the records that are kept
		logs, _ := filepath.Glob(filepath.Join(s.logs, "*/main/*"))
		links, _ := filepath.Glob(filepath.Join(s.dir, "containers", s.full("loop")+"_default_main-*"))
		if len(logs) > 2 || len(links) > 2 || len(logs) == 0 {
			return fmt.Errorf("logs %v, links %v", logs, links)
		}
		return nil
	})
	s.remove("loop.yaml")
	s.awaitGone("loop")
	s.nothingLeft()
}

// TestF84_RotationLosesNoLine: logs that grow while they are rotated keep every
// line once, in order, over all their files; a log that somebody takes away is
// no trouble to anybody, and neither is one that is a link to elsewhere.
func TestF84_RotationLosesNoLine(t *testing.T) {
	s := parallelStage(t)
	const lines = 2200 // logs are looked at every ten seconds
	s.write("chatty.yaml", manifest("chatty", []string{
		container("main", fmt.Sprintf("count, %q, 10ms, print, done, forever", fmt.Sprint(lines)), secret),
		container("fast", fmt.Sprintf("count, %q, 0s, print, done, count, %q, 10ms, forever", "4000", fmt.Sprint(lines))),
	}))
	s.write("away.yaml", manifest("away", []string{container("main", fmt.Sprintf("count, %q, 10ms, forever", fmt.Sprint(lines)))}))
	s.write("link.yaml", manifest("link", []string{container("main", fmt.Sprintf("count, %q, 10ms, forever", fmt.Sprint(lines)))}))
	a := s.serve("--container-log-max-size", "8Ki", "--container-log-max-files", "20")
	was := s.awaitRunning("chatty", "main", "fast")
	s.awaitRunning("away", "main")
	s.awaitRunning("link", "main")
	dir := func(pod, container string) string {
		return filepath.Join(s.logs, "default_"+s.full(pod)+"_"+s.uid(pod), container)
	}
	if err := os.RemoveAll(dir("away", "main")); err != nil {
		t.Fatal(err)
	}
	precious := filepath.Join(s.scratch, "precious")
	link := filepath.Join(dir("link", "main"), "0.log")
	err := os.WriteFile(precious, bytes.Repeat([]byte("precious\n"), 4<<10), 0o600)
	if err == nil {
		err = errors.Join(os.Remove(link), os.Symlink(precious, link))
	}
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"main": lines, "fast": 4000} {
		// A rotation that goes on meanwhile is no loss: files change their names under
		// who reads them, and one is there twice while it is compressed.
		node.Eventually(t, 90*time.Second, func() error {
			files, err := filepath.Glob(filepath.Join(dir("chatty", name), "*"))
			if err != nil {
				return err
			}
			numbers, done, err := numbersOf(files)
			switch {
			case err != nil:
				return fmt.Errorf("container %s: %w", name, err)
			case !done:
				return fmt.Errorf("container %s still writes, or its last line is lost", name)
			case len(files) < 3:
				return fmt.Errorf("container %s: files %v, want rotated ones", name, files)
			case len(numbers) < want:
				return fmt.Errorf("container %s: %d lines, want %d", name, len(numbers), want)
			}
			for i, n := range numbers[:want] {
				if n != i+1 {
					return fmt.Errorf("container %s: line %d is in place %d", name, n, i+1)
				}
			}
			return nil
		})
	}
	s.untouched("chatty", was)
	for _, pod := range []string{"away", "link"} {
		if c := s.containers(pod); len(c) != 1 || c[0].State != cri.ContainerState_CONTAINER_RUNNING {
			t.Errorf("pod %s: %v", pod, c)
		}
	}
	if text, err := os.ReadFile(precious); err != nil || len(text) != 4<<10*len("precious\n") {
		t.Errorf("what the link leads to has %d bytes: %v", len(text), err)
	}
	if said := a.linesWith("level=WARN", s.full("away")); len(said) > 0 {
		t.Errorf("of a log that is not there: %v", said)
	}
	s.invariants()
	for _, f := range s.files() {
		s.remove(f)
	}
	for _, pod := range []string{"chatty", "away", "link"} {
		s.awaitGone(pod)
	}
	s.nothingLeft()
}

// counted is a line of the verb count, in a container's log.
var counted = regexp.MustCompile(`^\S+ stdout F line (\d+)\n$`)

// numbersOf returns the numbers of the lines in a container's logs, the oldest
// first: rotated ones by their time, then the one written to; and whether it was done.
func numbersOf(files []string) (all []int, done bool, err error) {
	slices.SortFunc(files, func(a, b string) int {
		if (len(a) < len(b)) != (len(b) < len(a)) && (strings.HasSuffix(a, ".log") || strings.HasSuffix(b, ".log")) {
			return len(b) - len(a) // the one written to has the shortest name
		}
		return strings.Compare(a, b)
	})
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil && strings.HasSuffix(f, ".gz") {
			var z *gzip.Reader
			if z, err = gzip.NewReader(bytes.NewReader(text)); err == nil {
				text, err = io.ReadAll(z)
			}
		}
		if err != nil {
			return nil, false, err
		}
		done = done || strings.Contains(string(text), "F done\n")
		for line := range strings.Lines(string(text)) {
			if m := counted.FindStringSubmatch(line); m != nil {
				n, _ := strconv.Atoi(m[1])
				all = append(all, n)
			}
		}
	}
	return all, done, nil
}
