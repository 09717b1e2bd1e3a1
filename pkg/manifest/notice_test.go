package manifest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// says returns the notices of a file, and fails where anything is wrong with it.
func says(t *testing.T, text string, o Options) string {
	t.Helper()
	f, notices := Parse([]byte(text), o)
	if len(f.Problems) > 0 || len(f.Pods) == 0 {
		t.Fatalf("%d pods, problems %v", len(f.Pods), f.Problems)
	}
	var b strings.Builder
	for _, n := range notices {
		b.WriteString(n.Error() + "\n")
	}
	return b.String()
}

// TestRule0_IgnoredFieldsGetANotice: each field that is set and has no effect gets one notice, with
// its place. Fields that an API server sets, empty values, metadata and a status get none.
func TestRule0_IgnoredFieldsGetANotice(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: v1
kind: Pod
metadata: {name: web, uid: u-1, resourceVersion: "7", generation: 3, ownerReferences: [{apiVersion: v1, kind: ReplicaSet, name: r, uid: x}]}
spec:
  preemptionPolicy: Never
  schedulerName: mine
  topologySpreadConstraints: %s
  affinity:
    podAffinity:
      requiredDuringSchedulingIgnoredDuringExecution:
      - {topologyKey: zone}
  tolerations:
  - {key: a, operator: Exists}
  - {key: b, operator: Exists, effect: NoExecute, tolerationSeconds: 300}
  containers:
  - {name: c, image: i}
status: {phase: Running}
`
	want := `web.yaml:5:3: spec.preemptionPolicy is ignored: nodectl stops no pod to make room for another
web.yaml:6:3: spec.schedulerName is ignored: a static pod is bound to its node without a scheduler
web.yaml:9:5: spec.affinity.podAffinity is ignored: only a scheduler uses it; a kubelet ignores it too
web.yaml:14:51: spec.tolerations[1].tolerationSeconds is ignored: only a cluster's controllers evict pods from a tainted node
`
	if diff := cmp.Diff(want, says(t, fmt.Sprintf(text, "[]"), options("web.yaml"))); diff != "" {
		t.Error(diff)
	}
	all := says(t, fmt.Sprintf(text, "[{maxSkew: 1, topologyKey: zone, whenUnsatisfiable: DoNotSchedule}]"), options("web.yaml"))
	if line := "web.yaml:7:3: spec.topologySpreadConstraints is ignored: "; !strings.Contains(all, line) {
		t.Errorf("not %q:\n%s", line, all)
	}
	links := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {enableServiceLinks: false, containers: [{name: c, image: i}]}\n"
	if got := says(t, links, options("web.yaml")); got != "" {
		t.Errorf("a field that takes effect: %s", got)
	}
	served := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {schedulerName: default-scheduler, enableServiceLinks: true, preemptionPolicy: PreemptLowerPriority, containers: [{name: c, image: i}]}\n"
	if got := says(t, served, options("web.yaml")); got != "" {
		t.Errorf("what a server writes by itself: %s", got)
	}
	bound := options("web.yaml")
	bound.Static = false
	if got := says(t, fmt.Sprintf(text, "[]"), bound); got != "" {
		t.Errorf("a pod that is not static: %s", got)
	}
}

// TestRule0_IgnoredFieldsInAList: the place is the item's, and a file full of them
// is not a page full of notices.
func TestRule0_IgnoredFieldsInAList(t *testing.T) {
	t.Parallel()
	item := func(name, spec string) string {
		return "- {apiVersion: v1, kind: Pod, metadata: {name: " + name + "}, spec: {" + spec + ", containers: [{name: c, image: i}]}}\n"
	}
	many := "tolerations: [" + strings.Repeat("{operator: Exists, effect: NoExecute, tolerationSeconds: 1},", 30) + "]"
	got := says(t, "apiVersion: v1\nkind: List\nitems:\n"+item("a", "schedulerName: x")+item("b", many), options("l.yaml"))
	lines := strings.Split(strings.TrimSpace(got), "\n")
	if !strings.HasPrefix(lines[0], "l.yaml:4:") || !strings.Contains(lines[0], " items[0].spec.schedulerName is ignored") {
		t.Errorf("first: %s", lines[0])
	}
	if last := lines[len(lines)-1]; len(lines) != 1+maxProblems+1 || !strings.HasSuffix(last, ": 10 more fields of this pod are ignored") {
		t.Errorf("%d lines, the last is %s", len(lines), last)
	}
	broken := "apiVersion: v1\nkind: Pod\nmetadata: {name: web}\nspec: {schedulerName: x, containers: []}\n"
	if f, notices := Parse([]byte(broken), options("b.yaml")); len(f.Problems) == 0 || len(notices) > 0 {
		t.Errorf("a rejected pod: %v, notices %v", f.Problems, notices)
	}
}
