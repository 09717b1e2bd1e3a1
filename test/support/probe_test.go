//go:build linux

package support

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/source"
)

// write puts a file where a container has a mount.
func (n *node) write(container, mount, name, text string) error {
	for _, m := range n.rt.ContainerConfig(n.key, container).GetMounts() {
		if m.GetContainerPath() == mount {
			return os.WriteFile(filepath.Join(m.GetHostPath(), name), []byte(text), 0o644)
		}
	}
	return fmt.Errorf("container %s has no mount %s", container, mount)
}

// ran is how often a command was run in the container under test.
func (n *node) ran(cmd ...string) (times int) {
	for _, e := range n.rt.Execs() {
		if e.Container == n.container && slices.Equal(e.Cmd, cmd) {
			times++
		}
	}
	return times
}

// stop removes the pod's manifest.
func (n *node) stop() { n.src.set(source.File{File: "/m/p.yaml"}) }

// handlers are the proofs of the handlers that probes and hooks share. at is the field of the probe
// or hook.
func handlers(at string, in func(string) string, ran func(*node)) []proof {
	return []proof{
		{
			name: "exec", rows: at + " " + at + ".exec " + at + ".exec.command", container: in("exec: {command: [look, here]}"),
			look: func(n *node) error {
				ran(n)
				return holds(n.ran("look", "here") > 0, "not run: %v", n.rt.Execs())
			},
		},
		{
			name: "http", spec: "hostNetwork: true", container: in("httpGet: {scheme: HTTPS, host: 127.0.0.4, port: $HTTPS, path: /here, httpHeaders: [{name: X-Who, value: me}]}"),
			rows: strings.Join([]string{at + ".httpGet", at + ".httpGet.path", at + ".httpGet.port", at + ".httpGet.host", at + ".httpGet.scheme",
				at + ".httpGet.httpHeaders", at + ".httpGet.httpHeaders[].name", at + ".httpGet.httpHeaders[].value"}, " "),
			look: func(n *node) error {
				ran(n)
				return holds(slices.Contains(n.asked("http"), "https 127.0.0.4 /here me"), "asked: %v", n.asked("http"))
			},
		},
	}
}

func probeProofs() (all []proof) {
	for _, kind := range []string{"liveness", "readiness", "startup"} {
		at := "c." + kind + "Probe"
		in := func(text string) string { return kind + "Probe: {" + text + "}" }
		failing := "look"
		if kind == "startup" { // one success is all it takes
			failing = "'false'"
		}
		of := handlers(at, in, func(n *node) { n.pass(15 * time.Second) })
		of = append(of,
			proof{
				name: "tcp", spec: "hostNetwork: true", rows: at + ".tcpSocket " + at + ".tcpSocket.port " + at + ".tcpSocket.host",
				container: in("tcpSocket: {port: $TCP, host: 127.0.0.3}"),
				look: func(n *node) error {
					n.pass(15 * time.Second)
					return errors.Join(n.came(), is("restarts", n.ctr().GetMetadata().GetAttempt(), 0))
				},
			},
			proof{
				name: "grpc", rows: at + ".grpc " + at + ".grpc.port " + at + ".grpc.service", spec: "hostNetwork: true",
				container: in("grpc: {port: $GRPC, service: shop}"),
				look: func(n *node) error {
					n.pass(25 * time.Second)
					return errors.Join(holds(n.state().Ready, "not ready: %+v", n.state()), is("restarts", n.ctr().GetMetadata().GetAttempt(), 0), holds(slices.Contains(n.asked("grpc"), "shop"), "asked: %v", n.asked("grpc")))
				},
			},
			proof{
				name: "begins after", rows: at + ".initialDelaySeconds", container: in("exec: {command: [look]}, initialDelaySeconds: 30"),
				look: func(n *node) error {
					n.pass(25 * time.Second)
					early := n.ran("look")
					n.pass(30 * time.Second)
					return holds(early == 0 && n.ran("look") > 0, "%d early, %d later", early, n.ran("look"))
				},
			},
			proof{
				name: "period", rows: at + ".periodSeconds", container: in("exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 100"),
				look: func(n *node) error {
					n.pass(30 * time.Second)
					return holds(n.ran("false") > 20, "run %d times", n.ran("false"))
				},
			},
			proof{
				name: "timeout", rows: at + ".timeoutSeconds", container: in("exec: {command: [sleep, '4']}, timeoutSeconds: 6, failureThreshold: 1"),
				look: func(n *node) error {
					n.pass(20 * time.Second)
					s := n.state()
					return holds(n.ran("sleep", "4") > 0 && s.Ready && s.RestartCount == 0, "run %d times, %+v", n.ran("sleep", "4"), s)
				},
			},
			proof{
				name: "failures", rows: at + ".failureThreshold", container: in("exec: {command: [" + failing + "]}, periodSeconds: 1, failureThreshold: 20"),
				look: func(n *node) error {
					n.rt.OnExec(func(critest.Exec) (critest.Behaviour, bool) { return critest.Behaviour{Ends: true, Code: 1}, true })
					n.pass(10 * time.Second)
					early := fails(kind, n)
					n.pass(15 * time.Second)
					return holds(!early && fails(kind, n), "early %v, later %v, asked %d times: %v", early, fails(kind, n), n.ran(strings.Trim(failing, "'")), n.calls(""))
				},
			},
		)
		switch kind {
		case "readiness":
			of = append(of, proof{
				name: "successes", rows: at + ".successThreshold", container: in("exec: {command: ['true']}, periodSeconds: 10, successThreshold: 4"),
				look: func(n *node) error {
					n.pass(25 * time.Second)
					early := n.state().Ready
					n.pass(30 * time.Second)
					return holds(!early && n.state().Ready, "ready early %v, later %v", early, n.state().Ready)
				},
			})
		default:
			of = append(of,
				proof{
					name: "successes", rows: at + ".successThreshold", same: at + ".successThreshold", container: in("exec: {command: ['true']}, successThreshold: 1"),
					look: func(n *node) error {
						n.pass(15 * time.Second)
						return holds(n.state().Ready, "not ready")
					},
				},
				proof{
					name: "grace", rows: at + ".terminationGracePeriodSeconds", container: in("exec: {command: ['false']}, periodSeconds: 1, failureThreshold: 1, terminationGracePeriodSeconds: 7"),
					look: func(n *node) error {
						n.pass(20 * time.Second)
						return holds(len(n.calls("StopContainer default/p")) > 0 && strings.Contains(n.calls("StopContainer default/p")[0], "grace=7"), "stops: %v", n.calls("Stop"))
					},
				})
		}
		for i := range of {
			of[i].name = kind + " probe: " + of[i].name
			of[i].sidecar, of[i].notEphemeral = true, true
		}
		all = append(all, of...)
	}
	return all
}

// fails reports whether the probe's failure has had its effect.
func fails(kind string, n *node) bool {
	if kind == "readiness" {
		s := n.state()
		return s.Started != nil && *s.Started && !s.Ready
	}
	return len(n.calls("StopContainer")) > 0
}

func hookProofs() (all []proof) {
	for _, hook := range []string{"postStart", "preStop"} {
		at := "c.lifecycle." + hook
		in := func(text string) string { return "lifecycle: {" + hook + ": {" + text + "}}" }
		ran := func(n *node) { n.pass(time.Second) }
		if hook == "preStop" {
			ran = func(n *node) { n.stop(); n.pass(time.Minute) }
		}
		of := handlers(at, in, ran)
		of[0].rows += " c.lifecycle"
		of = append(of, proof{
			name: "sleep", rows: at + ".sleep " + at + ".sleep.seconds", container: in("sleep: {seconds: 9}"),
			look: func(n *node) error {
				if hook == "preStop" {
					n.stop()
					n.pass(8 * time.Second)
					early := len(n.calls("StopContainer default/p-n1/main "))
					n.pass(2 * time.Second)
					return holds(early == 0 && len(n.calls("StopContainer default/p-n1/main ")) > 0, "%d stops early: %v", early, n.calls("Stop"))
				}
				n.pass(8 * time.Second)
				early := n.state().State.Running != nil
				n.pass(2 * time.Second)
				return holds(!early && n.state().State.Running != nil, "running early %v, later %v", early, n.state().State.Running != nil)
			},
		})
		for i := range of {
			of[i].name = hook + " hook: " + of[i].name
			of[i].sidecar, of[i].notEphemeral = true, true
		}
		all = append(all, of...)
	}
	return append(all, proof{
		name: "stop signal", sidecar: true, rows: "c.lifecycle.stopSignal", notEphemeral: true, spec: "os: {name: linux}", container: "lifecycle: {stopSignal: SIGUSR1}",
		look: func(n *node) error { return is("signal", n.ctr().GetStopSignal().String(), "SIGUSR1") },
	})
}

// condition is one of the pod's.
func (n *node) condition(kind v1.PodConditionType) v1.PodCondition {
	for _, c := range n.status().Conditions {
		if c.Type == kind {
			return c
		}
	}
	return v1.PodCondition{}
}
