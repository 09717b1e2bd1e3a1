//go:build full

package e2e

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
)

// hostile is a probe target that misbehaves, and a record of its requests.
type hostile struct {
	*httptest.Server
	asked [5]atomic.Int32 // by the place in hostilePaths
	sent  atomic.Int64    // most bytes of one huge answer
}

var hostilePaths = []string{"/hang", "/trickle", "/huge", "/redirect", "/reset"}

func newHostile(t *testing.T) *hostile {
	h := &hostile{}
	end := make(chan struct{}) // closed when the test ends
	trickle := func(w http.ResponseWriter, q *http.Request, pause time.Duration) {
		tick := time.NewTicker(pause)
		defer tick.Stop()
		for {
			select {
			case <-end:
				return
			case <-q.Context().Done():
				return
			case <-tick.C:
				_, _ = io.WriteString(w, "x")
				_ = http.NewResponseController(w).Flush()
			}
		}
	}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if i := slices.Index(hostilePaths, q.URL.Path); i >= 0 {
			h.asked[i].Add(1)
		}
		switch q.URL.Path {
		case "/hang":
			trickle(w, q, time.Hour)
		case "/trickle":
			trickle(w, q, 50*time.Millisecond)
		case "/huge":
			chunk, total := make([]byte, 64<<10), int64(0)
			for total < 1<<30 {
				n, err := w.Write(chunk)
				if total += int64(n); err != nil {
					break
				}
			}
			for most := h.sent.Load(); total > most && !h.sent.CompareAndSwap(most, total); most = h.sent.Load() {
			}
		case "/redirect":
			http.Redirect(w, q, "http://169.254.169.254/latest/meta-data", http.StatusFound)
		case "/reset":
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				_ = c.(*net.TCPConn).SetLinger(0)
				_ = c.Close()
			}
		}
	}))
	h.Config.ErrorLog = log.New(io.Discard, "", 0)
	h.Start()
	t.Cleanup(func() { close(end); h.Close() })
	return h
}

// TestF80_HostileTargets: a probe whose target hangs, trickles or resets fails. The prober
// does not read a gigabyte and does not follow a redirect to another host: both are a
// success. Each affects its own container only, and not the agent.
//
// Shows: F80
func TestF80_HostileTargets(t *testing.T) {
	s := parallelStage(t)
	h := newHostile(t)
	host, port, err := net.SplitHostPort(h.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	var containers []string
	for _, path := range hostilePaths {
		containers = append(containers, container(path[1:], "forever", fmt.Sprintf(
			"readinessProbe: {httpGet: {host: %q, port: %s, path: %s}, periodSeconds: 1, timeoutSeconds: 1, failureThreshold: 1}", host, port, path)))
	}
	s.write("web.yaml", manifest("web", append(containers, container("calm", "forever")), "hostNetwork: true"))
	s.serve()
	names := []string{"calm", "hang", "huge", "redirect", "reset", "trickle"}
	was := s.awaitRunning("web", slices.Clone(names)...)
	s.eventually(func() error {
		for i, path := range hostilePaths {
			if n := h.asked[i].Load(); n < 3 {
				return fmt.Errorf("%s was asked for %d times", path, n)
			}
		}
		return nil
	})
	s.awaitStatus("web", "what each probe says", func(st v1.PodStatus) bool {
		var up []string
		for _, c := range st.ContainerStatuses {
			if c.Ready {
				up = append(up, c.Name)
			}
		}
		slices.Sort(up)
		return slices.Equal(up, []string{"calm", "huge", "redirect"})
	})
	if n := h.sent.Load(); n >= 64<<20 {
		t.Errorf("%d bytes of an answer were taken", n)
	}
	s.write("next.yaml", simple("next"))
	s.awaitReady("next", true)
	s.untouched("web", was)
}

// TestF82_HooksOrderAndDeadline: a hanging preStop ends with the grace period. A failed
// postStart stops its container, which restarts. Sidecars start before the other containers
// and stop after them. A pod past its deadline ends.
//
// Shows: F82
func TestF82_HooksOrderAndDeadline(t *testing.T) {
	s := parallelStage(t)
	s.write("pre.yaml", manifest("pre", []string{
		container("main", `term, "7", print, armed, forever`, "lifecycle: {preStop: {exec: {command: [/app, forever]}}}"),
		container("side", `term, "8", print, armed, forever`),
	}, "terminationGracePeriodSeconds: 4"))
	s.write("post.yaml", manifest("post", []string{container("main", "append, /x/post, forever", scratchMount,
		`lifecycle: {postStart: {exec: {command: [/app, exit, "3"]}}}`)}, s.scratchVolume()))
	s.excuse("post") // the agent stops its container
	s.write("order.yaml", manifest("order", []string{container("main", `term, "0", sleep, 300ms, print, armed, forever`)},
		"terminationGracePeriodSeconds: 10", "initContainers:",
		container("first", "print, armed, forever", "restartPolicy: Always", `startupProbe: {exec: {command: [/app, exists, /app]}, periodSeconds: 1}`),
		container("init", "sleep, 100ms"),
		container("second", "print, armed, forever", "restartPolicy: Always")))
	dead := func(name, deadline string) {
		s.write(name+".yaml", manifest(name, []string{container("main", "forever")}, "activeDeadlineSeconds: "+deadline))
		s.excuse(name)
	}
	dead("dead", "15")
	s.serve()

	s.awaitLog("pre", "main", 0, "armed")
	s.awaitLog("pre", "side", 0, "armed")
	s.awaitReady("pre", true)
	asked := time.Now()
	s.remove("pre.yaml")
	s.awaitGone("pre")
	main, side := s.awaitEnded("pre", "main", 1), s.awaitEnded("pre", "side", 1)
	if len(main) != 1 || len(side) != 1 || main[0].exit != 7 || side[0].exit != 8 {
		t.Fatalf("main ended as %+v, side as %+v", main, side)
	}
	if took := main[0].to.Sub(asked); took < 3500*time.Millisecond {
		t.Errorf("a hook that hangs held its container for %s, its grace is 4s", took)
	}
	if !side[0].to.Before(main[0].to) {
		t.Errorf("the container beside it ended at %s, after %s", side[0].to, main[0].to)
	}

	s.awaitStatus("post", "its hook failed", func(st v1.PodStatus) bool {
		c := containerStatus(st, "main")
		return c.RestartCount >= 1 && c.State.Waiting != nil
	})
	s.awaitEnded("post", "main", 1)

	for _, c := range []string{"first", "second", "main"} {
		s.awaitLog("order", c, 0, "armed")
	}
	s.awaitReady("order", true)
	s.remove("order.yaml")
	s.awaitGone("order")
	of := make(map[string]life)
	for _, c := range []string{"first", "init", "second", "main"} {
		all := s.awaitEnded("order", c, 1)
		if len(all) != 1 {
			t.Fatalf("lives of %s: %+v", c, all)
		}
		of[c] = all[0]
	}
	for _, pair := range [][2]time.Time{
		{of["first"].from, of["init"].from}, {of["init"].to, of["second"].from}, {of["second"].from, of["main"].from},
		{of["main"].to, of["second"].to}, {of["second"].to, of["first"].to},
	} {
		if pair[1].Before(pair[0]) {
			t.Errorf("the order of %v", of)
		}
	}

	awaitDeadline := func(name string) {
		st := s.awaitPhase(name, v1.PodFailed)
		if st.Reason != "DeadlineExceeded" || !strings.Contains(st.Message, "deadline") {
			t.Errorf("the pod past its deadline: %s", describe(st))
		}
	}
	awaitDeadline("dead")
	// On a busy machine a deadline may pass before the container starts. Then a pod with a
	// longer one shows that the deadline ends a running container.
	name := "dead"
	if !slices.ContainsFunc(s.lives.of(s.name), func(l life) bool { return l.pod == s.full(name) }) {
		name = "later"
		dead(name, "50")
		s.awaitReady(name, true)
		awaitDeadline(name)
	}
	s.awaitEnded(name, "main", 1)
}
