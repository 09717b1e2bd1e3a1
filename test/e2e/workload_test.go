package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/sink/journal"
)

// twoReplicas is the manifest of a Deployment: a pod is ready half a second after its start, and
// during an update two pods are available.
func twoReplicas(version string) string {
	return `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  strategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web, version: ` + version + `}}
    spec:
      terminationGracePeriodSeconds: 2
      containers:
      ` + container("main", `ready, 500ms, serve, ":8080", forever`, "readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1, timeoutSeconds: 10}") + "\n"
}

// oneJob is the manifest of a Job.
func oneJob(args string, more ...string) string {
	return `apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec:
  backoffLimit: 0
  template:
    spec:
      restartPolicy: Never
      ` + strings.Join(append(more, "containers:"), "\n      ") + `
      ` + container("main", args, scratchMount) + "\n"
}

// ofWorkload returns the pods of a workload that the agent has reported last, and excuses them: no
// manifest names them, so the invariants do not know them.
func (s *stage) ofWorkload(name string) (pods []*v1.Pod) {
	s.Helper()
	all, err := journal.Read(filepath.Join(s.root, "journal.jsonl"))
	s.must(err)
	for key, e := range all {
		if strings.HasPrefix(key.Name, name+"-") {
			pods = append(pods, e.Pod)
			s.history.Excuse(key.Name)
		}
	}
	return pods
}

// awaitVersion returns once the Deployment web has two ready pods of a version, and no other ones.
// From then on, or from the start with whole, two pods of any version have to be ready.
func (s *stage) awaitVersion(version string, whole bool) (names []string) {
	s.Helper()
	s.eventually(func() error {
		names = nil
		ready, current := 0, 0
		pods := s.ofWorkload("web")
		for _, p := range pods {
			isReady := slices.ContainsFunc(p.Status.Conditions, func(c v1.PodCondition) bool { return c.Type == v1.PodReady && c.Status == v1.ConditionTrue })
			if isReady {
				ready++
			}
			if isReady && p.Labels["version"] == version {
				current++
				names = append(names, p.Name)
			}
		}
		if whole && ready < 2 {
			s.Errorf("during the update to %s, %d pods are ready", version, ready)
		}
		if current != 2 || len(pods) != 2 {
			return fmt.Errorf("%d of %d pods are ready and of version %s", current, len(pods), version)
		}
		return nil
	})
	return names
}

// TestWorkloads_DeploymentRollsOutAndGoes_JobCompletes: a Job runs to completion with runonce. A
// Deployment starts, is updated pod by pod, also by another agent, and goes with its file.
func TestWorkloads_DeploymentRollsOutAndGoes_JobCompletes(t *testing.T) {
	s := parallelStage(t)
	s.write("job.yaml", oneJob("append, /x/once", s.scratchVolume()))
	r := s.runonce(0, "--until", "done")
	s.ofWorkload("once")
	if len(r.Workloads) != 1 || r.Workloads[0].Result != "done" || !r.Summary.OK {
		t.Errorf("report: %+v", r)
	}
	if r = s.runonce(0, "--until", "done"); s.stamps("once") != 1 {
		t.Errorf("the Job ran %d times: %+v", s.stamps("once"), r)
	}
	s.runonce(0, "--down")
	s.remove("job.yaml")

	s.write("web.yaml", twoReplicas("one"))
	a := s.serve()
	first := s.awaitVersion("one", false)
	s.write("web.yaml", twoReplicas("two"))
	a.await("Changing pods of workload", "action=remove")
	a.leave()
	a = s.serve()
	second := s.awaitVersion("two", true)
	if slices.ContainsFunc(first, func(name string) bool { return slices.Contains(second, name) }) {
		t.Errorf("pods of both versions have one name: %v, %v", first, second)
	}
	s.remove("web.yaml")
	s.eventually(func() error {
		if pods := s.ofWorkload("web"); len(pods) > 0 {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	})
	s.eventually(func() error {
		if left := s.filesBelow(filepath.Join(s.root, "workloads")); len(left) > 0 {
			return fmt.Errorf("%d states are left", len(left))
		}
		return nil
	})
	a.leave()
}
