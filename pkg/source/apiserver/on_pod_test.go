package apiserver

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// TestC_1_12_2_SeenGetsMirrorsToo: Seen receives the server's state, in order,
// mirrors included, and no old events.
//
// Shows: C-1.12.2
func TestC_1_12_2_SeenGetsMirrorsToo(t *testing.T) {
	s := newServer(t)
	mirror := func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationConfigMirror: "h"} }
	s.put(boundPod("one", "x"), boundPod("static", "x", mirror))
	seen := make(chan string, 1) // the goroutine of Sets sends, the test receives
	source := s.source(t, func(c *Config) {
		c.OnPod = func(p *v1.Pod, gone bool) {
			if p.ManagedFields != nil {
				t.Error("managed fields are kept")
			}
			seen <- fmt.Sprintf("%s %t", p.Name, gone)
		}
	})
	want := func(texts ...string) {
		t.Helper()
		var words []string
		for range texts {
			words = append(words, <-seen)
		}
		if !slices.Equal(words, texts) {
			t.Errorf("Seen was called with %q, want %q", words, texts)
		}
	}
	l := sourcetest.Listen(t, source)
	want("one false", "static false")
	l.Set().Holds(t, "one")
	s.watched(t, 1)
	s.put(boundPod("static", "y", mirror))
	want("static false")
	s.drop("static")
	want("static true")
	s.drop("one")
	want("one true")
	l.Set().Holds(t)
	s.change(s.forgets) // a list comes, and has nothing new
	s.put(boundPod("two", "x"))
	want("two false")
}
