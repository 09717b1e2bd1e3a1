//go:build full

package kube

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/clock"
	"github.com/nodectl/nodectl/test/wait"
)

// probed is a pod whose probes run every second.
const probed = `apiVersion: v1
kind: Pod
metadata: {name: NAME}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: ` + busybox + `
    command: [sh, -c, "` + sleeps + `"]
    readinessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10}
    livenessProbe: {exec: {command: ["true"]}, periodSeconds: 1, timeoutSeconds: 10}
`

// TestF14_ClockJumps: the agent's wall clock is set, by an hour and by years, back and forth,
// while the agent runs and while it does not. Running pods run on and stay ready. New pods
// start and crashed ones restart without delay. With a clock that is an hour wrong the node
// stays in its cluster. The runtime's clock stays: the age of an exit is wrong by as much.
//
// Shows: F14
func TestF14_ClockJumps(t *testing.T) {
	program := filepath.Join(t.TempDir(), "nodectl")
	clock.Build(t, program)
	w, is := bareWorld(t), clock.New(t)
	w.importImages()
	w.program, w.env = program, []string{is.Env()}
	w.file = filepath.Join(t.TempDir(), "node.kubeconfig")
	w.serve("--bootstrap-kubeconfig", w.cluster.BootstrapKubeconfig(t), "--max-container-restart-period", "5s")
	w.manifest("fixed", strings.ReplaceAll(probed, "NAME", "fixed"))
	w.apply(strings.ReplaceAll(probed, "NAME", "stands"))
	w.apply(strings.Replace(restarting, "sleep 3", "sleep 1", 1))
	w.awaitReady("stands", "fixed-"+w.name)
	lives := []string{"stands", "fixed-" + w.name}
	heard := func() { // its sources are ready
		w.Helper()
		w.await(func() error {
			for _, name := range append(lives, "falls") {
				if p := w.report(name); p == nil || len(p.Status.ContainerStatuses) == 0 {
					return fmt.Errorf("it knows of no %s", name)
				}
			}
			return nil
		})
	}
	heard()
	first := map[string]string{}
	for _, name := range lives {
		first[name] = w.life(name)
	}

	const year = 365 * 24 * time.Hour
	for i, to := range []struct {
		ahead time.Duration
		away  bool // while the agent does not run
	}{
		{ahead: time.Hour},
		{ahead: -time.Hour}, // two hours back
		{ahead: 0},
		{ahead: 13 * year}, // beyond 2038, and no certificate is valid any more
		{ahead: -10 * year},
		{ahead: time.Hour, away: true},
		{ahead: -time.Hour, away: true},
		{ahead: 0, away: true},
	} {
		what := fmt.Sprintf("clock set to %s, agent away %t", to.ahead, to.away)
		if to.away {
			w.agent.Kill(t)
			is.Set(to.ahead)
			w.agent.Start(t)
			heard()
		} else {
			is.Set(to.ahead)
		}
		begun, falls := time.Now(), w.report("falls").Status.ContainerStatuses[0].RestartCount
		name := "new-" + strconv.Itoa(i)
		w.manifest(name, shell(name, sleeps))
		w.await(func() error {
			if p := w.report(name + "-" + w.name); p == nil || p.Status.Phase != v1.PodRunning {
				return errNotYet
			}
			return nil
		})
		w.unmanifest(name)
		w.await(func() error {
			if p := w.report(name + "-" + w.name); p != nil {
				return errNotYet
			}
			if now := w.report("falls").Status.ContainerStatuses[0].RestartCount; now == falls {
				return fmt.Errorf("%d restarts and no more", falls)
			}
			return nil
		})
		for _, name := range lives { // several rounds of probes later
			if p := w.report(name); !ready(p) || w.life(name) != first[name] {
				t.Errorf("%s: %s was %s, is %s, ready %t", what, name, first[name], w.life(name), ready(p))
			}
		}
		if to.ahead.Abs() <= time.Hour {
			w.pod("run-"+strconv.Itoa(i), sleeps)
			w.awaitNode("Ready", "True")
		}
		t.Logf("%s: took %s", what, time.Since(begun).Round(100*time.Millisecond))
	}
	// The lease uses the node's clock, and is right again.
	begun := time.Now()
	w.await(func() error {
		at, err := time.Parse(time.RFC3339, w.kubectl("get", "lease", "-n", "kube-node-lease", w.name, "-o", "jsonpath={.spec.renewTime}"))
		if err == nil && (at.Before(begun.Add(-time.Second)) || at.After(begun.Add(2*wait.Limit))) {
			err = fmt.Errorf("renewed at %s", at)
		}
		return err
	})
	for _, name := range lives {
		w.awaitOutput("True 0", "get", "pod", name, "-o", `jsonpath={.status.conditions[?(@.type=="Ready")].status} {.status.containerStatuses[0].restartCount}`)
	}
}

// report returns a pod as the agent itself reports it; nil for none.
func (w *world) report(name string) *v1.Pod {
	w.Helper()
	var list v1.PodList
	out, err := w.nodectl("get", "pods", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &list)
	}
	if err != nil {
		w.Fatalf("nodectl get pods: %v: %s", err, out)
	}
	for i := range list.Items {
		if list.Items[i].Name == name {
			return &list.Items[i]
		}
	}
	return nil
}

func ready(p *v1.Pod) bool {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == v1.PodReady {
			return c.Status == v1.ConditionTrue
		}
	}
	return false
}

// life names the current run of a pod's container.
func (w *world) life(name string) string {
	w.Helper()
	c := w.report(name).Status.ContainerStatuses[0]
	return fmt.Sprint(c.ContainerID, " ", c.RestartCount)
}
