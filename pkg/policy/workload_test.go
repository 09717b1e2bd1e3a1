package policy_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"

	"sigs.k8s.io/yaml"
)

// workloadOf returns the workload of a kind that text describes. TEMPLATE in it is the spec of
// its pods.
func workloadOf(t testing.TB, kind, template string) *pod.Object {
	t.Helper()
	text := "metadata: {name: web, namespace: default}\nspec: {template: {spec: " + template + "}}"
	if kind == pod.KindCronJob {
		text = "metadata: {name: web, namespace: default}\nspec: {jobTemplate: {spec: {template: {spec: " + template + "}}}}"
	}
	w := pod.NewWorkload(kind)
	if err := yaml.UnmarshalStrict([]byte(text), w); err != nil {
		t.Fatal(err)
	}
	return &pod.Object{
		Key: pod.Key{Namespace: "default", Name: "web"}, Kind: kind, Object: w,
		Origin: pod.Origin{Source: "file", Location: "/m", File: "/m/web.yaml", Line: 7},
	}
}

// TestSource_TemplateThatTheRuleForbids_IsBroken: a privileged template of any kind of workload
// never enters the set, and the problem names the field by its path in the workload.
//
// Shows: D1
func TestSource_TemplateThatTheRuleForbids_IsBroken(t *testing.T) {
	t.Parallel()
	p := edge(t, "podSecurity: {level: baseline}, images: [\"r/*\"], hostPaths: []")
	const bad = `{containers: [{name: c, image: evil, securityContext: {privileged: true}}], volumes: [{name: v, hostPath: {path: /}}]}`
	for _, kind := range pod.WorkloadKinds() {
		good := workloadOf(t, kind, `{containers: [{name: c, image: r/c}], volumes: [{name: v}]}`)
		if f := checkedBy(t, p, "file", "/m", source.File{File: "/m/web.yaml", Objects: []*pod.Object{good}}); len(f.Problems) > 0 || len(f.Objects) != 1 || f.Objects[0] != good {
			t.Errorf("%s, allowed: %v", kind, f.Problems)
		}
		o := workloadOf(t, kind, bad)
		f := checkedBy(t, p, "file", "/m", source.File{File: "/m/web.yaml", Objects: []*pod.Object{o, config(o.Origin)}})
		if len(f.Objects) != 1 || f.Objects[0].Kind != pod.KindConfigMap || !slices.Equal(f.BrokenObjects, []pod.ObjectKey{o.ObjectKey()}) || f.Incomplete || len(f.Broken) > 0 {
			t.Errorf("%s: objects %v, broken %v", kind, f.Objects, f.BrokenObjects)
		}
		_, at := o.Template()
		found := map[string]bool{}
		for _, problem := range f.Problems {
			found[problem.Path] = true
			if problem.File != "/m/web.yaml" || problem.Line != 7 || !strings.HasPrefix(problem.Path, at+".spec") {
				t.Errorf("%s: %+v", kind, problem)
			}
		}
		for _, path := range []string{".spec", ".spec.volumes", ".spec.volumes[0].hostPath.path", ".spec.containers[0].image"} {
			if !found[at+path] {
				t.Errorf("%s: no problem of %s: %v", kind, at+path, f.Problems)
			}
		}
	}
}

func config(o pod.Origin) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: "conf"}, Kind: pod.KindConfigMap, Origin: o}
}

// TestJudgeObject_Workload_IsJudgedAsItsPods: the template has the API's defaults, and the
// workload's namespace and no UID of its author.
//
// Shows: D1
func TestJudgeObject_Workload_IsJudgedAsItsPods(t *testing.T) {
	t.Parallel()
	const restricted = `{securityContext: {runAsNonRoot: true, seccompProfile: {type: RuntimeDefault}}, volumes: [{name: v}], containers: [{name: c, image: r/c, securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}}]}`
	for _, c := range []struct{ name, allow, template, want string }{
		{"restricted", "podSecurity: {level: restricted}, uids: derived", restricted, ""},
		{"not restricted", "podSecurity: {level: restricted}", `{containers: [{name: c}]}`, "spec.template.spec"},
		{"namespace", "namespaces: [shop]", `{containers: [{name: c}]}`, "metadata.namespace"},
		{"priority", "priority: 0", `{priority: 7, containers: [{name: c}]}`, "spec.template.spec.priority"},
		{"a volume that is two", "podSecurity: {level: privileged}", `{volumes: [{name: v, emptyDir: {}, hostPath: {path: /}}], containers: [{name: c}]}`, "spec.template.spec.volumes[0]"},
	} {
		o := workloadOf(t, pod.KindDeployment, c.template)
		problems := edge(t, c.allow).CheckObject(o, "/m")
		switch {
		case c.want == "" && len(problems) > 0, c.want != "" && len(problems) == 0:
			t.Errorf("%s: %v", c.name, problems)
		}
		for _, p := range problems {
			if p.Path != c.want {
				t.Errorf("%s: %+v, want %s", c.name, p, c.want)
			}
		}
	}
	if problems := parsed(t, "rules: [{name: other, sources: [{kind: http}]}]").CheckObject(workloadOf(t, pod.KindJob, `{containers: [{name: c}]}`), "/m"); len(problems) != 1 {
		t.Errorf("without a rule: %v", problems)
	}
}

// A claim template that names a namespace of its own gets no claim there, whatever reads it.
//
// Shows: D1
func TestJudgeObject_ClaimTemplateInAnotherNamespace_IsRefused(t *testing.T) {
	t.Parallel()
	o := workloadOf(t, pod.KindStatefulSet, `{containers: [{name: c}]}`)
	p := edge(t, "namespaces: [default]")
	set := "metadata: {name: web, namespace: default}\nspec: {template: {spec: {containers: [{name: c}]}}, volumeClaimTemplates: [{metadata: {name: data, namespace: NS}}]}"
	for namespace, want := range map[string]int{"default": 0, "kube-system": 1} {
		if err := yaml.UnmarshalStrict([]byte(strings.Replace(set, "NS", namespace, 1)), o.Object); err != nil {
			t.Fatal(err)
		}
		problems := p.CheckObject(o, "/m")
		if len(problems) != want || want > 0 && problems[0].Path != "spec.volumeClaimTemplates[0].metadata.namespace" {
			t.Errorf("%s: %v", namespace, problems)
		}
	}
}
