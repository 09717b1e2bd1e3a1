//go:build full

package e2e

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/node"
)

// apiPod returns a pod as a scheduler would have bound it to this stage's node. Its name has
// the suffix of static pods, so that the stage's helpers find it.
func (s *stage) apiPod(name string, args ...string) *v1.Pod {
	no, grace := false, int64(2)
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: s.full(name)},
		Spec: v1.PodSpec{
			NodeName: s.name, AutomountServiceAccountToken: &no, TerminationGracePeriodSeconds: &grace,
			RestartPolicy: v1.RestartPolicyAlways,
			Containers:    []v1.Container{{Name: "main", Image: node.Stamp, Args: args, ImagePullPolicy: v1.PullIfNotPresent}},
		},
	}
}

// TestF70_F73_APIServer: a node with a real API server starts and stops the pods bound to it,
// and does no harm while the server is down, restored to an older state, or refuses the node.
//
// Shows: F70, F73, C-1.16.12
func TestF70_F73_APIServer(t *testing.T) {
	s := parallelStage(t)
	c := cluster.Start(t)
	admin := c.AdminKubeconfig(t)
	file := filepath.Join(s.scratch, "node.kubeconfig")
	let := func(text []byte, err error) {
		t.Helper()
		s.must(err, os.WriteFile(file+".new", text, 0o600), os.Rename(file+".new", file))
	}
	let(os.ReadFile(admin))
	a := s.serve("--kubeconfig", file)
	kept := s.keep() // a static pod beside the pods of the API server
	// another replaces the agent by a new one: an agent that has failed several times waits
	// long before its next request.
	another := func() {
		a.leave()
		a = s.serve("--kubeconfig", file)
		s.awaitOK("api")
	}
	create := func(name string, args ...string) map[string]running {
		s.Helper()
		c.CreatePod(s.T, s.apiPod(name, args...))
		return s.awaitRunning(name, "main")
	}
	web := create("web", "forever")
	s.awaitOK("api")

	s.scene("an edit of labels, and a deletion with its own grace", func() {
		c.PatchPod(s.T, "default", s.full("web"), `{"metadata":{"labels":{"edit":"one"}}}`)
		s.awaitLabel("web", "one")
		s.untouched("web", web)
		p := s.apiPod("slow", "ignore", "print", "armed", "forever")
		*p.Spec.TerminationGracePeriodSeconds = 300
		c.CreatePod(s.T, p)
		s.awaitRunning("slow", "main")
		s.awaitLog("slow", "main", 0, "armed")
		begin := time.Now()
		c.DeletePod(s.T, "default", s.full("slow"), 2)
		s.eventually(func() error {
			if len(s.ended("slow", "main")) == 0 {
				return errors.New("slow runs")
			}
			return nil
		})
		if end := s.ended("slow", "main")[0]; end.exit != 137 || end.to.Sub(begin) < 1900*time.Millisecond {
			s.Errorf("slow ended after %s with %d, want 137 after 2 s", end.to.Sub(begin), end.exit)
		}
		// The server still has it, with its deletionTimestamp: the agent does not start it
		// again.
		if is := c.GetPod(s.T, "default", s.full("slow")); is == nil || is.DeletionTimestamp == nil {
			s.Errorf("the server has %+v", is)
		}
		c.DeletePod(s.T, "default", s.full("slow"), 0)
		s.awaitGone("slow")
		if n := len(s.ended("slow", "main")); n != 1 {
			s.Errorf("slow was started %d times", n)
		}
	})
	s.scene("a deletion that shortens one that is under way", func() {
		p := s.apiPod("deaf", "ignore", "print", "armed", "forever")
		*p.Spec.TerminationGracePeriodSeconds = 300
		c.CreatePod(s.T, p)
		s.awaitRunning("deaf", "main")
		s.awaitLog("deaf", "main", 0, "armed")
		c.DeletePod(s.T, "default", s.full("deaf"), 300)
		s.awaitLog("deaf", "main", 0, "SIGTERM")
		again := time.Now()
		c.DeletePod(s.T, "default", s.full("deaf"), 1)
		s.eventually(func() error {
			if len(s.ended("deaf", "main")) == 0 {
				return errors.New("deaf runs")
			}
			return nil
		})
		if end := s.ended("deaf", "main")[0]; end.exit != 137 || end.to.Before(again) {
			s.Errorf("deaf ended at %s with %d, want 137 after %s", end.to.Format(clock), end.exit, again.Format(clock))
		}
		c.DeletePod(s.T, "default", s.full("deaf"), 0)
		s.awaitGone("deaf")
	})
	s.scene("F73 the same name again while the old one ends", func() {
		c.CreatePod(s.T, s.apiPod("twin", "ignore", "print", "armed", "forever"))
		old := s.awaitRunning("twin", "main")
		s.awaitLog("twin", "main", 0, "armed")
		c.DeletePod(s.T, "default", s.full("twin"), 0)
		is := c.CreatePod(s.T, s.apiPod("twin", "forever"))
		s.eventually(func() error {
			now, err := s.runningNow("twin", "main")
			if err == nil && now["main"].id == old["main"].id {
				err = errors.New("the old twin runs")
			}
			return err
		})
		s.eventually(func() error { // the old sandbox is removed later
			if uid := s.uid("twin"); uid != string(is.UID) {
				return fmt.Errorf("the sandbox is of %s, want %s", uid, is.UID)
			}
			return nil
		})
		if all := s.awaitEnded("twin", "main", 1); len(all) != 1 || all[0].id != old["main"].id {
			s.Errorf("lives that are over: %+v", all)
		}
		c.DeletePod(s.T, "default", s.full("twin"), 0)
		s.awaitGone("twin")
	})
	s.scene("F70 away for a while", func() {
		gone := create("gone", "forever")
		begin := time.Now()
		c.APIServer.Kill(s.T)
		s.awaitStale("api", 2, begin, "refused")
		a.await("Failed to read source", "api:")
		s.untouched("gone", gone)
		s.write("other.yaml", simple("other")) // files are still followed
		s.awaitRunning("other", "main")
		s.remove("other.yaml")
		s.awaitGone("other")
		c.APIServer.Start(s.T)
		c.DeletePod(s.T, "default", s.full("gone"), 0)
		create("came", "forever")
		s.awaitGone("gone")
		s.awaitOK("api")
		a.await("Source can be read again", "api:")
		s.untouched("web", web)
		s.untouched("keep", kept)
		c.DeletePod(s.T, "default", s.full("came"), 0)
		s.awaitGone("came")
	})
	another()
	s.scene("F71 set back to an older state", func() {
		before := c.Snapshot(s.T)
		c.CreatePod(s.T, s.apiPod("young", "ignore", "print", "armed", "forever"))
		young := s.awaitRunning("young", "main")
		s.awaitLog("young", "main", 0, "armed")
		for i := range 20 { // a starting server writes, too: it must not reach its former revision
			c.PatchPod(s.T, "default", s.full("young"), fmt.Sprintf(`{"metadata":{"labels":{"edit":"e%d"}}}`, i))
		}
		begin := time.Now()
		c.Restore(s.T, before)
		s.awaitStale("api", 2, begin, "older", "second list")
		s.untouched("young", young)
		s.untouched("web", web)
		s.awaitGone("young") // a second list has confirmed it
		if all := s.awaitEnded("young", "main", 1); len(all) != 1 || all[0].to.Sub(begin) < 2*time.Second {
			s.Errorf("young was not kept until a second list: %+v, restored from %s", all, begin.Format(clock))
		}
		s.awaitOK("api")
		s.untouched("web", web)
	})
	another()
	s.scene("F72 let in no more, then again", func() {
		good, err := os.ReadFile(admin)
		s.must(err)
		config, err := os.ReadFile(s.closedKubeconfig())
		s.must(err)
		bad := strings.Replace(string(config), "server: \"https://127.0.0.1:1\"", fmt.Sprintf("server: %q, certificate-authority: %q", c.URL, c.Authority.File), 1)
		begin := time.Now()
		let([]byte(bad), nil)
		c.APIServer.Restart(s.T) // ends the watch that was authorized before
		s.awaitStale("api", 1, begin, fmt.Sprint(http.StatusUnauthorized))
		s.untouched("web", web)
		s.untouched("keep", kept)
		c.DeletePod(s.T, "default", s.full("web"), 0)
		let(good, nil)
		s.awaitGone("web")
		s.awaitOK("api")
		s.untouched("keep", kept)
	})
}

// TestRestore_APIPodsWaitForTheirServer: a running pod from an API server is kept. One that
// does not run is started only after the server has sent it, unless the agent has
// --offline-start=api.
//
// Shows: C-1.3.8
func TestRestore_APIPodsWaitForTheirServer(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	c := cluster.Start(t)
	flags := []string{"--kubeconfig", c.AdminKubeconfig(t)}
	a := s.serve(flags...)
	s.keep()
	c.CreatePod(t, s.apiPod("runs", "forever"))
	c.CreatePod(t, s.apiPod("lost", "forever"))
	s.awaitReady("runs", true)
	s.awaitReady("lost", true)
	runs := s.awaitRunning("runs", "main")
	s.awaitSet("runs")
	s.awaitSet("lost")
	for _, name := range []string{"keep", "lost"} { // else their attempts start again
		s.awaitRecorded(name, "main")
	}
	a.kill()
	c.APIServer.Pause(t)
	for _, b := range s.sandboxes() {
		if b.Metadata.Name != s.full("runs") {
			_, stop := s.node.Runtime.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: b.Id})
			_, remove := s.node.Runtime.RemovePodSandbox(t.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: b.Id})
			s.must(stop, remove)
		}
	}
	begin := time.Now()
	a = s.serve(flags...)
	a.await("Not starting pod until its source answers", s.full("lost"))
	kept := s.awaitRunning("keep", "main") // of a file: at once
	it := s.awaitSource("api", "stands on its last good set", func(it sourceState) bool { return it.Restored && it.State == "restored" && it.Pods == 2 })
	s.since(it, begin)
	if table := s.run("get", "sources"); !strings.Contains(table.out, "has not answered since "+atClock(it.Since)) {
		t.Errorf("get sources:\n%s", table.out)
	}
	s.quiet(s.front)
	if n := len(s.containers("lost")); n != 0 {
		t.Errorf("lost has %d containers without an answer of its server", n)
	}
	s.untouched("runs", runs)
	a.leave()
	c.APIServer.Kill(t)

	begin = time.Now()
	s.serve(append(flags, "--offline-start", "api")...)
	s.awaitStale("api", 2, begin, "refused")
	lost := s.awaitRunning("lost", "main")
	s.untouched("runs", runs)
	s.untouched("keep", kept)
	c.APIServer.Start(t)
	s.awaitOK("api")
	s.untouched("lost", lost)
	s.untouched("runs", runs)
	// A restored pod also stops with the grace period of its deletion.
	c.DeletePod(t, "default", s.full("lost"), 1)
	s.eventually(func() error {
		if n := len(s.ended("lost", "main")); n != 2 {
			return fmt.Errorf("lost has ended %d times", n)
		}
		return nil
	})
	c.DeletePod(t, "default", s.full("lost"), 0)
	s.awaitGone("lost")
	s.untouched("runs", runs)
	s.untouched("keep", kept)
}

// TestF50_StaticPodsWithoutAPIServer: at boot, with an API server that never answers, static
// pods start at once, their edits and removals are applied, and get sources shows the api
// source's error.
//
// Shows: F50
func TestF50_StaticPodsWithoutAPIServer(t *testing.T) {
	s := parallelStage(t)
	s.write("old.yaml", simple("old"))
	begin := time.Now()
	a := s.serve("--kubeconfig", s.closedKubeconfig())
	kept := s.keep()
	s.awaitRunning("old", "main")
	it := s.awaitSource("api", "failing", func(it sourceState) bool { return it.State == "failing" && strings.Contains(it.Error, "refused") })
	s.since(it, begin)
	if it.Heard || it.LastRead != "" {
		t.Errorf("the api source: %+v", it)
	}
	a.await("Failed to read source", "api:")
	s.write("old.yaml", labelled(simple("old"), "edited"))
	s.awaitLabel("old", "edited")
	s.remove("old.yaml")
	s.awaitGone("old")
	s.write("new.yaml", simple("new"))
	s.awaitRunning("new", "main")

	// The same for a later agent, and for a manifest removed while no agent ran.
	a.kill()
	s.remove("new.yaml")
	s.serve("--kubeconfig", s.closedKubeconfig())
	s.awaitGone("new")
	s.untouched("keep", kept)
}
