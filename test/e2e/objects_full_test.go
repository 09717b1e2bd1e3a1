//go:build full

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// TestC_1_37_ChangedObject: a mounted file follows its object and is complete at every
// moment; a subPath never follows. Only containers that use the object restart, in a pod that
// asks for it. The next agent applies changes made while no agent ran.
//
// Shows: C-1.37
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
		a.await("Status of every pod is known")
		s.shows(calm["main"], "/c/word", word)
		s.shows(calm["main"], "/s/token", canary+word)
		s.untouched("calm", calm)
	}
	s.untouched("keep", kept)
	s.secretsStay(canary)
}

// TestC_1_38_MissingObjectRejects: a pod that names a missing object is rejected with its
// place, and nothing of it runs; with the object it starts. Once the pod runs, deleting or
// breaking the object touches nothing (I9), under a new agent neither.
//
// Shows: C-1.38
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
