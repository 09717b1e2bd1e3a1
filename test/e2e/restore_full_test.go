//go:build full

package e2e

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
)

// TestRestore_DamagedSet: damage to one file of a last-known-good set loses only that file's
// pods, and is reported. The agent starts, and restores all else.
//
// Shows: F12
func TestRestore_DamagedSet(t *testing.T) {
	s := parallelStage(t)
	e := cluster.StartEtcd(t, cluster.EtcdOptions{})
	names := []string{"one", "two", "three", "four"}
	for _, name := range names {
		e.Put(t, "/manifests/"+name, simple(name))
	}
	flags := []string{"--etcd-endpoints", strings.Join(e.Endpoints, ","), "--etcd-prefix", "/manifests/"}
	a := s.serve(flags...)
	for _, name := range names {
		s.awaitReady(name, true)
		s.awaitSet(name)
	}
	a.leave()
	e.Kill(t)
	s.reboot()
	damage := map[string]func(text []byte) []byte{
		"one":   func(text []byte) []byte { return text[:len(text)/2] },
		"two":   func(text []byte) []byte { text[len(text)/2] ^= 0x20; return text },
		"three": func([]byte) []byte { return nil },
	}
	for name, broken := range damage {
		file := s.awaitSet(name)
		text, err := os.ReadFile(file)
		s.must(err, os.WriteFile(file, broken(text), 0o600))
	}
	a = s.serve(flags...)
	a.await("Failed to read some of the last good sets")
	a.await("Using last good set until the source answers", "etcd:", "pods=1")
	s.awaitRunning("four", "main")
	if asides, _ := filepath.Glob(filepath.Join(s.root, "sources/*/*.corrupt-*")); len(asides) != 3 {
		t.Errorf("set aside: %v", asides)
	}
	e.Start(t)
	for _, name := range names {
		s.awaitRunning(name, "main")
	}
	s.awaitOK("etcd")
	for _, name := range names {
		s.awaitSet(name)
	}
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
	a.await("Using last good set until the source answers", "http:"+w.URL, "pods=2")
	a.await("Using last good set until the source answers", "etcd:", "pods=2")
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
