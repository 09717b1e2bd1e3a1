package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// labelled is a manifest with a label; changing that restarts nothing.
func labelled(text, value string) string {
	return strings.Replace(text, "metadata: {", "metadata: {labels: {edit: "+value+"}, annotations: {edit: "+value+"}, ", 1)
}

// TestEdit_ImageAndBack: the same for an image, here a missing one: the running container
// goes on without it, and reverting the edit restarts nothing.
//
// Shows: C-1.33
func TestEdit_ImageAndBack(t *testing.T) {
	s := parallelStage(t)
	two := manifest("web", []string{container("main", "forever"), container("side", "forever")})
	s.write("web.yaml", two)
	a := s.serve()
	was := s.awaitRunning("web", "main", "side")
	s.awaitReady("web", true)
	s.write("web.yaml", strings.Replace(two, "nodectl.dev/test/stamp:1", "127.0.0.1:1/away:1", 1))
	a.await("Step failed", "pull-image", "ErrImagePull")
	s.untouched("web", was)
	s.write("web.yaml", strings.Replace(two, "forever", "forever, again", 1))
	a.await("Restarting container", "restart_count=1")
	now := s.awaitRunning("web", "main", "side")
	if now["side"] != was["side"] {
		t.Errorf("side was %+v, is %+v", was["side"], now["side"])
	}
	s.awaitReady("web", true)
}

// TestEdit_SandboxReplacesPod: an edit that needs a new sandbox replaces the pod. Every old
// container has exited, with its grace period, before a new one starts, and the new instance
// starts with an empty emptyDir.
//
// Shows: C-1.16.17
func TestEdit_SandboxReplacesPod(t *testing.T) {
	s := parallelStage(t)
	mount := "volumeMounts: [{name: d, mountPath: /d}, {name: x, mountPath: /x}]"
	text := manifest("web", []string{
		container("main", "append, /d/lives, cat, /d/lives, append, /x/main, forever", mount),
		container("side", "ignore, print, armed, forever"),
	}, "volumes: [{name: d, emptyDir: {}}, {name: x, hostPath: {path: "+s.scratch+"}}]")
	s.write("web.yaml", text)
	s.serve()
	was := s.awaitRunning("web", "main", "side")
	s.awaitReady("web", true)
	s.awaitLog("web", "side", 0, "armed")
	box := s.sandbox("web").Id
	s.write("web.yaml", strings.Replace(text, "spec:\n", "spec:\n  hostname: another\n", 1))
	s.eventually(func() error {
		now, err := s.runningNow("web", "main", "side")
		if err == nil && now["main"].id == was["main"].id {
			err = fmt.Errorf("the old pod still runs")
		}
		return err
	})
	s.awaitReady("web", true)
	if b := s.sandbox("web"); b.Id == box {
		t.Error("the sandbox is the same")
	}
	for _, name := range []string{"main", "side"} {
		s.awaitEnded("web", name, 1)
	}
	var first, last time.Time // of the new instance, and of the old one
	for _, l := range lives.of(s.name) {
		if l.id == was["main"].id || l.id == was["side"].id {
			if l.to.After(last) {
				last = l.to
			}
			if l.name == "side" && l.exit != 137 {
				t.Errorf("side ended with %d", l.exit)
			}
		} else if first.IsZero() {
			first = l.from
		}
	}
	if !first.After(last) {
		t.Errorf("the new pod began at %s, the old one ended at %s", first.Format(clock), last.Format(clock))
	}
	s.awaitStamps("main", 2)
	found, _ := filepath.Glob(filepath.Join(s.root, "pods/*/*/volumes/*/d/lives"))
	if len(found) != 1 {
		t.Fatalf("emptyDirs on the node: %v", found)
	}
	if text, err := os.ReadFile(found[0]); err != nil || strings.Count(string(text), "\n") != 1 {
		t.Errorf("the new emptyDir has %q (%v)", text, err)
	}
	// Attempts and log file numbers only rise.
	for _, c := range s.containers("web") {
		if c.Metadata.Attempt == 0 {
			t.Errorf("container %s is attempt 0 again", c.Metadata.Name)
		}
	}
}
