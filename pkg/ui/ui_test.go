package ui

import (
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/sorted"
)

var update = flag.Bool("update", false, "rewrite golden files")

// golden compares text with testdata/NAME.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func origin(source, location, file string, line int) pod.Origin {
	return pod.Origin{Source: source, Location: location, File: file, Line: line}
}

func spec(name string, o pod.Origin) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)}}
	return &pod.Spec{Key: pod.KeyOf(p), Origin: o, Pod: p, Hash: "v1-" + name}
}

// samplePlan is the plan that docs and users see first.
func samplePlan() forecast.Forecast {
	since := time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC)
	web := spec("web-n1", origin("file", "a/", "a/web.yaml", 1))
	metrics := spec("metrics-n1", origin("file", "a/", "a/metrics.yaml", 1))
	old := spec("old-n1", origin("file", "a/", "a/old.yaml", 4))
	return forecast.Forecast{
		State: &podconfig.Merged{
			Pods: sorted.Of(metrics, web),
			Layers: []podconfig.LayerState{
				{Name: "file:a/", Source: "file", Location: "a/", Ready: true, Pods: 3},
				{Name: "http:https://cfg/pods.yaml", Source: "http", Location: "https://cfg/pods.yaml", Ready: true, Pods: 2, Error: "timeout", Since: since},
			},
			Conflicts: []podconfig.Conflict{{Key: web.Key, Winner: web.Origin, Loser: origin("http", "https://cfg/pods.yaml", "pods.yaml#2", 0), Reason: "earlier layer wins"}},
			Problems:  []pod.Problem{{File: "a/broken.yaml", Line: 14, Column: 9, Path: "spec.containers[0].workdir", Msg: `unknown field "workdir" (did you mean "workingDir"?)`}},
		},
		Changes: []forecast.Change{
			{Op: podconfig.ADD, Key: metrics.Key, New: metrics, Source: "file", Origin: metrics.Origin, UID: metrics.UID()},
			{Op: podconfig.UPDATE, Key: web.Key, New: web, Source: "file", Origin: web.Origin, UID: web.UID(), RestartContainers: []string{"nginx"}, Reason: "image changed",
				Fields:  []podspec.FieldChange{{Path: "spec.containers[nginx].image", Old: "nginx:1.27.1", New: "nginx:1.27.3"}},
				Resizes: []podspec.ContainerResize{{Container: "proxy", Resources: []v1.ResourceName{"cpu", "memory"}}}},
			{Op: podconfig.REMOVE, Key: old.Key, Old: old, Source: "file", Origin: old.Origin, UID: old.UID(), Grace: 30},
		},
		Unchanged: 2,
	}
}

// planned is the time at which samplePlan is shown.
func planned() time.Time { return time.Date(2026, 11, 20, 13, 0, 0, 0, time.UTC) }

func TestPlanAsTheContractShowsIt(t *testing.T) {
	t.Parallel()
	plain := New(io.Discard, Screen{})
	golden(t, "plan.txt", plain.Plan(NewMergePlan(samplePlan()), false, planned()))
	golden(t, "plan-wide.txt", plain.Plan(NewMergePlan(samplePlan()), true, planned()))
	doc, err := JSON(NewMergePlan(samplePlan()))
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.json", doc)
}

func TestPlanOfNothing(t *testing.T) {
	t.Parallel()
	f := forecast.Forecast{State: &podconfig.Merged{}, Unchanged: 2}
	if got, want := New(io.Discard, Screen{}).Plan(NewMergePlan(f), false, planned()), "Plan: nothing to change, 2 unchanged\n"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	doc, err := JSONLine(NewMergePlan(f))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`"sources":[]`, `"changes":[]`, `"conflicts":[]`, `"rejected":[]`, `"changed":false`, `"add":0`} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks %s: %s", want, doc)
		}
	}
}

func TestPlanShowsWhatStaysTheSame(t *testing.T) {
	t.Parallel()
	resized := []podspec.ContainerResize{{Container: "app", Resources: []v1.ResourceName{"cpu", "memory"}}, {Container: "side", Resources: []v1.ResourceName{"cpu"}}}
	for _, c := range []struct {
		restart PlanRestart
		fields  int
		want    string
	}{
		{PlanRestart{}, 1, "restart: none"},
		{PlanRestart{Containers: []string{"a", "b"}, Reason: "image changed"}, 1, "restart: containers a, b"},
		{PlanRestart{Pod: true, Reason: "hostNetwork changed"}, 1, "restart: pod (hostNetwork changed)"},
		{PlanRestart{Resize: resized}, 1, "resize: container app (cpu, memory), container side (cpu)"},
		{PlanRestart{Containers: []string{"a"}, Reason: "image changed", Resize: resized[1:]}, 1, "restart: container a; resize: container side (cpu)"},
		{PlanRestart{Containers: []string{"a"}, Reason: "the hash of the container differs"}, 0, "restart: container a (the hash of the container differs)"},
	} {
		if got := RestartText(c.restart, c.fields == 0); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

func TestFieldValues(t *testing.T) {
	t.Parallel()
	v := New(io.Discard, Screen{})
	got := v.Fields([]podspec.FieldChange{
		{Path: "metadata.labels[a]", Old: "", New: "x"},
		{Path: "metadata.labels[b]", Old: "x", New: ""},
		{Path: "secret/s.data[k]", Old: podspec.Redacted(12), New: podspec.Redacted(16)},
		{Path: "spec.x", Old: "a\x1b[31m\nb", New: "\u202egnp.exe"},
	})
	want := []string{
		`        metadata.labels[a]    (none) -> x`,
		`        metadata.labels[b]    x -> (none)`,
		`        secret/s.data[k]      (redacted, 12 bytes -> 16 bytes)`,
		`        spec.x                a\x1b[31m\nb -> \u202egnp.exe`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestValuesAreCutInTheirMiddleOnATerminalOnly(t *testing.T) {
	t.Parallel()
	long := []podspec.FieldChange{{Path: "spec.containers[web].image", Old: "registry.example/team/project/web:1", New: "registry.example/team/project/web:2"}}
	if got := New(io.Discard, Screen{}).Fields(long)[0]; !strings.Contains(got, long[0].Old+" -> "+long[0].New) {
		t.Errorf("cut in a pipe: %s", got)
	}
	got := New(io.Discard, Screen{Width: 80}).Fields(long)[0]
	if n := len([]rune(got)); n > 80 {
		t.Errorf("%d cells on a terminal of 80: %s", n, got)
	}
	if !strings.Contains(got, "registry") || !strings.Contains(got, "…") || !strings.HasSuffix(got, "web:2") {
		t.Errorf("not cut in the middle: %s", got)
	}
}

func TestColourOnlyWhereAsked(t *testing.T) {
	t.Parallel()
	plan := NewMergePlan(samplePlan())
	if got := New(io.Discard, Screen{}).Plan(plan, true, planned()); strings.Contains(got, "\x1b") {
		t.Errorf("an escape byte without colour: %q", got)
	}
	coloured := New(io.Discard, Screen{Color: true, Width: 80}).Plan(plan, false, planned())
	if !strings.Contains(coloured, "\x1b[32m") || !strings.Contains(coloured, "\x1b[31m") {
		t.Errorf("no green or no red: %q", coloured)
	}
	if got := strip(coloured); got != New(io.Discard, Screen{Width: 80}).Plan(plan, false, planned()) {
		t.Errorf("colour changes the text:\n%s", got)
	}
}

// strip removes colour.
func strip(s string) string {
	var b strings.Builder
	for s != "" {
		before, after, ok := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !ok {
			break
		}
		_, s, _ = strings.Cut(after, "m")
	}
	return b.String()
}

func TestColorRules(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		mode     string
		terminal bool
		env      map[string]string
		want     bool
	}{
		{"auto", true, nil, true},
		{"auto", false, nil, false},
		{"always", false, map[string]string{"NO_COLOR": "1"}, true},
		{"never", true, map[string]string{"CLICOLOR_FORCE": "1"}, false},
		{"auto", true, map[string]string{"NO_COLOR": "0"}, false},
		{"auto", true, map[string]string{"NO_COLOR": ""}, true},
		{"auto", false, map[string]string{"CLICOLOR_FORCE": "1"}, true},
		{"auto", false, map[string]string{"CLICOLOR_FORCE": "0"}, false},
		{"auto", false, map[string]string{"CLICOLOR_FORCE": "1", "NO_COLOR": "1"}, false},
		{"auto", true, map[string]string{"CLICOLOR": "0"}, false},
		{"auto", true, map[string]string{"TERM": "dumb"}, false},
	} {
		if got := Colored(c.mode, c.terminal, func(k string) string { return c.env[k] }); got != c.want {
			t.Errorf("%s, terminal %v, %v: got %v", c.mode, c.terminal, c.env, got)
		}
	}
}

func TestClean(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"plain äöü 日本":           "plain äöü 日本",
		"a\nb\tc\rd":             `a\nb\tc\rd`,
		"\x1b]0;owned\x07":       `\x1b]0;owned\x07`,
		"\x7f\u009b31m":          `\x7f\u009b31m`,
		"bad\xff\xfeutf8":        `bad\xff\xfeutf8`,
		"\u202eevil\u2066\ufeff": `\u202eevil\u2066\ufeff`,
		"replacement \ufffd":     "replacement \ufffd",
		"so\u00adft\ufff9\u180e": `so\u00adft\ufff9\u180e`,
		"tag\U000e0041":          `tag\U000e0041`,
		"we\u206ab\u206f":        `we\u206ab\u206f`,
		"v\ufe00\ufe0f\u034f":    `v\ufe00\ufe0f\u034f`,
		"v\U000e0100\U000e01ef":  `v\U000e0100\U000e01ef`,
		"\u115f\u1160\u3164":     `\u115f\u1160\u3164`,
		"\uffa0\u180b\u180d":     `\uffa0\u180b\u180d`,
		"\u17b4\u2800\ufff0":     `\u17b4\u2800\ufff0`,
		"\U0001bca0\U0001d173":   `\U0001bca0\U0001d173`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestJSONEscapesWhatATerminalWouldActOn(t *testing.T) {
	t.Parallel()
	got, err := JSONLine(map[string]string{"k": "<a>&\u009b31m\x7f\u202e\x1b日"})
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"k":"<a>&\u009b31m\u007f\u202e\u001b日"}` + "\n"; got != want {
		t.Errorf("got %s want %s", got, want)
	}
}

// A YAML document has no characters that a terminal acts on, and decodes to the same value.
func TestYAML_TextThatReordersOrHides_IsEscaped(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"plain", "two\nlines: 日", "\x1b[31m", "a\u202eb", "a\u00adb", "\u2066x\ufeff", "x: \u200b"} {
		got, err := YAML(map[string]string{"k": text, "other": "value"})
		if err != nil {
			t.Fatal(err)
		}
		if !clean(strings.ReplaceAll(got, "\n", "")) {
			t.Errorf("%q: %q", text, got)
		}
		var back map[string]string
		if err := yaml.Unmarshal([]byte(got), &back); err != nil || back["k"] != text {
			t.Errorf("%q came back as %q: %v", text, back["k"], err)
		}
	}
	if got, _ := YAML(map[string]string{"k": "plain"}); got != "k: plain\n" {
		t.Errorf("a plain document: %q", got)
	}
}

func TestUpdateLines(t *testing.T) {
	t.Parallel()
	v := New(io.Discard, Screen{})
	at := time.Date(2026, 11, 20, 12, 10, 2, 114_000_000, time.UTC)
	web := spec("web-n1", origin("file", "a/", "a/web.yaml", 1))
	newer := spec("web-n1", origin("file", "a/", "a/web.yaml", 1))
	web.Pod.Spec.Containers = []v1.Container{{Name: "nginx", Image: "nginx:1.27.1"}}
	newer.Pod.Spec.Containers = []v1.Container{{Name: "nginx", Image: "nginx:1.27.3"}}
	var text, stream strings.Builder
	for i, u := range []feed.Update{
		{Op: podconfig.ADD, First: true},
		{Op: podconfig.ADD, Pods: []*pod.Spec{spec("metrics-n1", origin("file", "a/", "a/metrics.yaml", 1)), web}},
		{Op: podconfig.UPDATE, Pods: []*pod.Spec{newer}, Old: []*pod.Spec{web}},
		{Op: podconfig.REMOVE, Pods: []*pod.Spec{web}},
		{Op: podconfig.SET, Pods: []*pod.Spec{web, newer}},
		{Op: feed.ERROR, Problem: pod.Problem{File: "a/", Msg: "no such directory"}},
		{Op: feed.ERROR, Problem: pod.Problem{File: "a/", Msg: "no such directory"}, Resolved: true},
		{Op: feed.REJECT, Problem: pod.Problem{File: "a/broken.yaml", Line: 14, Column: 9, Path: "spec.containers[0].workdir", Msg: `unknown field "workdir"`, Hint: "remove it"}},
		{Op: feed.CONFLICT, Key: web.Key, Problem: feed.ConflictProblem(podconfig.Conflict{Key: web.Key, Winner: web.Origin, Loser: origin("file", "a/", "a/web2.yaml", 3), Reason: "the definition in use stays"})},
		{Op: feed.DROPPED, Dropped: 1030},
	} {
		u.Time, u.Source, u.Location = at.Add(time.Duration(i)*time.Second), "file", "a/"
		doc := NewPodUpdate(u, i+1, i == 1)
		text.WriteString(v.Update(doc, true))
		line, err := JSONLine(doc)
		if err != nil {
			t.Fatal(err)
		}
		stream.WriteString(line)
	}
	golden(t, "updates.txt", text.String())
	golden(t, "updates.jsonl", stream.String())
}

// Shows: I8
func TestSecretsAreRedactedInTheSet(t *testing.T) {
	t.Parallel()
	m := &podconfig.Merged{Objects: sorted.Of(&pod.Object{
		Key: pod.Key{Namespace: "default", Name: "s"}, Kind: "Secret", Origin: origin("file", "a", "a/s.yaml", 1),
		Object: &v1.Secret{
			ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "default", Annotations: map[string]string{v1.LastAppliedConfigAnnotation: `{"data":"hunter2"}`}},
			Data:       map[string][]byte{"k": []byte("hunter2")}, StringData: map[string]string{"l": "hunter22"},
		},
	})}
	hidden, err := YAML(NewList(m, false))
	if err != nil {
		t.Fatal(err)
	}
	for _, leak := range []string{"hunter2", "aHVudGVyMg"} {
		if strings.Contains(hidden, leak) {
			t.Errorf("%s is printed:\n%s", leak, hidden)
		}
	}
	for _, want := range []string{"k: (redacted, 7 bytes)", "l: (redacted, 8 bytes)"} {
		if !strings.Contains(hidden, want) {
			t.Errorf("%q is missing:\n%s", want, hidden)
		}
	}
	open, err := YAML(NewList(m, true))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(open, "k: aHVudGVyMg==") {
		t.Errorf("--show-secrets does not show:\n%s", open)
	}
}

// TestNewList_Workload_IsPrintedWithoutStatus: as its author wrote it, with its kind.
func TestNewList_Workload_IsPrintedWithoutStatus(t *testing.T) {
	t.Parallel()
	for kind, object := range map[string]any{
		"Deployment": &appsv1.Deployment{TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: "Deployment"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: appsv1.DeploymentSpec{MinReadySeconds: 7}},
		"CronJob":    &batchv1.CronJob{TypeMeta: metav1.TypeMeta{APIVersion: "batch/v1", Kind: "CronJob"}, ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: batchv1.CronJobSpec{Schedule: "@daily"}},
	} {
		m := &podconfig.Merged{Objects: sorted.Of(&pod.Object{Key: pod.Key{Namespace: "default", Name: "web"}, Kind: kind, Object: object})}
		text, err := YAML(NewList(m, false))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(text, "kind: "+kind) || !strings.Contains(text, "name: web") || strings.Contains(text, "status") || !strings.Contains(text, "minReadySeconds: 7") && !strings.Contains(text, "schedule: '@daily'") {
			t.Errorf("%s:\n%s", kind, text)
		}
		if got, want := Names(m), strings.ToLower(kind)+"/web\n"; got != want {
			t.Errorf("named %q, want %q", got, want)
		}
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	rep := NewRunReport(feed.Report{Pods: []feed.PodReport{
		{Key: pod.Key{Namespace: "default", Name: "web-n1"}, UID: "u1", Phase: "Running", Result: feed.ResultRunning, Status: v1.PodStatus{
			InitContainerStatuses: []v1.ContainerStatus{{Name: "init", State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ExitCode: 0, Reason: "Completed", StartedAt: at, FinishedAt: at}}}},
			ContainerStatuses:     []v1.ContainerStatus{{Name: "web", RestartCount: 1, State: v1.ContainerState{Running: &v1.ContainerStateRunning{StartedAt: at}}}},
		}},
		{Key: pod.Key{Namespace: "default", Name: "bad-n1"}, UID: "u2", Phase: "Pending", Result: feed.ResultFailed, Reason: "ErrImageNeverPull", Message: "not \x1bpresent", Status: v1.PodStatus{
			ContainerStatuses: []v1.ContainerStatus{{Name: "c", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "ErrImageNeverPull"}}}},
		}},
		{Key: pod.Key{Namespace: "default", Name: "slow-n1"}, UID: "u3", Phase: "Pending", Result: feed.ResultTimeout},
	}, Workloads: []feed.WorkloadReport{
		{ObjectKey: pod.ObjectKey{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}, Result: feed.ResultReady},
		{ObjectKey: pod.ObjectKey{Kind: pod.KindJob, Key: pod.Key{Namespace: "default", Name: "import"}}, Result: feed.ResultFailed, Reason: "BackoffLimitExceeded", Message: "Job has reached the specified backoff limit"},
	}})
	rep.SetNotServed([]pod.Key{{Namespace: "default", Name: "web"}})
	doc, err := JSON(rep)
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "report.txt", New(io.Discard, Screen{}).Report(rep))
	golden(t, "report.json", doc)
}

// TestPlan_Rollout_HasItsStepsInOrder: below the changes.
func TestPlan_Rollout_HasItsStepsInOrder(t *testing.T) {
	t.Parallel()
	p := NewMergePlan(forecast.Forecast{State: &podconfig.Merged{}, Rollouts: []forecast.Rollout{{
		ObjectKey: pod.ObjectKey{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}},
		Steps: []forecast.RolloutStep{
			{Action: "add", Pod: pod.Key{Namespace: "default", Name: "web-2-a"}, Reason: "revision 2 replaces revision 1"},
			{Action: "remove", Pod: pod.Key{Namespace: "default", Name: "web-1-a"}, Reason: "revision 2\x1b replaces revision 1"},
		},
		Release: "shop",
		Together: []pod.ObjectKey{
			{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "api"}}, {Kind: pod.KindStatefulSet, Key: pod.Key{Namespace: "default", Name: "db"}},
		},
	}}})
	want := `  rollout deployment default/web
    release shop, with deployment/api, statefulset/db: if a new version of one fails, all are rolled back
    1. add    web-2-a  revision 2 replaces revision 1
    2. remove web-1-a  revision 2\x1b replaces revision 1
Plan: ` + p.Summary.String() + "\n"
	if diff := cmp.Diff(want, New(io.Discard, Screen{}).Plan(p, false, time.Now())); diff != "" {
		t.Error(diff)
	}
}

func TestConversation(t *testing.T) {
	t.Parallel()
	v := New(io.Discard, Screen{})
	got := v.Error("two\nlines\x1b", "do this", "") + v.Notice("n") +
		v.Problem(pod.Problem{File: "manifests/web.yaml", Line: 14, Column: 9, Path: "spec.containers[0].workdir", Msg: `unknown field (did you mean "workingDir"?)`}) +
		v.Conflict(pod.Key{Namespace: "default", Name: "web"}, origin("file", "a", "a/w.yaml", 1), origin("http", "u", "u", 0), "earlier layer wins")
	want := `error: two
error: lines\x1b
  hint: do this
notice: n
error: manifests/web.yaml:14:9: spec.containers[0].workdir: unknown field (did you mean "workingDir"?)
conflict: default/web: http u loses to a/w.yaml:1 (earlier layer wins)
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestPlanSaysSinceWhenARestoredSourceIsStale: the time is that of the last reading, and the
// same in every run.
func TestPlanSaysSinceWhenARestoredSourceIsStale(t *testing.T) {
	t.Parallel()
	read := time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC)
	layer := podconfig.LayerState{Name: "http:u", Source: "http", Location: "u", Restored: true, Pods: 2, Error: "timeout", LastGood: read, Since: time.Now()}
	p := NewMergePlan(forecast.Forecast{State: &podconfig.Merged{Layers: []podconfig.LayerState{layer}}})
	if s := p.Sources[0]; !s.Stale || s.Since != "2026-11-20T12:05:02Z" {
		t.Errorf("stale %t since %q", s.Stale, s.Since)
	}
	layer.LastGood = time.Time{}
	p = NewMergePlan(forecast.Forecast{State: &podconfig.Merged{Layers: []podconfig.LayerState{layer}}})
	if s := p.Sources[0]; !s.Stale || s.Since != "" {
		t.Errorf("of unknown age: stale %t since %q", s.Stale, s.Since)
	}
}
