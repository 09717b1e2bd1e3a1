//go:build full

package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestF49_RemovedAndAddedAgain: removing and adding a manifest faster than its pod can stop
// results in one pod of the last text; the old one has its grace period.
//
// Shows: F49
func TestF49_RemovedAndAddedAgain(t *testing.T) {
	s := parallelStage(t)
	text := func(i int) string {
		return manifest("web", []string{container("main", fmt.Sprintf("print, life-%d, forever", i))})
	}
	s.write("web.yaml", text(0))
	s.excuse("web") // an edit may end a container that has just started
	s.serve()
	s.awaitRunning("web", "main")
	const flips = 10
	for i := range flips {
		ended := len(s.ended("web", "main"))
		s.remove("web.yaml")
		if i%4 == 3 { // by then the old one has begun to stop
			s.awaitEnded("web", "main", ended+1)
		}
		s.write("web.yaml", text(i+1))
		if i%2 == 1 { // and by then the new one is there, at least partly
			s.awaitRunning("web", "main")
		}
	}
	s.eventually(func() error {
		now, err := s.runningNow("web", "main")
		if err != nil {
			return err
		}
		text, err := s.log("web", "main", now["main"].attempt)
		if err == nil && !strings.Contains(text, fmt.Sprintf("life-%d\n", flips)) {
			err = fmt.Errorf("it logged %q", text)
		}
		return err
	})
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	s.untouched("web", was)
	s.sandbox("web") // exactly one is left
	s.remove("web.yaml")
	s.awaitGone("web")
	s.nothingLeft()
}

// TestEdit_LabelsTouchNothing: an edit of labels and annotations is in the status, and the
// agent makes no mutating call for it, nor for a new file name, nor for a file that moves.
func TestEdit_LabelsTouchNothing(t *testing.T) {
	s := parallelStage(t)
	p := s.through(criproxy.Hooks{})
	text := simple("web")
	s.write("web.yaml", text)
	second := filepath.Join(s.dir, "second")
	if err := os.Mkdir(second, 0o700); err != nil {
		t.Fatal(err)
	}
	s.serve("-f", second)
	was := s.awaitRunning("web", "main")
	s.awaitReady("web", true)
	before := len(p.Mutations())
	for i, step := range []func(value string){
		func(v string) { s.write("web.yaml", labelled(text, v)) },
		func(v string) { // another name
			s.write("other.yaml", labelled(text, v))
			s.remove("web.yaml")
		},
		func(v string) { // as vim does: it moves the old file away and writes the new one
			path := filepath.Join(s.manifests, "other.yaml")
			if err := os.Rename(path, path+"~"); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(labelled(text, v)), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(path + "~"); err != nil {
				t.Fatal(err)
			}
		},
		func(v string) { // into another layer, which is read first or second
			if err := os.WriteFile(filepath.Join(second, "web.yaml"), []byte(labelled(text, v)), 0o600); err != nil {
				t.Fatal(err)
			}
			s.remove("other.yaml")
		},
		func(v string) { // as JSON
			json := fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"web","labels":{"edit":%q}},"spec":{"terminationGracePeriodSeconds":2,
				"containers":[{"name":"main","image":"nodectl.dev/test/stamp:1","imagePullPolicy":"IfNotPresent","args":["forever"]}]}}`, v)
			s.write("web.json", json)
			if err := os.Remove(filepath.Join(second, "web.yaml")); err != nil {
				t.Fatal(err)
			}
		},
	} {
		value := fmt.Sprint("v", i)
		step(value)
		s.awaitLabel("web", value)
		s.untouched("web", was)
	}
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
}

// TestEdit_JobRunsAgain: a job that has succeeded runs again only when it is edited (I4).
func TestEdit_JobRunsAgain(t *testing.T) {
	s := parallelStage(t)
	job := func(word string) string {
		return manifest("job", []string{container("main", "append, /x/job, print, "+word, scratchMount)}, "restartPolicy: OnFailure", s.scratchVolume())
	}
	s.write("job.yaml", job("one"))
	a := s.serve()
	s.awaitPhase("job", v1.PodSucceeded)
	s.write("job.yaml", labelled(job("one"), "a"))
	s.awaitLabel("job", "a")
	a.leave()
	a = s.serve()
	a.await("Status of every pod is known")
	s.awaitPhase("job", v1.PodSucceeded)
	if n := s.stamps("job"); n != 1 {
		t.Fatalf("the job ran %d times without an edit", n)
	}
	s.write("job.yaml", job("two"))
	s.awaitStamps("job", 2)
	st := s.awaitPhase("job", v1.PodSucceeded)
	if end := containerStatus(st, "main").State.Terminated; end == nil || end.ExitCode != 0 {
		t.Errorf("status: %s", describe(st))
	}
	s.remove("job.yaml")
	s.awaitGone("job")
	s.nothingLeft()
}

// awaitLabel returns when an edit by labelled is applied.
func (s *stage) awaitLabel(name, value string) {
	s.Helper()
	s.eventually(func() error {
		if p := s.status(name); p == nil || p.Labels["edit"] != value {
			return fmt.Errorf("pod %s does not have label edit=%s yet", name, value)
		}
		return nil
	})
}

// TestEdit_OneContainer: an edit of one container's command restarts that one, once, in the
// same sandbox. Adding or removing a container does not touch the others.
func TestEdit_OneContainer(t *testing.T) {
	s := parallelStage(t)
	two := []string{container("main", "print, one, forever"), container("side", "forever")}
	s.write("web.yaml", manifest("web", two))
	s.serve()
	was := s.awaitRunning("web", "main", "side")
	s.awaitReady("web", true)
	box := s.sandbox("web").Id

	two[0] = container("main", "print, two, forever")
	s.write("web.yaml", manifest("web", two))
	s.awaitLog("web", "main", 1, "two")
	now := s.awaitRunning("web", "main", "side")
	if now["side"] != was["side"] {
		t.Errorf("side was %+v, is %+v", was["side"], now["side"])
	}
	if now["main"].attempt != 1 || now["main"].id == was["main"].id {
		t.Errorf("main was %+v, is %+v", was["main"], now["main"])
	}
	if n := len(s.awaitEnded("web", "main", 1)); n != 1 {
		t.Errorf("main has ended %d times", n)
	}

	s.write("web.yaml", manifest("web", append(two, container("third", "forever"))))
	now = s.awaitRunning("web", "main", "side", "third")
	s.write("web.yaml", manifest("web", two))
	delete(now, "third")
	s.awaitRunning("web", "main", "side")
	s.untouched("web", now)
	if s.sandbox("web").Id != box {
		t.Error("the sandbox was replaced")
	}
	s.eventually(func() error { // of each container, the newest exited one stays
		if n := len(s.containers("web")); n > 3 {
			return fmt.Errorf("%d containers are listed", n)
		}
		return nil
	})
}
