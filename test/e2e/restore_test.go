package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/test/cluster"
)

// reboot removes every pod of the stage from the runtime, as a power cycle does. No agent may
// run. Call awaitReady before the agent's end: once it has reported a container, its attempt
// is on disk; otherwise the attempt may be used again.
func (s *stage) reboot() {
	s.Helper()
	for _, b := range s.sandboxes() {
		_, stop := s.node.Runtime.StopPodSandbox(s.Context(), &cri.StopPodSandboxRequest{PodSandboxId: b.Id})
		_, remove := s.node.Runtime.RemovePodSandbox(s.Context(), &cri.RemovePodSandboxRequest{PodSandboxId: b.Id})
		s.must(stop, remove)
	}
	s.eventually(func() error {
		if n := len(s.containers("")); n > 0 {
			return fmt.Errorf("%d containers are there", n)
		}
		return nil
	})
}

// setFiles returns the files of the last-known-good sets, by path.
func (s *stage) setFiles() map[string][]byte {
	s.Helper()
	return s.filesBelow(filepath.Join(s.root, "sources"))
}

// filesBelow returns the regular files below a directory, except on tmpfs. If one is replaced
// meanwhile, it reads all again, so that it misses none.
func (s *stage) filesBelow(dir string) (all map[string][]byte) {
	s.Helper()
	s.eventually(func() error {
		all = make(map[string][]byte)
		return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() || onTmpfs(filepath.Dir(path)) {
				return err
			}
			all[path], err = os.ReadFile(path)
			return err
		})
	})
	return all
}

// awaitSet returns the file of a last-known-good set that has a pod and these words.
func (s *stage) awaitSet(name string, words ...string) string {
	s.Helper()
	var file string
	s.eventually(func() error {
		for path, text := range s.setFiles() {
			if bytes.Contains(text, []byte(`"`+s.full(name)+`"`)) && holds(string(text), words) {
				file = path
				return nil
			}
		}
		return fmt.Errorf("pod %s is in no set", name)
	})
	return file
}

// TestRestore_LastKnownGood: pods of files, of a URL and of an etcd run. The agent is killed,
// the machine loses its containers, URL and etcd are unreachable. The next agent starts every
// pod of the last run and reports that it uses the last-known-good sets. The sources correct
// it when they answer: a pod that is no longer desired stops by its own spec.
//
// Shows: I8, I9
func TestRestore_LastKnownGood(t *testing.T) {
	s := parallelStage(t)
	const canary = "canary-of-a-s3cret"
	encoded := base64.StdEncoding.EncodeToString([]byte(canary))
	secret := "apiVersion: v1\nkind: Secret\nmetadata: {name: keys}\ndata: {password: " + encoded + "}\n"
	graceful := manifest("going", []string{container("main", `ignore, print, armed, wait, /x/go, exit, "7"`, scratchMount)},
		"terminationGracePeriodSeconds: 20", s.scratchVolume())
	w := s.newWeb(documents(simple("staying"), graceful, secret))
	e := cluster.StartEtcd(t, cluster.EtcdOptions{})
	e.Put(t, "/manifests/one", simple("one"))
	e.Put(t, "/manifests/two", simple("two"))
	s.write("file.yaml", documents(simple("file"), strings.Replace(secret, "keys", "more", 1)))
	all := []string{"file", "staying", "going", "one", "two"}
	flags := append(slices.Clone(oftenAsked), "-f", w.URL, "--etcd-endpoints", strings.Join(e.Endpoints, ","), "--etcd-prefix", "/manifests/")
	a := s.serve(flags...)
	for _, name := range all {
		s.awaitReady(name, true)
		s.awaitSet(name)
		s.awaitRecorded(name, "main")
	}
	s.setsAreSecret(canary, encoded)

	a.kill()
	w.down()
	e.Kill(t)
	s.reboot()
	looks := []string{"-f", s.manifests}
	looks = append(looks, flags[len(oftenAsked):]...)
	s.foreseen("ADD file; ADD going; ADD one; ADD staying; ADD two", looks...)
	begin := time.Now()
	a = s.serve(flags...)
	was := make(map[string]map[string]running)
	for _, name := range all {
		was[name] = s.awaitRunning(name, "main")
	}
	a.await("Using the last good set of the source", "http:"+w.URL, "pods=2")
	a.await("Using the last good set of the source", "etcd:", "pods=2")
	for source, pods := range map[string]int{w.URL: 2, "etcd": 2} {
		it := s.awaitSource(source, "stands on its last good set", func(it sourceState) bool { return it.Error != "" })
		if !it.Restored || it.Heard || it.State != "stale" || it.Pods != pods || it.LastRead == "" {
			t.Errorf("source %s: %+v", source, it)
		}
		s.since(it, begin)
	}
	s.awaitOK("file")
	s.foreseen("", looks...)
	if table := s.run("get", "sources"); strings.Count(table.out, " stale ") != 2 || strings.Count(table.out, " since ") != 2 || strings.Count(table.out, "refused") != 2 {
		t.Errorf("get sources:\n%s", table.out)
	}
	life := was["going"]["main"].attempt
	s.awaitLog("going", "main", life, "armed")

	// The URL answers, with one pod fewer.
	w.serves(says(documents(simple("staying"), secret)))
	w.up()
	e.Start(t)
	s.awaitLog("going", "main", life, "SIGTERM")
	if it := s.awaitOK(w.URL); it.Restored || !it.Heard || it.Pods != 1 {
		t.Errorf("the URL: %+v", it)
	}
	s.touch("go")
	s.awaitGone("going")
	if ends := s.awaitEnded("going", "main", 2); len(ends) != 2 || ends[1].exit != 7 { // the first by the reboot
		t.Errorf("lives of going: %+v", ends)
	}
	// So does the etcd; it has one pod more.
	e.Put(t, "/manifests/three", simple("three"))
	s.awaitRunning("three", "main")
	s.awaitOK("etcd")
	for _, name := range all {
		if name != "going" {
			s.untouched(name, was[name])
		}
	}
	s.setsAreSecret(canary, encoded)

	// Without any set, as under an agent that kept none, running pods are kept until their
	// source is ready.
	a.kill()
	w.down()
	s.must(os.RemoveAll(filepath.Join(s.root, "sources")))
	a = s.serve(flags...)
	a.await("Keeping pod until its source answers", s.full("staying"))
	if it := s.awaitSource(w.URL, "failing", func(it sourceState) bool { return it.State == "failing" }); it.Restored || it.Heard {
		t.Errorf("the URL: %+v", it)
	}
	s.untouched("staying", was["staying"])
	w.up()
	s.awaitOK(w.URL)
	s.untouched("staying", was["staying"])
	s.awaitSet("staying")
}

// foreseen fails unless a dry run reports that two of three sources do not answer, and
// returns this plan.
func (s *stage) foreseen(want string, sources ...string) {
	s.Helper()
	r := s.run(append([]string{"merge", "--dry-run", "--against", "runtime", "-o", "json"}, sources...)...)
	var p mergePlan
	s.must(json.Unmarshal([]byte(r.out), &p))
	if r.code != 5 || p.words() != want {
		s.Errorf("a dry run without its sources: exit code %d, %q, want 5, %q\n%s", r.code, p.words(), want, r.err)
	}
	stale := 0
	for _, it := range p.Sources {
		if it.Stale && it.Error != "" {
			stale++
		}
	}
	if stale != 2 {
		s.Errorf("a dry run without its sources: %+v", p.Sources)
	}
}

// setsAreSecret fails if a file below the root directory holds the content of a Secret, or
// if another user can read a set.
func (s *stage) setsAreSecret(canary ...string) {
	s.Helper()
	sources := filepath.Join(s.root, "sources")
	for path, text := range s.filesBelow(s.root) {
		for _, c := range canary {
			if bytes.Contains(text, []byte(c)) {
				s.Errorf("a Secret is in %s", path)
			}
		}
	}
	s.eventually(func() error { // not while a set is replaced
		return filepath.WalkDir(sources, func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := d.Info()
			want := fs.FileMode(0o600)
			if d.IsDir() {
				want = 0o700
			}
			if err == nil && info.Mode().Perm() != want {
				s.Errorf("%s has mode %s", path, info.Mode())
			}
			return err
		})
	})
}

// awaitRecorded returns when the pod's record has the attempt of the newest container:
// removing the container from the runtime then loses no attempt.
func (s *stage) awaitRecorded(name, container string) {
	s.Helper()
	life := s.awaitRunning(name, container)[container]
	s.eventually(func() error {
		all, err := record.Look(s.root)
		for _, r := range all {
			if r.Name == s.full(name) && r.Attempts[container] > life.attempt {
				return nil
			}
		}
		return fmt.Errorf("the record of %s does not count its container: %v", name, err)
	})
}
