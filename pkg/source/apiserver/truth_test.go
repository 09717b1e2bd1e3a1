package apiserver

import (
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

func key(name string) pod.Key { return pod.Key{Namespace: "default", Name: name} }

// A watch that the server cannot continue, reported at its start or later, leads to a
// list, which has the changes in between.
//
// Shows: F71
func TestF71_GoneLosesNothing(t *testing.T) {
	for _, json := range []bool{false, true} {
		s := newServer(t)
		s.json = json
		s.put(boundPod("one", "x"), boundPod("two", "x"))
		l := sourcetest.Listen(t, s.source(t))
		l.Set().Holds(t, "one", "two")
		s.watched(t, 1)
		s.tell(logged{kind: watch.Error})
		s.watched(t, 2) // and no set, because nothing changed
		s.change(func() {
			s.puts(boundPod("one", "y"))
			s.drops(key("two"))
			s.puts(boundPod("three", "x"))
			s.log, s.compacted, s.cut, s.clean = nil, s.rv, s.cut+1, true
		})
		w := l.Set()
		w.Holds(t, "one", "three")
		w.Names(t, "one", "three", "two")
	}
}

// Each watch begins where the last one stopped, bookmarks included, and one that ended
// when due needs no list.
//
// Shows: F71
func TestF71_BookmarksMoveTheStart(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	src := s.source(t)
	src.reader.Tuning.Watch = time.Second
	l := sourcetest.Listen(t, src)
	l.Set().Holds(t, "one")
	s.watched(t, 1)
	s.change(func() {
		s.rv = 500
		mark := &v1.Pod{ObjectMeta: metav1.ObjectMeta{ResourceVersion: "500"}}
		s.log = append(s.log, logged{rv: 500, kind: watch.Bookmark, pod: mark})
	})
	// A watch may end before the bookmark comes; the one after it begins there.
	query := s.waits(t, 1, func(r *http.Request) bool {
		return isWatch(r) && r.URL.Query().Get("resourceVersion") == "500"
	}).URL.Query()
	if query.Get("allowWatchBookmarks") != "true" {
		t.Errorf("the watch from the bookmark on asks for %v", query)
	}
	if n := s.count(isList); n != 1 {
		t.Errorf("%d lists", n)
	}
}

// Events that come twice, late, or of a deleted pod change nothing.
//
// Shows: F71
func TestF71_OldAndDuplicateEventsAreHarmless(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"), boundPod("two", "x"))
	l := sourcetest.Listen(t, s.gathering(t))
	l.Set()
	s.watched(t, 1)
	s.change(func() {
		s.puts(boundPod("one", "y"))
		s.drops(key("two"))
		s.puts(boundPod("two", "z"))
	})
	w := l.Set()
	w.Holds(t, "one", "two")
	s.change(func() {
		again := append([]logged{}, s.log...)
		late := *again[0].pod
		late.ResourceVersion = "7" // of before everything
		again = append(again, logged{rv: 0, kind: watch.Deleted, pod: &late}, logged{rv: 0, kind: watch.Modified, pod: &late})
		other := boundPod("other", "x")
		other.ResourceVersion, other.UID = "8", "dead long since"
		s.log = append(s.log, append(again, logged{rv: 0, kind: watch.Added, pod: other})...)
		s.puts(boundPod("three", "x"))
	})
	w = l.Set()
	w.Holds(t, "one", "three", "two")
	w.Names(t, "three")
	if got := w.Pod("two").Pod; got.Annotations["content"] != "z" || got.UID != "uid-3" {
		t.Errorf("pod two is %s with UID %s", got.Annotations["content"], got.UID)
	}
}

// One list removes nothing: a pod that the next list has again was never gone.
//
// Shows: F71
func TestF71_OneListRemovesNothing(t *testing.T) {
	for _, back := range []bool{false, true} {
		s := newServer(t)
		s.put(boundPod("one", "x"), boundPod("two", "x"))
		l := sourcetest.Listen(t, s.source(t))
		first := l.Set()
		s.watched(t, 1)
		lists := s.count(isList)
		s.change(func() {
			s.forgets()
			s.answer = func(w http.ResponseWriter, r *http.Request) bool {
				if isWatch(r) || s.count(isList) > lists+1 {
					return false
				}
				rv := "102"
				if back {
					rv = "3"
				}
				w.Header().Set("Content-Type", protobufType)
				data, _ := (&v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: rv}}).Marshal()
				_, _ = w.Write(wrap("PodList", data))
				return true
			}
		})
		if back {
			if err := l.Error(); err.Error() != errBackInTime.Error() {
				t.Errorf("error %q", err)
			}
			w := l.Set()
			w.Holds(t, "one", "two")
			w.Names(t)
		}
		s.watched(t, 2)
		s.put(boundPod("three", "x"))
		w := l.Set()
		w.Holds(t, "one", "three", "two")
		w.Names(t, "three")
		if w.Pod("one") != first.Pod("one") {
			t.Error("the pod is another pointer")
		}
	}
}

// A restored server has an older resource version. Its missing pods are removed when a second
// list confirms it, and its older versions are used. Its new events do not count as old ones.
//
// Shows: F71
func TestF71_RestoredFromBackup(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("old", "x"), boundPod("kept", "x"))
	l := sourcetest.Listen(t, s.gathering(t))
	l.Set().Holds(t, "kept", "old")
	s.watched(t, 1)
	s.change(func() {
		s.puts(boundPod("new", "x"))
		s.puts(boundPod("kept", "y"))
	})
	l.Set().Holds(t, "kept", "new", "old")
	s.change(func() {
		s.rv = 50
		s.log = nil
		s.drops(key("new"))
		for i, name := range []string{"kept", "old"} {
			p := s.pods[key(name)]
			p.ResourceVersion, p.Annotations["content"] = strconv.Itoa(40+i), "x"
		}
		s.cut++
	})
	if err := l.Error(); !strings.Contains(err.Error(), "restored from a backup") {
		t.Errorf("error %q", err)
	}
	w := l.Set()
	w.Holds(t, "kept", "old")
	w.Names(t, "kept", "new", "old")
	if got := w.Pod("kept").Pod.Annotations["content"]; got != "x" {
		t.Errorf("pod kept is %q", got)
	}
	s.watched(t, 2)
	s.put(boundPod("new", "again"), boundPod("kept", "z"))
	w = l.Set()
	w.Holds(t, "kept", "new", "old")
	w.Names(t, "kept", "new")
	s.drop("old")
	l.Set().Holds(t, "kept", "new")
}

// Any answer that is not a complete list is an error, whatever its status.
//
// Shows: F71
func TestF71_WhatIsNoCompleteListRemovesNothing(t *testing.T) {
	list := func(rv, next string, pods ...*v1.Pod) []byte {
		l := v1.PodList{ListMeta: metav1.ListMeta{ResourceVersion: rv, Continue: next}}
		for _, p := range pods {
			l.Items = append(l.Items, *p)
		}
		data, _ := l.Marshal()
		return wrap("PodList", data)
	}
	whole := list("300", "", boundPod("one", "x"))
	status, _ := (&metav1.Status{Status: metav1.StatusSuccess}).Marshal()
	type answer struct {
		name, mediaType string
		body            []byte
		want            string
	}
	answers := []answer{
		{"nothing", protobufType, nil, "empty answer"},
		{"blanks", jsonType, []byte(" \n"), "empty answer"},
		{"a proxy's page", "text/html", []byte("<html>welcome</html>"), "not from a Kubernetes API"},
		{"a proxy's page that says it is JSON", jsonType, []byte("<html>welcome</html>"), "damaged"},
		{"a page without a type", "", []byte("ok"), "not from a Kubernetes API"},
		{"any JSON", jsonType, []byte("{}"), "not from a Kubernetes API"},
		{"a status", protobufType, wrap("Status", status), "not from a Kubernetes API"},
		{"a list of something else", jsonType, []byte(`{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"300"},"items":[]}`), "not from a Kubernetes API"},
		{"a list without a version", protobufType, list("", ""), "damaged"},
		{"half of a list in JSON", jsonType, []byte(`{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"300"},"items":[`), "damaged"},
		{"pages of two states", protobufType, nil, "changed while it was read"},
	}
	for cut := 5; cut < len(whole); cut += 7 {
		answers = append(answers, answer{"cut at " + strconv.Itoa(cut), protobufType, whole[:cut], "damaged"})
	}
	s := newServer(t)
	s.put(boundPod("one", "x"), boundPod("two", "x"))
	l := sourcetest.Listen(t, s.source(t))
	first := l.Set()
	s.watched(t, 1)
	for _, a := range answers {
		s.says(func(w http.ResponseWriter, r *http.Request) bool {
			w.Header()["Content-Type"] = []string{a.mediaType}
			if a.name == "pages of two states" {
				if r.URL.Query().Has("continue") {
					a.body = list("301", "")
				} else {
					a.body = list("300", "x", boundPod("one", "x"))
				}
			}
			_, _ = w.Write(a.body)
			return true
		})
		if err := l.Error(); !strings.Contains(err.Error(), a.want) {
			t.Errorf("%s: error %q, want %q", a.name, err, a.want)
		}
		s.says(nil)
		w := l.Set()
		w.Holds(t, "one", "two")
		w.Names(t)
		if w.Pod("one") != first.Pod("one") {
			t.Errorf("%s: the pod is another pointer", a.name)
		}
	}
	// The connection ends in the midst of an answer whose length is known.
	s.says(func(w http.ResponseWriter, _ *http.Request) bool {
		w.Header().Set("Content-Type", protobufType)
		w.Header().Set("Content-Length", "1000000")
		_, _ = w.Write(whole)
		return true
	})
	if err := l.Error(); !strings.Contains(err.Error(), "before the answer was complete") {
		t.Errorf("error %q", err)
	}
}

// A list of many pages is one list, and one that never ends is none.
//
// Shows: F71
func TestF71_PagesMakeOneList(t *testing.T) {
	s := newServer(t)
	var want []string
	s.change(func() {
		for i := range 7 {
			want = append(want, "pod-"+strconv.Itoa(i))
			s.puts(boundPod(want[i], "x"))
		}
	})
	src := s.source(t)
	src.reader.Tuning.PageSize = 3
	sourcetest.Listen(t, src).Set().Holds(t, want...)
	if n := s.count(isList); n != 3 {
		t.Errorf("%d requests", n)
	}
	for _, r := range s.requests()[:3] {
		if q := r.URL.Query(); q.Get("resourceVersion") != "" || q.Get("limit") != "3" {
			t.Errorf("a list asks for %v: want the state of now", q)
		}
	}
}

// A server, or a proxy, that ignores field selectors sends the pods of all nodes.
//
// Shows: C-1.8.1
func TestC_1_8_1_OnlyThisNodesPods(t *testing.T) {
	s := newServer(t)
	s.change(func() { s.all = true })
	other := func(p *v1.Pod) { p.Spec.NodeName = "n2" }
	s.put(boundPod("one", "x"), boundPod("theirs", "x", other), boundPod("nobodys", "x", func(p *v1.Pod) { p.Spec.NodeName = "" }))
	l := sourcetest.Listen(t, s.source(t, func(c *Config) { c.Node = "N1" }))
	l.Set().Holds(t, "one")
	s.watched(t, 1)
	s.put(boundPod("more", "x", other), boundPod("two", "x"))
	l.Set().Holds(t, "one", "two")
	for _, r := range s.requests()[:2] {
		if got := r.URL.Query().Get("fieldSelector"); got != "spec.nodeName=n1" {
			t.Errorf("selector %q", got)
		}
	}
}

// The presence of its annotation marks a mirror pod (C-1.4.1); the source leaves it
// out, in the first list and later. It ignores a pod's own source annotation.
//
// Shows: C-1.8
func TestC_1_8_MirrorPodsAreLeftOut(t *testing.T) {
	s := newServer(t)
	mirror := func(p *v1.Pod) {
		p.Annotations[v1.MirrorPodAnnotationKey] = ""
		p.Annotations[pod.AnnotationConfigSource] = "file"
	}
	s.put(boundPod("static-n1", "x", mirror), boundPod("liar", "x", func(p *v1.Pod) { p.Annotations[pod.AnnotationConfigSource] = "file" }))
	l := sourcetest.Listen(t, s.source(t))
	w := l.Set()
	w.Holds(t, "liar")
	if got := w.Pod("liar").Pod.Annotations[pod.AnnotationConfigSource]; got != "api" {
		t.Errorf("the pod's source is %q", got)
	}
	s.watched(t, 1)
	s.put(boundPod("static-n1", "y", mirror), boundPod("other-n1", "x", mirror), boundPod("plain", "x"))
	s.drop("static-n1")
	w = l.Set()
	w.Holds(t, "liar", "plain")
	w.Names(t, "plain")
}
