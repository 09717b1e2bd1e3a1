//go:build full

package e2e

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// TestF63_FlappingURL: a URL that alternates between two documents restarts its pod a few
// times and less and less often, and is shown as a source with an error; the pod has the last
// version in the end.
//
// Shows: F63
func TestF63_FlappingURL(t *testing.T) {
	s := parallelStage(t)
	version := func(v string) string {
		return documents(strings.Replace(simple("flap"), "forever", "print, "+v+", forever", 1), simple("still"))
	}
	w := s.newWeb(version("a"))
	a := s.serve(append(oftenAsked, "-f", w.URL)...)
	still := s.awaitRunning("still", "main")
	s.awaitRunning("flap", "main")
	begin, n := time.Now(), 0
	w.serves(func(to http.ResponseWriter, _ *http.Request) { // one at a time: there is one poller
		n++
		fmt.Fprint(to, version([]string{"b", "a"}[n%2]))
	})
	s.awaitStale(w.URL, 2, begin, "alternates")
	a.await("Failed to read source", w.URL, "alternates")
	w.awaitRequests(30)
	if asked, lived := w.requests(), len(s.ended("flap", "main"))+1; lived > 8 {
		t.Errorf("the pod lived %d times for %d answers", lived, asked)
	}
	s.untouched("still", still)
	w.serves(says(version("b")))
	s.eventually(func() error {
		now, err := s.runningNow("flap", "main")
		if err != nil {
			return err
		}
		text, err := s.log("flap", "main", now["main"].attempt)
		if err == nil && !strings.Contains(text, "b\n") {
			err = fmt.Errorf("it logged %q", text)
		}
		return err
	})
	s.awaitOK(w.URL)
	s.untouched("still", still)
}

// TestF64_OneBadPodOfAList: of a list with one bad pod, the agent starts and changes the
// others. It names the bad one by its place, and if that pod ran, it runs on unchanged.
//
// Shows: F64
func TestF64_OneBadPodOfAList(t *testing.T) {
	s := parallelStage(t)
	bad := strings.Replace(simple("bad"), "args:", "argz:", 1)
	w := s.newWeb(documents(simple("one"), bad, simple("two")))
	a := s.serve(append(oftenAsked, "-f", w.URL)...)
	one, two := s.awaitRunning("one", "main"), s.awaitRunning("two", "main")
	p := s.awaitRejected(w.URL, "", "unknown field")
	if p.Path != "spec.containers[0].argz" || p.Line == 0 {
		t.Errorf("the problem: %+v", p)
	}
	a.once("Rejecting pod", w.URL, "argz")
	w.serves(says(documents(simple("one"), simple("bad"), simple("two"))))
	mended := s.awaitRunning("bad", "main")
	s.awaitOK(w.URL)
	// It turns bad again, as JSON, together with one edited and one new pod.
	w.serves(func(to http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(to, documents(labelled(simple("one"), "edited"), bad, simple("two"), simple("three")))
	})
	s.awaitLabel("one", "edited")
	s.awaitRunning("three", "main")
	s.awaitRejected(w.URL, "", "unknown field")
	s.untouched("bad", mended)
	s.untouched("one", one)
	s.untouched("two", two)
	if it := s.awaitSource(w.URL, "four stand", func(it sourceState) bool { return it.Pods == 4 }); it.State != "ok" {
		t.Errorf("%+v", it)
	}
}

// TestF60_F64_URLFaultsAreSeenAndMended causes one fault of a URL after the other under one agent.
// Each time its pods are the same processes afterwards, and the fault is in get sources with its
// start and its reason, and once in the log. The agent applies the URL's content when the URL works
// again.
//
// Shows: F60, F64
func TestF60_F64_URLFaultsAreSeenAndMended(t *testing.T) {
	s := parallelStage(t)
	text := documents(simple("web"), simple("api"))
	w := s.newWeb(text)
	elsewhere := s.newWeb(simple("evil"))
	a := s.serve(append(oftenAsked, "-f", w.URL)...)
	kept := s.keep() // from the directory, which has no faults
	web, api := s.awaitRunning("web", "main"), s.awaitRunning("api", "main")
	s.awaitOK(w.URL)
	untouched := func() {
		s.Helper()
		s.untouched("web", web)
		s.untouched("api", api)
		s.untouched("keep", kept)
		s.awaitOK(s.manifests)
	}
	edits := 0
	mended := func() {
		s.Helper()
		edits++
		value := fmt.Sprint("v", edits)
		w.serves(says(documents(labelled(simple("web"), value), simple("api"))))
		s.awaitLabel("web", value)
		s.awaitOK(w.URL)
		a.awaitLines(edits, "Source can be read again", w.URL)
		untouched()
	}
	fault := func(answer http.HandlerFunc, words ...string) {
		s.Helper()
		lines, begin := len(a.linesWith("Failed to read source", w.URL)), time.Now()
		w.serves(answer)
		s.awaitStale(w.URL, 2, begin, words...)
		w.awaitRequests(2)
		a.awaitLines(lines+1, "Failed to read source", w.URL)
		if n := len(a.linesWith("Failed to read source", w.URL)); n != lines+1 {
			s.Errorf("%d lines of one fault", n-lines)
		}
		untouched()
	}

	s.scene("F60 empty and the same again", func() {
		fault(says(""), "empty answer")
		w.serves(says(text)) // the very same document
		s.awaitOK(w.URL)
		edits++
		a.awaitLines(edits, "Source can be read again", w.URL)
		untouched()
		fault(says(" \n\n"), "empty answer")
		mended()
	})
	s.scene("F62 500", func() {
		fault(refuses(http.StatusInternalServerError), "HTTP 500")
		mended()
	})
	s.scene("F62 404", func() {
		fault(refuses(http.StatusNotFound), "HTTP 404")
		mended()
	})
	s.scene("F62 another origin", func() {
		fault(func(to http.ResponseWriter, r *http.Request) { http.Redirect(to, r, elsewhere.URL, http.StatusFound) }, "redirect")
		if n := elsewhere.requests(); n != 0 {
			s.Errorf("the other origin was asked %d times", n)
		}
		mended()
	})
	s.scene("F62 cut off in the middle", func() {
		fault(func(to http.ResponseWriter, _ *http.Request) {
			to.Header().Set("Content-Length", fmt.Sprint(len(text)))
			fmt.Fprint(to, text[:len(text)/2])
		}, "")
		mended()
	})
	s.scene("F62 connection refused", func() {
		begin := time.Now()
		w.down()
		s.awaitStale(w.URL, 2, begin, "refused")
		untouched()
		w.up()
		mended()
	})
	s.scene("F62 no answer", func() {
		begin, enough := time.Now(), make(chan struct{})
		w.serves(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
			case <-enough:
			}
		})
		s.awaitStale(w.URL, 2, begin, "time")
		untouched()
		close(enough)
		mended()
	})
	s.scene("F60 an explicit empty list", func() {
		w.serves(says("apiVersion: v1\nkind: PodList\nitems: []\n"))
		s.awaitGone("web")
		s.awaitGone("api")
		s.untouched("keep", kept)
	})
}

// TestF61_CanaryOfABody: an error about a body that is no manifest names its length and its
// place only. Its content, and the secrets of the request, appear nowhere: not in the agent's
// debug log, not below its root directory on disk, not in the output of the read commands.
//
// Shows: F61, I8
func TestF61_CanaryOfABody(t *testing.T) {
	s := parallelStage(t)
	const body, header, password, token = "canary-b0dy", "canary-h3ader", "canary-p4ssword", "canary-t0ken"
	w := s.newWeb(simple("web"))
	url := strings.Replace(w.URL, "http://", "http://user:"+password+"@", 1) + "?token=" + token
	asked := []string{"-f", url, "--manifest-url-header", "X-Secret: " + header}
	a := s.serve(append(append(asked, oftenAsked...), "--log-level", "debug")...)
	web := s.awaitRunning("web", "main")
	var told strings.Builder
	for i, garbage := range []string{
		body,
		"kind: [" + body,
		"\x00\xff" + body,
		"apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: " + body + "\n",
		"apiVersion: v1\nkind: Secret\nmetadata: {name: x}\ndata: {password: " + body + "}\n",
		strings.Replace(simple("web"), "args:", "env: [{name: P, value: "+body+", vlue: "+body+"}], args:", 1),
	} {
		lines := len(a.linesWith("level=WARN", "field="))
		w.serves(says(garbage))
		a.awaitLines(lines+1, "level=WARN", "field=")
		s.untouched("web", web)
		for _, look := range [][]string{
			{"get", "sources"}, {"get", "sources", "-o", "json"}, {"get", "sources", "-o", "wide"}, {"get", "pods", "-o", "json"},
			append([]string{"watch", "--timeout", "1s", "-o", "json", "--full"}, asked...),
			{"watch", "--attach", "--timeout", wait.Limit.String(), "--max-events", "2", "--show-diff"},
			append([]string{"merge", "--dry-run", "--against", "runtime", "--log-level", "debug"}, asked...),
		} {
			if i > 1 && look[0] == "watch" && i < 5 {
				continue // a second each
			}
			r := s.run(look...)
			told.WriteString(r.out + r.err)
		}
	}
	told.WriteString(a.said())
	for _, text := range s.filesBelow(s.root) {
		told.Write(text)
	}
	for _, canary := range []string{body, header, password, token} {
		if at := strings.Index(told.String(), canary); at >= 0 {
			t.Errorf("%s is printed: …%s…", canary, told.String()[max(0, at-200):min(told.Len(), at+50)])
		}
	}
	w.serves(says(labelled(simple("web"), "mended")))
	s.awaitLabel("web", "mended")
	s.untouched("web", web)
}
