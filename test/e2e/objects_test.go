package e2e

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// configMap returns a ConfigMap's manifest; data are alternating keys and values.
func configMap(name string, data ...string) string { return object("ConfigMap", "data", name, data) }

// secretOf returns a Secret's manifest.
func secretOf(name string, data ...string) string { return object("Secret", "stringData", name, data) }

func object(kind, field, name string, data []string) string {
	text := "apiVersion: v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\n" + field + ":\n"
	for i := 0; i < len(data); i += 2 {
		text += fmt.Sprintf("  %s: %q\n", data[i], data[i+1])
	}
	return text
}

// inside returns the path of a container's file for this process.
func (r running) inside(path string) string { return fmt.Sprintf("/proc/%d/root%s", r.pid, path) }

// shows returns when the container sees this text in a file.
func (s *stage) shows(r running, path, want string) {
	s.Helper()
	s.eventually(func() error {
		got, err := os.ReadFile(r.inside(path))
		if err == nil && string(got) != want {
			err = fmt.Errorf("%s is %.40q, want %.40q", path, got, want)
		}
		return err
	})
}

// nothingOf fails the scenario if anything exists of a pod that may not run.
func (s *stage) nothingOf(name string) {
	s.Helper()
	for _, b := range s.sandboxes() {
		if b.Metadata.Name == s.full(name) {
			s.Errorf("pod %s has a sandbox", name)
		}
	}
	for _, pattern := range []string{filepath.Join(s.root, "pods/*/record.json"), filepath.Join(s.logs, "*_"+s.full(name)+"_*")} {
		found, _ := filepath.Glob(pattern)
		for _, f := range found {
			if text, err := os.ReadFile(f); err != nil || bytes.Contains(text, []byte(`"`+s.full(name)+`"`)) {
				s.Errorf("pod %s has %s", name, f)
			}
		}
	}
}

// objectReader is a pod that reads config objects in every way.
func objectReader(name, annotations string) string {
	text := manifest(name, []string{
		container("main", "forever", "env: [{name: WORD, valueFrom: {configMapKeyRef: {name: conf, key: word}}}]",
			"volumeMounts: [{name: c, mountPath: /c}, {name: c, mountPath: /part, subPath: word}, {name: s, mountPath: /s}]"),
		container("side", "forever"),
	}, "volumes: [{name: c, configMap: {name: conf}}, {name: s, secret: {secretName: keys}}]")
	return strings.Replace(text, "metadata: {", "metadata: {annotations: {"+annotations+"}, ", 1)
}

// TestC_1_38_MissingObjectRejects: a pod that names a missing object is rejected with its
// place, and nothing of it runs; with the object it starts. Once the pod runs, deleting or
// breaking the object touches nothing (I9), under a new agent neither.
func TestC_1_38_MissingObjectRejects(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	s.write("web.yaml", objectReader("web", ""))
	s.write("keys.yaml", secretOf("keys", "token", canary))
	a := s.serve()
	kept := s.keep()
	if p := s.awaitRejected("file", "web.yaml", "configmap", "conf"); p.Line != 6 {
		t.Errorf("the problem is at line %d, want 6: %+v", p.Line, p)
	}
	a.await("web.yaml:6:", "conf")
	s.nothingOf("web")
	s.write("conf.yaml", configMap("conf", "word", "one"))
	was := s.awaitRunning("web", "main", "side")
	s.awaitReady("web", true)
	s.awaitOK("file")
	s.shows(was["main"], "/c/word", "one")
	p := s.front
	s.quiet(p)
	before := len(p.Mutations())
	same := func(when string) {
		t.Helper()
		s.quiet(p)
		s.untouched("web", was)
		s.untouched("keep", kept)
		if made := p.Mutations()[before:]; len(made) > 0 {
			t.Errorf("%s: mutating calls %v", when, made)
		}
		s.shows(was["main"], "/c/word", "one")
		s.shows(was["main"], "/s/token", canary)
	}
	s.remove("conf.yaml")
	s.awaitRejected("file", "web.yaml", "conf")
	same("the object was removed")
	a.kill()
	a = s.serve()
	s.awaitRejected("file", "web.yaml", "conf")
	same("a new agent without the object")
	s.write("conf.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: conf}\ndata: {word: [}\n")
	s.awaitRejected("file", "conf.yaml")
	same("the object was broken")
	a.kill()
	s.serve()
	s.awaitRejected("file", "conf.yaml")
	same("a new agent with a broken object")
	s.write("conf.yaml", configMap("conf", "word", "two"))
	s.shows(was["main"], "/c/word", "two")
	s.awaitOK("file")
	s.untouched("web", was)
}

// TestC_1_37_ChangedObject: a mounted file follows its object and is complete at every
// moment; a subPath never follows. Only containers that use the object restart, in a pod that
// asks for it. The next agent applies changes made while no agent ran.
func TestC_1_37_ChangedObject(t *testing.T) {
	s := parallelStage(t).oftenSynced()
	page := func(letter string) string { return strings.Repeat(letter, 100_000) }
	put := func(word, letter string) {
		s.write("conf.yaml", configMap("conf", "word", word, "page", page(letter)))
	}
	put("one", "a")
	s.write("keys.yaml", secretOf("keys", "token", canary+"1"))
	s.write("calm.yaml", objectReader("calm", ""))
	s.write("keen.yaml", objectReader("keen", `nodectl.dev/restart-on-change: "true"`))
	s.excuse("keen") // the checker does not read config objects
	a := s.serve()
	kept := s.keep()
	calm, keen := s.awaitRunning("calm", "main", "side"), s.awaitRunning("keen", "main", "side")
	s.awaitReady("keen", true)

	// A reader that never stops.
	stop, torn := make(chan struct{}), make(chan string, 1)
	go func() {
		defer close(torn)
		for n := 0; ; n++ {
			text, err := os.ReadFile(calm["main"].inside("/c/page"))
			if err != nil || len(text) != 100_000 || string(text) != page(string(text[:1])) {
				torn <- fmt.Sprintf("read %d: %d bytes, %v", n, len(text), err)
				return
			}
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	for i, letter := range strings.Split("bcdef", "") {
		put("one", letter)
		s.shows(calm["main"], "/c/page", page(letter))
		if i == 0 { // keen restarts for the first, and perhaps some of the others
			s.eventually(func() error {
				if now, err := s.runningNow("keen", "main", "side"); err != nil || now["main"].id == keen["main"].id {
					return fmt.Errorf("keen has not restarted: %v", err)
				}
				return nil
			})
		}
	}
	close(stop)
	if what, bad := <-torn; bad {
		t.Errorf("a reader saw a file in the making: %s", what)
	}
	put("two", "f")
	s.shows(calm["main"], "/c/word", "two")
	s.shows(calm["main"], "/part", "one")
	s.write("keys.yaml", secretOf("keys", "token", canary+"2"))
	s.shows(calm["main"], "/s/token", canary+"2")
	s.eventually(func() error {
		now, err := s.runningNow("keen", "main", "side")
		if err == nil {
			var part []byte
			if part, err = os.ReadFile(now["main"].inside("/part")); err == nil && string(part) != "two" {
				err = fmt.Errorf("keen was started with %q", part)
			}
		}
		return err
	})
	s.awaitReady("keen", true)
	s.untouched("calm", calm)
	if now := s.awaitRunning("keen", "main", "side"); now["side"] != keen["side"] {
		t.Errorf("keen's side uses no object: was %+v, is %+v", keen["side"], now["side"])
	}

	// While no agent runs.
	for i, end := range []func(*agent){(*agent).leave, (*agent).kill} {
		s.quiet(s.front)
		end(a)
		word := fmt.Sprint("away-", i)
		put(word, "f")
		s.write("keys.yaml", secretOf("keys", "token", canary+word))
		a = s.serve()
		a.await("All pods reported")
		s.shows(calm["main"], "/c/word", word)
		s.shows(calm["main"], "/s/token", canary+word)
		s.untouched("calm", calm)
	}
	s.untouched("keep", kept)
	s.secretsStay(canary)
}

// TestObjectsOfAnotherSource: a URL's pod cannot name an object of a file, nor the other way
// round; a pod can name the objects of its own source kind.
func TestObjectsOfAnotherSource(t *testing.T) {
	s := parallelStage(t)
	using := func(name, secret string) string {
		return manifest(name, []string{container("main", "forever")}, "volumes: [{name: s, secret: {secretName: "+secret+"}}]")
	}
	s.write("mine.yaml", secretOf("mine", "token", canary))
	s.write("own.yaml", using("own", "mine"))
	s.write("thief.yaml", using("thief", "theirs"))
	w := s.newWeb(documents(using("guest", "mine"), using("host", "theirs"), secretOf("theirs", "token", canary)))
	s.serve("-f", w.URL)
	s.awaitRejected("file", "thief.yaml", "theirs")
	s.awaitSource(w.URL, "rejects its guest", func(it sourceState) bool {
		return len(it.Problems) == 1 && strings.Contains(it.Problems[0].Message, `mine`)
	})
	s.awaitRunning("own", "main")
	s.awaitRunning("host", "main")
	s.nothingOf("thief")
	s.nothingOf("guest")
	s.excuse("thief")
}

// secretsStay fails if a Secret's value is in a file on disk below the root directory, except
// in the last-known-good sets, or in the output of any command (I8).
func (s *stage) secretsStay(word string) {
	s.Helper()
	encoded := base64.StdEncoding.EncodeToString([]byte(word))[:len(word)/3*4]
	for _, where := range []string{s.root, s.logs} {
		if _, err := os.Stat(where); err != nil {
			continue
		}
		for path, text := range s.filesBelow(where) {
			if strings.HasPrefix(path, filepath.Join(s.root, "sources")+"/") {
				continue
			}
			if bytes.Contains(text, []byte(word)) || bytes.Contains(text, []byte(encoded)) {
				s.Errorf("a Secret is in %s", path)
			}
		}
	}
	for _, args := range [][]string{
		{"get", "pods", "-o", "yaml"}, {"get", "pods", "-o", "json"}, {"get", "sources", "-o", "json"}, {"get", "volumes", "-o", "yaml"},
		{"merge", "-f", s.manifests}, {"merge", "-f", s.manifests, "-o", "json"},
		{"merge", "--dry-run", "-f", s.manifests, "-o", "json"}, {"merge", "--dry-run", "-f", s.manifests}, {"merge", "--dry-run", "--against", "none", "-f", s.manifests},
		{"watch", "-f", s.manifests, "--full", "--show-diff", "-o", "json", "--timeout", wait.Limit.String(), "--max-events", "1"},
		{"watch", "--attach", "--full", "--show-diff", "-o", "json", "--timeout", wait.Limit.String(), "--max-events", "1"},
	} {
		r := s.run(args...)
		if said := r.out + r.err; strings.Contains(said, word) || strings.Contains(said, encoded) {
			s.Errorf("nodectl %s tells a Secret", strings.Join(args, " "))
		}
	}
	for _, b := range s.sandboxes() {
		if strings.Contains(fmt.Sprint(b.Labels, b.Annotations), word) {
			s.Errorf("the sandbox of %s tells a Secret", b.Labels[pod.LabelPodName])
		}
	}
	for _, c := range s.containers("") {
		if strings.Contains(fmt.Sprint(c.Labels, c.Annotations), word) {
			s.Errorf("container %s tells a Secret", c.Metadata.Name)
		}
	}
}
