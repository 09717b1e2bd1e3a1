package engine

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
)

// The restored set of a source may be older than the running pods: the agent was killed before it
// wrote the set, or the disk was full. No source that has answered defines the older version.

var errSilent = errors.New("no route to host")

// wrote puts a layer's set on the disk.
func (m *machine) wrote(layer string, pods ...*pod.Spec) {
	m.disk.mu.Lock()
	defer m.disk.mu.Unlock()
	m.disk.sets[layer] = map[string]pod.LastGoodSet{}
	for _, p := range pods {
		m.disk.sets[layer][p.Origin.File] = pod.LastGoodSet{File: p.Origin.File, Pods: []*pod.Spec{p}}
	}
}

// preview returns the forecast of the next agent, from the sets on disk.
func (m *machine) preview(sources ...source.Source) []string {
	m.t.Helper()
	return summary(m.forecast(sources...))
}

func (m *machine) forecast(sources ...source.Source) forecast.Forecast {
	m.t.Helper()
	conn := m.rt.Connect()
	defer conn.Cut()
	records, _ := m.disk.All()
	f, err := forecast.Preview(m.t.Context(), forecast.Options{
		Config:   podconfig.New(podconfig.Config{Sources: sources, Restored: m.disk.restored()}),
		Observer: m.config(conn).Runtime, Records: records, RequireSourceReady: m.config(conn).RequireSourceReady,
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return f
}

func (m *machine) did(t *testing.T, want ...string) {
	t.Helper()
	got := m.rt.Transcript()
	if len(want) == 0 && len(got) > 0 {
		t.Errorf("did\n%s", strings.Join(got, "\n"))
	}
	for _, w := range want {
		if !strings.Contains(strings.Join(got, "\n"), w) {
			t.Errorf("did\n%s\nwant %s", strings.Join(got, "\n"), w)
		}
	}
}

func uid(id string) func(*v1.Pod) { return func(p *v1.Pod) { p.UID = types.UID(id) } }

// Shows: I9
func TestI9_RunningPodIsNotTakenBackToAnOlderSet(t *testing.T) {
	for _, c := range []struct {
		name, source, location string
		runs, wrote            func(*v1.Pod)
	}{
		{"an older image", "file", "/m", image("app:2"), image("app:1")},
		{"another pod of its name, of an API server", "api", "/k", uid("uid-2"), uid("uid-1")},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.disk.keepSets()
				m.src.name = c.source + ":" + c.location
				runs, older := of(c.source, c.location, mkpod("a", c.runs)), of(c.source, c.location, mkpod("a", c.wrote))
				m.src.set(runs)
				m.arrive()
				m.pass(5 * time.Second)
				m.leave()
				m.wrote(m.src.name, older)
				m.src.fail(errSilent)
				m.rt.Reset()
				want := []string{"notice pod default/a stays: " + m.src.name + " could not be read", "unchanged 1"}
				if diff := cmp.Diff(want, m.preview(said{name: m.src.name, err: errSilent})); diff != "" {
					t.Errorf("forecast (-want +got):\n%s", diff)
				}
				m.arrive()
				m.pass(time.Minute)
				m.did(t)
				// An exited container of it still restarts.
				m.rt.Exit(runs.Key, "app", 1)
				m.pass(time.Minute)
				m.did(t, "StartContainer default/a/app attempt=1")
				// The source confirms the restored set: now it counts, though nothing
				// changed.
				m.rt.Reset()
				m.src.set(older)
				m.pass(time.Minute)
				m.did(t, "StopContainer default/a/app")
				if strings.Count(m.rt.State(), "running") != 1 {
					t.Errorf("runtime:\n%s", m.rt.State())
				}
			})
		})
	}
}

// Shows: C-1.2.9
func TestC_1_2_9_RestoredDeletionIsFinished(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("a")))
		m.arrive()
		m.pass(5 * time.Second)
		m.leave()
		at := metav1.NewTime(time.Now())
		m.wrote("api:/k", of("api", "/k", mkpod("a", func(p *v1.Pod) { p.DeletionTimestamp = &at })))
		m.src.fail(errSilent)
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		m.did(t, "StopContainer default/a/app")
		m.want()
	})
}

// Shows: C-1.3.8
func TestC_1_3_8_HeldPodStartsWhenItsSourceSaysTheSame(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.name = "api:/k"
		port := func(p *v1.Pod) {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		}
		web, other := of("api", "/k", mkpod("web", port)), mkpod("other", port)
		m.wrote("api:/k", web)
		m.src.fail(errSilent)
		m.more = newWishes()
		m.more.name = "file:/m"
		m.more.set(other)
		want := []string{"ADD other /m/other.yaml:1", "notice pod default/web does not start until api:/k answers", "unchanged 1"}
		if diff := cmp.Diff(want, m.preview(said{name: "api:/k", err: errSilent}, said{name: "file:/m", files: []source.File{fileOf(other)}})); diff != "" {
			t.Errorf("forecast (-want +got):\n%s", diff)
		}
		m.arrive()
		m.pass(time.Minute)
		m.more.set() // its port is free, but its source has not answered yet
		m.pass(time.Minute)
		if state := m.rt.State(); strings.Contains(state, "default/web") {
			t.Fatalf("runtime:\n%s", state)
		}
		m.src.set(web) // the restored pods: no update names them
		m.pass(2 * time.Minute)
		if state := m.rt.State(); !strings.Contains(state, "default/web") || strings.Contains(state, "default/other") {
			t.Errorf("runtime:\n%s", state)
		}
	})
}

// TestC_1_3_8_UnansweredLaterLayer_DelaysNothing: an earlier layer's definition of a pod
// counts, whatever the later layer it ran from would answer.
//
// Shows: C-1.3.8
func TestC_1_3_8_UnansweredLaterLayer_DelaysNothing(t *testing.T) {
	later := of("http", "u", mkpod("a"))
	earlier := mkpod("a", image("app:2"))
	for _, c := range []struct {
		name   string
		reboot bool
		want   string
	}{{"it runs", false, "StopContainer default/a/app"}, {"it does not run", true, "StartContainer default/a/app"}} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, m *machine) {
				m.disk.keepSets()
				m.more = newWishes()
				m.more.name = "http:u"
				m.more.set(later)
				m.arrive()
				m.pass(5 * time.Second)
				m.leave()
				if c.reboot {
					m.rt.Reboot()
				}
				m.src.set(earlier)
				m.more.fail(errSilent)
				m.rt.Reset()
				m.arrive()
				m.pass(time.Minute)
				m.did(t, c.want)
				if state := m.rt.State(); strings.Count(state, "running") != 1 {
					t.Errorf("runtime:\n%s", state)
				}
			})
		})
	}
}

// TestC_1_3_8_WhatRanFromAnEarlierLayerDoesNotHoldUpWhatDoesNotRun: that layer's last good
// set does not define the pod any more.
//
// Shows: C-1.3.8
func TestC_1_3_8_WhatRanFromAnEarlierLayerDoesNotHoldUpWhatDoesNotRun(t *testing.T) {
	for _, reboot := range []bool{false, true} {
		bubble(t, func(t *testing.T, m *machine) {
			m.disk.keepSets()
			m.src.set(mkpod("a"))
			m.more = newWishes()
			m.more.name = "http:u"
			m.arrive()
			m.pass(5 * time.Second)
			m.leave()
			if reboot {
				m.rt.Reboot()
			}
			m.wrote("file:/m")
			m.src.fail(errSilent)
			m.more.set(of("http", "u", mkpod("a", image("app:2"))))
			m.rt.Reset()
			m.arrive()
			m.pass(time.Minute)
			if reboot {
				m.did(t, "StartContainer default/a/app")
			} else {
				m.did(t)
			}
		})
	}
}

// Shows: C-1.2.9
func TestC_1_2_9_DryRunShowsADeletionUntilThePodHasStopped(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("web")))
		m.arrive()
		m.pass(5 * time.Second)
		at, grace := metav1.NewTime(time.Now()), int64(7)
		gone := of("api", "/k", mkpod("web", func(p *v1.Pod) { p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace }))
		says := said{name: "api:/k", files: []source.File{fileOf(gone)}}
		deletes := []string{"DELETE web /k#default/web", "unchanged 0"}
		shows := func(when string, want []string) {
			t.Helper()
			got := m.preview(says)
			for i := range got { // the test does not compare the changed fields
				got[i], _, _ = strings.Cut(got[i], " metadata.")
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		shows("before", deletes)
		lift := m.rt.Fault(critest.Fault{Method: "StopContainer", Err: errSilent})
		m.src.set(gone)
		m.pass(time.Second)
		m.die() // the record says that it is being deleted, and it still runs
		shows("killed on the way", deletes)
		lift()
		m.arrive()
		m.pass(time.Minute)
		m.want()
		shows("stopped", []string{"unchanged 1"})
	})
}

// TestC_1_31_DeletedPodThatIsGoneTakesNoPort: an API server may show it as long as its
// finalizers stay.
//
// Shows: C-1.31
func TestC_1_31_DeletedPodThatIsGoneTakesNoPort(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		port := func(p *v1.Pod) {
			p.Spec.Containers[0].Ports = []v1.ContainerPort{{ContainerPort: 80, HostPort: 80, Protocol: v1.ProtocolTCP}}
		}
		at := metav1.NewTime(time.Now())
		m.src.name = "api:/k"
		m.src.set(of("api", "/k", mkpod("a", port, func(p *v1.Pod) { p.DeletionTimestamp = &at })), of("api", "/k", mkpod("b", port)))
		m.arrive()
		m.pass(time.Minute)
		if state := m.rt.State(); !strings.Contains(state, "default/b") || strings.Contains(state, "default/a") {
			t.Errorf("runtime:\n%s", state)
		}
		if strings.Contains(m.log.String(), "Pod not admitted") {
			t.Error("a pod was refused")
		}
	})
}

// TestC_1_3_8_StopThatHasBegunIsFinishedAndNotTakenBack: the API server deleted the pod, and
// only the killed agent knew that.
//
// Shows: C-1.3.8
func TestC_1_3_8_StopThatHasBegunIsFinishedAndNotTakenBack(t *testing.T) {
	bubble(t, func(t *testing.T, m *machine) {
		m.disk.keepSets()
		m.src.name = "api:/k"
		web := of("api", "/k", mkpod("web", image("slow-term-2s")))
		m.src.set(web)
		m.arrive()
		m.pass(5 * time.Second)
		m.src.set()
		m.pass(time.Second)
		m.die()
		m.wrote("api:/k", web)
		m.src.fail(errSilent)
		want := []string{"REMOVE web /k#default/web grace=29 (it is already being stopped)", "unchanged 0"}
		if diff := cmp.Diff(want, m.preview(said{name: "api:/k", err: errSilent})); diff != "" {
			t.Errorf("forecast (-want +got):\n%s", diff)
		}
		m.rt.Reset()
		m.arrive()
		m.pass(time.Minute)
		m.want()
		if got := strings.Join(m.rt.Transcript(), "\n"); strings.Contains(got, "RunPodSandbox") {
			t.Errorf("did\n%s", got)
		}
		m.src.set(web) // it is desired again
		m.pass(time.Minute)
		if strings.Count(m.rt.State(), "running") != 1 {
			t.Errorf("runtime:\n%s", m.rt.State())
		}
	})
}
