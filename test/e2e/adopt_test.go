package e2e

import (
	"slices"
	"syscall"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/criproxy"
	"github.com/nodectl/nodectl/test/node"
)

// An ending is how an agent ends, or is stopped.
type ending string

const (
	killed   ending = "kill -9"
	left     ending = "SIGTERM"
	stood    ending = "SIGSTOP" // and SIGCONT when every thread of it has stopped
	upgraded ending = "upgrade" // killed, and another build starts: only in the full tier
)

// end ends a, or stops it by a signal.
func (how ending) end(a *agent) {
	switch how {
	case stood:
		_ = a.cmd.Process.Signal(syscall.SIGSTOP)
		node.AwaitStill(a.T, a.cmd.Process.Pid)
		_ = a.cmd.Process.Signal(syscall.SIGCONT)
	case left:
		a.asked.Store(true)
		_ = a.cmd.Process.Signal(syscall.SIGTERM)
		<-a.done
	default:
		a.asked.Store(true)
		_ = a.cmd.Process.Kill()
		<-a.done
	}
}

// next returns the agent that serves after a has ended in this way.
func (how ending) next(a *agent, more ...string) *agent {
	a.Helper()
	if how == stood {
		return a
	}
	cmd := a.command(append([]string{"serve", "-f", a.manifests}, more...)...)
	if how == upgraded {
		cmd.Path = a.nextBuild
	}
	return a.stage.start(cmd)
}

// wholePod is a pod with everything that a pod can have: an init container, a sidecar, hooks,
// and probes of all three kinds, which make no calls to the runtime. Each container and each
// hook writes a line to a file when it runs. The liveness probe fails for longer than a busy
// runtime needs to report a killed container, which the agent would stop before.
func (s *stage) wholePod() string {
	mount := "volumeMounts: [{name: x, mountPath: /x}]"
	hooks := func(name string) string {
		return "lifecycle: {postStart: {exec: {command: [/app, append, /x/" + name + "-begins]}}, preStop: {exec: {command: [/app, append, /x/" + name + "-ends]}}}"
	}
	return manifest("web", []string{
		container("main", `append, /x/main, serve, ":8080", forever`, mount, hooks("main"), "ports: [{name: web, containerPort: 8080}]",
			"startupProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, failureThreshold: 30}",
			"readinessProbe: {httpGet: {path: /ready, port: web}, periodSeconds: 1, timeoutSeconds: 10}",
			"livenessProbe: {tcpSocket: {port: web}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 60}"),
	}, s.scratchVolume(),
		"initContainers:", container("init", "append, /x/init", mount),
		container("proxy", `append, /x/proxy, serve, ":9090", forever`, mount, hooks("proxy"), "restartPolicy: Always",
			"startupProbe: {tcpSocket: {port: 9090}, periodSeconds: 1, failureThreshold: 30}"),
		"terminationGracePeriodSeconds: 20")
}

// counted fails unless the files in scratch have the wanted numbers of lines.
func (s *stage) counted(want map[string]int) {
	s.Helper()
	for file, n := range want {
		if got := s.stamps(file); got != n {
			s.Errorf("%s: %d times, want %d", file, got, n)
		}
	}
}

// steady fails if the pod was not ready, or its restart count fell, after it was first ready.
func (s *stage) steady(name string) {
	s.Helper()
	restarts := int32(0)
	for _, st := range s.reported(name) {
		if c := containerStatus(st, "main"); !ready(st) || st.Phase != v1.PodRunning || c.RestartCount < restarts {
			s.Errorf("%s was reported as %s", name, describe(st))
		} else {
			restarts = c.RestartCount
		}
	}
}

// TestB7_AdoptionOfAPodWithEverything: over all endings, one after the other, the agent makes
// no call to the runtime that changes anything and restarts no container. Every observer sees
// the pod as ready.
//
// Shows: B7
func TestB7_AdoptionOfAPodWithEverything(t *testing.T) {
	parallelStage(t).adoptedOver(killed, left, stood, killed)
}

func (s *stage) adoptedOver(endings ...ending) {
	t := s.T
	s.oftenSynced()
	p := s.through(criproxy.Hooks{})
	s.write("web.yaml", s.wholePod())
	a := s.serve()
	s.awaitReady("web", true)
	was := s.awaitRunning("web", "main", "proxy")
	s.quiet(p)
	before := len(p.Mutations())
	for _, how := range endings {
		s.steady("web") // each agent begins a new journal
		how.end(a)
		a = how.next(a)
		a.await("Status of every pod is known", "pods=1")
		for range 2 { // its probes go on
			if st := a.shows("web"); !ready(st) || containerStatus(st, "main").State.Running == nil {
				t.Errorf("after %s the agent shows %s", how, describe(st))
			}
			s.passes(p, 1)
		}
		s.untouched("web", was)
		if all := s.readiness("web"); how != stood && slices.Contains(all, false) { // from its first line on
			t.Errorf("after %s readiness was reported as %v", how, all)
		}
	}
	if made := p.Mutations()[before:]; len(made) > 0 {
		t.Errorf("mutating calls: %v", made)
	}
	s.steady("web")
	s.counted(map[string]int{"init": 1, "proxy": 1, "proxy-begins": 1, "main": 1, "main-begins": 1, "main-ends": 0, "proxy-ends": 0})
}

// shows returns the pod's status that the agent serves on its socket.
func (a *agent) shows(name string) v1.PodStatus {
	a.Helper()
	var list struct{ Items []v1.Pod }
	a.eventually(func() error { return a.ask("/v1/pods", &list) })
	for _, p := range list.Items {
		if p.Name == a.full(name) {
			return p.Status
		}
	}
	a.Errorf("the agent does not show %s", name)
	return v1.PodStatus{}
}
