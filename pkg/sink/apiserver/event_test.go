package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

func happened(name, reason, message string) pod.Event {
	return pod.Event{Key: pod.Key{Namespace: "default", Name: name}, UID: "uid-" + name, Type: pod.EventWarning, Reason: reason, Message: message, At: time.Now()}
}

// TestEventsAreCountedAndGathered, with client-go's numbers: a repeated event is
// counted, ten that differ only in their message become one, and after 25 of a pod
// there is one every five minutes.
//
// Shows: Appendix D
func TestEventsAreCountedAndGathered(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		for range 5 {
			e := happened("one", "BackOff", "same")
			e.Annotations = map[string]string{"starved_resource": "memory"}
			n.Event(e)
			pass(time.Second)
		}
		if len(n.events) != 1 || len(n.calls(http.MethodPost, "")) != 1 {
			t.Errorf("%d events", len(n.events))
		}
		for _, e := range n.events {
			if e.Count != 5 || e.Source.Component != "kubelet" || e.Source.Host != "n1" || e.InvolvedObject.UID != "uid-one" || e.Annotations["starved_resource"] != "memory" {
				t.Errorf("event %+v", e)
			}
		}
		for i := range 100 {
			n.Event(happened("two", "Unhealthy", fmt.Sprint("words ", i)))
			pass(100 * time.Millisecond)
		}
		if sent := len(n.calls("", "")); sent > 5+26 {
			t.Errorf("%d requests", sent)
		}
		gathered := 0
		for _, e := range n.events {
			if strings.HasPrefix(e.Message, "(combined from similar events)") {
				gathered++
			}
		}
		if gathered != 1 {
			t.Errorf("%d gathered", gathered)
		}
	})
}

// TestF70_EventsWaitAndAreBounded: a hundred events survive an outage of a minute; of
// too many the oldest are dropped; an event that the server does not accept for two
// minutes is lost.
//
// Shows: F70
func TestF70_EventsWaitAndAreBounded(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.says(func(call) (int, http.Header) { return http.StatusServiceUnavailable, nil })
		for i := range 100 {
			n.Event(happened(fmt.Sprint("p", i), "Started", "x"))
		}
		pass(time.Minute)
		n.says(nil)
		pass(time.Minute)
		if len(n.events) != 100 {
			t.Errorf("%d events", len(n.events))
		}
		n.says(func(call) (int, http.Header) { return -1, nil })
		for i := range 3 * maxQueued {
			n.Event(happened(fmt.Sprint("q", i), "Started", "x"))
		}
		pass(time.Second)
		if len(n.queue.events) != maxQueued {
			t.Errorf("%d events wait", len(n.queue.events))
		}
		n.says(nil)
		pass(10 * time.Minute)
		if _, newest := n.events[nameOf(n, fmt.Sprint("q", 3*maxQueued-1))]; !newest || len(n.events) < 100+maxQueued || len(n.events) > 102+maxQueued {
			t.Errorf("%d events, the newest among them: %t", len(n.events), newest)
		}
		if strings.Count(n.log.String(), "\n") != 1 || !strings.Contains(n.log.String(), "events=") {
			t.Errorf("log:\n%s", n.log.String())
		}
	})
}

func nameOf(n *node, pod string) string {
	for name, e := range n.events {
		if e.InvolvedObject.Name == pod {
			return name
		}
	}
	return ""
}

// TestEventThatIsRefusedIsNotTriedAgain, and one whose earlier occurrence is gone is
// created.
func TestEventThatIsRefusedIsNotTriedAgain(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.says(func(call) (int, http.Header) { return http.StatusForbidden, nil })
		n.Event(happened("one", "Started", "x"))
		pass(time.Hour)
		if sent := len(n.calls("", "")); sent != 1 {
			t.Errorf("%d requests", sent)
		}
		n.says(nil)
		n.Event(happened("two", "BackOff", "x"))
		pass(time.Second)
		clear(n.events)
		n.Event(happened("two", "BackOff", "x"))
		pass(time.Second)
		if len(n.events) != 1 {
			t.Errorf("%d events", len(n.events))
		}
	})
}

// TestEventsAreLimited by their own rate.
func TestEventsAreLimited(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		for i := range 25 {
			n.Event(happened(fmt.Sprint("p", i), "Started", strings.Repeat("x", 5000)))
		}
		pass(10*time.Second + 100*time.Millisecond)
		if sent := len(n.calls("", "")); sent < 24 || sent > 25 {
			t.Errorf("%d requests in ten seconds", sent)
		}
		pass(time.Minute)
		for _, e := range n.events {
			if len(e.Message) > maxMessage {
				t.Errorf("%d bytes", len(e.Message))
			}
		}
		if len(n.events) != 25 {
			t.Errorf("%d events", len(n.events))
		}
	}, func(c *Config) { c.EventQPS, c.EventBurst = 2, 5 })
}

// TestEventsGiveWay: Normal events are held until no status arrives any more, and not
// forever; a warning is sent at once, with all events before it.
func TestEventsGiveWay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		normal := func(reason string) {
			e := happened("one", reason, "x")
			e.Type = pod.EventNormal
			n.Event(e)
		}
		p := n.bound("one")
		restarts := int32(0)
		busy := func(d time.Duration) {
			for end := time.Now().Add(d); time.Now().Before(end); restarts++ {
				n.tell(p, restarted(restarts))
				pass(100 * time.Millisecond)
			}
		}
		has := func(want int, when string) {
			t.Helper()
			n.server.mu.Lock()
			defer n.server.mu.Unlock()
			if len(n.events) != want {
				t.Errorf("%s: %d events, want %d", when, len(n.events), want)
			}
		}
		busy(time.Second)
		normal("Pulled")
		busy(5 * time.Second)
		has(0, "while statuses come")
		pass(eventCalm + time.Second)
		has(1, "when none has come for a while")
		busy(time.Second)
		normal("Created")
		busy(eventYield + time.Second)
		has(2, "late enough")
		normal("Started")
		busy(time.Second)
		has(2, "the next one")
		n.Event(happened("one", "Unhealthy", "x"))
		busy(time.Second)
		has(4, "after a warning")
	})
}

// TestF75_EventsOfPodsWithOneName: an event of a static pod names its hash, by which
// kubectl finds it; an event of the API pod whose name it took keeps that pod's UID.
//
// Shows: F75, C-1.13
func TestF75_EventsOfPodsWithOneName(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.tell(staticPod("one", "h"), runningStatus(), ofFile)
		n.Event(happened("one", "Killing", "the pod of the API server"))
		of := happened("one", "Started", "the static pod")
		of.UID = "static-uid"
		n.Event(of)
		pass(time.Minute)
		got := map[string]string{}
		for _, e := range n.events {
			got[e.Reason] = string(e.InvolvedObject.UID)
		}
		if got["Killing"] != "uid-one" || got["Started"] != "h" {
			t.Errorf("events are of %v", got)
		}
	})
}
