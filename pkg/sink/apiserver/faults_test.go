package apiserver

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// TestF70_Outage: no answer for an hour. Nothing accumulates, the sink sends few
// requests, and afterwards each pod's newest status once, within limits.
//
// Shows: F70
func TestF70_Outage(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"no answer": -1, "401": 401, "429": 429, "503": 503, "504": 504} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				var pods []*v1.Pod
				for i := range 50 {
					pods = append(pods, n.bound(fmt.Sprintf("p%02d", i)))
					n.tell(pods[i], runningStatus())
				}
				pass(30 * time.Second)
				before := len(n.calls("", ""))
				n.says(func(call) (int, http.Header) { return code, nil })
				for i := range 360 {
					for _, p := range pods {
						n.tell(p, restarted(int32(i)))
					}
					pass(10 * time.Second)
				}
				during := len(n.calls("", "")) - before
				if during > 3600/4+20 {
					t.Errorf("%d requests in an hour", during)
				}
				n.says(nil)
				pass(time.Minute)
				for _, p := range pods {
					patches := 0
					for _, c := range n.calls(http.MethodPatch, p.Name) {
						if c.code == http.StatusOK {
							patches++
						}
					}
					if is := n.pod(p.Name).Status.ContainerStatuses[0].RestartCount; patches != 2 || is != 359 {
						t.Errorf("pod %s: %d patches, %d restarts", p.Name, patches, is)
					}
				}
				var last time.Duration
				for i, c := range n.calls(http.MethodPatch, "") {
					if i > 50+10 && c.code == http.StatusOK && c.at < last {
						t.Error("out of order")
					}
					last = c.at
				}
				if text := n.log.String(); strings.Count(text, "Cannot send pods") != 1 || strings.Count(text, "Sending pods to the API server again") != 1 {
					t.Errorf("log:\n%s", text)
				}
			}, func(c *Config) { c.QPS, c.Burst = 5, 5 })
		})
	}
}

// TestF70_RetryAfter: the sink waits for as long as Retry-After says, even while the
// watch delivers.
//
// Shows: F70
func TestF70_RetryAfter(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		one, two := n.bound("one"), n.bound("two")
		n.says(func(c call) (int, http.Header) {
			if len(n.sent) > 0 {
				return 0, nil
			}
			return http.StatusTooManyRequests, http.Header{"Retry-After": {"20"}}
		})
		n.tell(one, runningStatus())
		pass(time.Second)
		n.tell(two, runningStatus())
		n.change("two", func(*v1.Pod) {})
		pass(time.Minute)
		sent := n.calls("", "")
		if len(sent) < 3 || sent[1].at-sent[0].at < 20*time.Second || n.pod("one").Status.Phase != v1.PodRunning || n.pod("two").Status.Phase != v1.PodRunning {
			t.Errorf("sent %+v", sent)
		}
	})
}

// TestF70_WatchDelivers_EndsTheSinksPause: when the watch delivers, the sink ends its pause.
//
// Shows: F70
func TestF70_WatchDelivers_EndsTheSinksPause(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		one := n.bound("one")
		n.says(func(call) (int, http.Header) { return -1, nil })
		n.tell(one, runningStatus())
		pass(5 * time.Minute)
		n.says(nil)
		n.change("one", func(*v1.Pod) {})
		pass(100 * time.Millisecond)
		if n.pod("one").Status.Phase != v1.PodRunning {
			t.Error("no status was sent although the server answers")
		}
	})
}

// TestF74_OnePodsTroubleIsItsOwn: a status that the server rejects delays no other pod,
// is retried more and more rarely, and is logged once.
//
// Shows: F74
func TestF74_OnePodsTroubleIsItsOwn(t *testing.T) {
	t.Parallel()
	for _, code := range []int{403, 409, 413, 422, 500} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				bad, good := n.bound("bad"), n.bound("good")
				n.says(func(c call) (int, http.Header) {
					if c.name == "bad" && c.method == http.MethodPatch {
						return code, nil
					}
					return 0, nil
				})
				for i := range 60 {
					n.tell(bad, restarted(int32(i)))
					n.tell(good, restarted(int32(i)))
					pass(10 * time.Second)
				}
				if is := n.pod("good").Status.ContainerStatuses[0].RestartCount; is != 59 || len(n.calls("", "good")) != 60 {
					t.Errorf("%d restarts after %d requests", is, len(n.calls("", "good")))
				}
				if tries := len(n.calls("", "bad")); tries < 4 || tries > 80 {
					t.Errorf("%d requests in ten minutes", tries)
				}
				if warned := strings.Count(n.log.String(), "level=WARN"); warned > 2 {
					t.Errorf("warned %d times:\n%s", warned, n.log.String())
				}
				n.says(nil)
				pass(4 * time.Minute)
				if is := n.pod("bad").Status.ContainerStatuses[0].RestartCount; is != 59 {
					t.Errorf("%d restarts", is)
				}
			})
		})
	}
}

// TestF74_Conflict: the sink reads the pod again and sends the status of that moment.
//
// Shows: F74
func TestF74_Conflict(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p := n.bound("one")
		n.says(func(c call) (int, http.Header) {
			if c.method == http.MethodPatch && len(n.sent) == 0 {
				return http.StatusConflict, nil
			}
			return 0, nil
		})
		n.tell(p, runningStatus())
		pass(2 * time.Second)
		sent := n.calls("", "one")
		if len(sent) != 3 || sent[1].method != http.MethodGet || sent[2].code != http.StatusOK {
			t.Errorf("sent %+v", sent)
		}
	})
}

// TestF74_TooLarge: the least important parts are left out until the server accepts the
// status.
//
// Shows: F74
func TestF74_TooLarge(t *testing.T) {
	t.Parallel()
	for name, code := range map[string]int{"413": 413, "etcd": 500} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, n *node) {
				n.says(func(c call) (int, http.Header) {
					if len(c.body) > 2000 {
						return code, http.Header{"Message": {"etcdserver: request is too large"}}
					}
					return 0, nil
				})
				p := n.bound("one")
				st := statusOf(v1.PodRunning, "True", runningState())
				st.ContainerStatuses[0].LastTerminationState = endedState(1, strings.Repeat("x", 12<<10))
				n.tell(p, st)
				pass(time.Second)
				is := n.pod("one").Status
				if is.Phase != v1.PodRunning || is.ContainerStatuses[0].LastTerminationState.Terminated.ExitCode != 1 {
					t.Errorf("status %+v", is)
				}
				if sent := n.calls("", "one"); len(sent) != 2 {
					t.Errorf("%d requests", len(sent))
				}
				pass(time.Minute)
				if sent := n.calls("", "one"); len(sent) != 2 {
					t.Errorf("%d requests", len(sent))
				}
			})
		})
	}
}

// TestF71_ServerSetBack: the server was restored to an older state; the sink reads it
// and sends the status again.
//
// Shows: F71
func TestF71_ServerSetBack(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		p := n.bound("one")
		backup := p.DeepCopy()
		n.tell(p, runningStatus())
		pass(time.Minute)
		n.server.mu.Lock()
		n.server.pods["one"] = backup
		n.rv = 100
		n.shows(backup.DeepCopy(), false)
		n.server.mu.Unlock()
		pass(11 * time.Second)
		if is := n.pod("one").Status; is.Phase != v1.PodRunning {
			t.Errorf("status %+v", is)
		}
	})
}

// TestMessagesHoldNoValues: a server's error repeats the invalid value.
//
// Shows: F74, I8
func TestMessagesHoldNoValues(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		n.says(func(c call) (int, http.Header) {
			return http.StatusUnprocessableEntity, http.Header{"Message": {`spec.env: Invalid value: "hunter2"`}}
		})
		n.tell(n.bound("one"), runningStatus())
		pass(time.Second)
		if text := n.log.String(); strings.Contains(text, "hunter2") || !strings.Contains(text, "422") {
			t.Errorf("log:\n%s", text)
		}
	})
}

// TestUrgentGoesFirst: at the limit, statuses of running pods go before those of
// waiting pods, and no pod waits forever.
func TestUrgentGoesFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, n *node) {
		var pods []*v1.Pod
		for i := range 20 {
			pods = append(pods, n.bound(fmt.Sprintf("p%02d", i)))
		}
		pass(time.Second)
		for i, p := range pods {
			st := statusOf(v1.PodPending, "False", waitingFor("ContainerCreating"))
			if i >= 10 {
				st = runningStatus()
			}
			n.tell(p, st)
		}
		pass(time.Minute)
		sent := n.calls("", "")
		if len(sent) != 20 {
			t.Fatalf("%d requests", len(sent))
		}
		for _, c := range sent[1:9] { // only the first one was known then
			if c.name < "p10" {
				t.Errorf("%s came at %s", c.name, c.at)
			}
		}
		if took := sent[19].at - sent[0].at; took < 9*time.Second || took > 12*time.Second {
			t.Errorf("20 requests at 2 a second took %s", took)
		}
	}, func(c *Config) { c.QPS, c.Burst = 2, 1 })
}
