package invariant

import (
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/test/criproxy"
)

// TestI2_AnEditOfLabelsEndsNoPromise: no container may be ended after an edit that restarts
// nothing. Any other edit, another pod of the name, and a pod that was away in between start
// with no promises.
//
// Shows: I2
func TestI2_AnEditOfLabelsEndsNoPromise(t *testing.T) {
	pod := func(edits ...func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{{Name: "main", Image: "app:1"}}}}
		for _, edit := range edits {
			edit(p)
		}
		return p
	}
	label := func(p *v1.Pod) {
		p.Labels, p.Annotations = map[string]string{"team": "edge"}, map[string]string{"note": "x"}
	}
	image := func(p *v1.Pod) { p.Spec.Containers[0].Image = "app:2" }
	for name, c := range map[string]struct {
		said func(h *History) // second by second, while a life lives that began after the first
		want string           // of a stop after that
	}{
		"nothing is said":         {func(*History) {}, "I2"},
		"labels":                  {func(h *History) { h.Want("web", pod(label)) }, "I2"},
		"labels and back":         {func(h *History) { h.Want("web", pod(label)); tick(); h.Want("web", pod()) }, "I2"},
		"the image":               {func(h *History) { h.Want("web", pod(image)) }, ""},
		"the image, then labels":  {func(h *History) { h.Want("web", pod(image)); tick(); h.Want("web", pod(image, label)) }, ""},
		"labels, then the image":  {func(h *History) { h.Want("web", pod(label)); tick(); h.Want("web", pod(label, image)) }, ""},
		"another pod of the name": {func(h *History) { h.Want("web", pod(func(p *v1.Pod) { p.UID = types.UID("u2") })) }, ""},
		"away and back":           {func(h *History) { h.Away("web"); tick(); h.Want("web", pod()) }, ""},
		"broken":                  {func(h *History) { h.Break("web") }, "I9"},
		"broken, then labels":     {func(h *History) { h.Break("web"); tick(); h.Want("web", pod(label)) }, "I2"},
		"labels, then broken":     {func(h *History) { h.Want("web", pod(label)); tick(); h.Break("web") }, "I9"},
		"broken, then the image":  {func(h *History) { h.Break("web"); tick(); h.Want("web", pod(image)) }, ""},
		"the same pod is altered": {func(h *History) {
			p := pod()
			h.Want("web", p)
			tick()
			image(p)
			h.Want("web", p)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := Scope{History: &History{}}
				s.History.Want("web", pod())
				tick()
				life := Life{ID: "c1", Pod: "web", UID: "u", Name: "main", From: time.Now()}
				tick()
				c.said(s.History)
				tick()
				s.Stops = []criproxy.Made{{Method: "StopContainer", Pod: "web", ID: "c1", Began: time.Now()}}
				got := ""
				for _, v := range s.innocent([]Life{life}) {
					got += v.Promise
				}
				if got != c.want {
					t.Errorf("found %q, want %q", got, c.want)
				}
			})
		})
	}
}

// A terminated pod may not run again either (I4).
//
// Shows: I4
func TestI4_AnEditOfLabelsRevivesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, c := range map[string]struct {
			edit func(*v1.Pod)
			want int
		}{
			"labels": {func(p *v1.Pod) { p.Labels = map[string]string{"a": "b"} }, 1},
			"spec":   {func(p *v1.Pod) { p.Spec.Hostname = "other" }, 0},
		} {
			h := &History{}
			h.Want("web", &v1.Pod{})
			time.Sleep(time.Minute)
			before := line{Time: time.Now(), Pod: &v1.Pod{Status: v1.PodStatus{Phase: v1.PodSucceeded}}}
			before.Pod.Name = "web"
			tick()
			p := &v1.Pod{}
			c.edit(p)
			h.Want("web", p)
			tick()
			after := line{Time: time.Now(), Pod: &v1.Pod{Status: v1.PodStatus{Phase: v1.PodRunning}}}
			after.Pod.Name = "web"
			if found := final([]line{before, after}, h); len(found) != c.want {
				t.Errorf("%s: found %v", name, found)
			}
		}
	})
}

// tick advances fake time by a second.
func tick() { time.Sleep(time.Second) }
