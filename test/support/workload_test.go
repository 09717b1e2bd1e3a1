//go:build linux

package support

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// workloadDoc is a manifest of a kind of workloads that is valid.
func workloadDoc(kind string) map[string]any {
	const (
		labelled = "metadata: {labels: {a: b}}, spec: {containers: [{name: main, image: 'app:1'}]}"
		finite   = "spec: {restartPolicy: Never, containers: [{name: main, image: 'app:1'}]}"
	)
	spec, version := "selector: {matchLabels: {a: b}}, template: {"+labelled+"}", "apps/v1"
	switch kind {
	case pod.KindStatefulSet:
		spec += ", volumeClaimTemplates: [{metadata: {name: data}, spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}}]"
	case pod.KindJob:
		spec, version = "template: {"+finite+"}", "batch/v1"
	case pod.KindCronJob:
		spec, version = "schedule: '* * * * *', jobTemplate: {spec: {template: {"+finite+"}}}", "batch/v1"
	}
	return yamlOf("apiVersion: " + version + ", kind: " + kind + ", metadata: {name: p}, spec: {" + spec + "}")
}

// parseWorkload reads a manifest of a kind with the required fields and these parts.
func parseWorkload(t *testing.T, kind string, part map[string]any) (source.File, []pod.Problem) {
	t.Helper()
	text, err := json.Marshal(merged(workloadDoc(kind), part))
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Parse(text, manifest.Options{Node: "n1", Source: "file", Location: "/m", File: "/m/w.yaml", Static: true})
}

// workloadFields returns the rows of a kind, and those of its pod template by which it differs
// from a Pod.
func workloadFields(kind string) []podspec.Field {
	rows := podspec.WorkloadFields(kind)
	_, at := (&pod.Object{Object: pod.NewWorkload(kind)}).Template()
	for _, f := range podspec.TemplateFields() {
		f.Path = at + "." + f.Path
		rows = append(rows, f)
	}
	return rows
}

// TestRejected_OfAWorkload: a workload with a field that is rejected, or with a value that is, is
// rejected by the field's name and place, and without it is not.
func TestRejected_OfAWorkload(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		rows, of := 0, reflect.TypeOf(pod.NewWorkload(kind)).Elem()
		for _, f := range workloadFields(kind) {
			if f.Support != podspec.Rejected && f.Check == nil {
				continue
			}
			rows++
			file, _ := parseWorkload(t, kind, writtenIn(t, of, f.Path))
			want := strings.ReplaceAll(f.Path, "[]", "[0]")
			at := slices.IndexFunc(file.Problems, func(p pod.Problem) bool { return p.Path == want })
			switch {
			case len(file.Objects) > 0 || at < 0:
				t.Errorf("%s: %s: %d objects, problems %v", kind, f.Path, len(file.Objects), file.Problems)
			case file.Problems[at].Line != 1 || file.Problems[at].Column == 0:
				t.Errorf("%s: %s: no place: %+v", kind, f.Path, file.Problems[at])
			}
		}
		if file, notices := parseWorkload(t, kind, nil); len(file.Objects) != 1 || len(notices) > 0 || rows < 10 {
			t.Errorf("%s: %d rows; without any: %v, notices %v", kind, rows, file.Problems, notices)
		}
	}
}

// TestIgnored_OfAWorkload: a workload with an ignored field is read. Its author gets one notice
// with the field's place in the spec and the reason.
func TestIgnored_OfAWorkload(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		of := reflect.TypeOf(pod.NewWorkload(kind)).Elem()
		for _, f := range workloadFields(kind) {
			if f.Support != podspec.Inert {
				continue
			}
			part := writtenIn(t, of, f.Path)
			if f.Path == "metadata.ownerReferences" {
				part = yamlOf(ignored[f.Path])
			}
			if policy, ok := strings.CutPrefix(f.Path, "spec.persistentVolumeClaimRetentionPolicy."); ok {
				part = yamlOf("spec: {persistentVolumeClaimRetentionPolicy: {" + policy + ": Delete}}")
			}
			file, notices := parseWorkload(t, kind, part)
			if len(file.Objects) != 1 {
				t.Errorf("%s: %s: %v", kind, f.Path, file.Problems)
				continue
			}
			var want, got []string
			if strings.HasPrefix(f.Path, "spec.") {
				want = []string{strings.ReplaceAll(f.Path, "[]", "[0]") + " is ignored: " + f.Note}
			}
			for _, n := range notices {
				got = append(got, n.Msg)
				if n.File != "/m/w.yaml" || n.Line != 1 || n.Column == 0 {
					t.Errorf("%s: %s: no place: %+v", kind, f.Path, n)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: %s: notices %q, want %q", kind, f.Path, got, want)
			}
		}
	}
}

// TestRejected_SelectorOfAWorkload: a selector that does not match the labels of the template, by
// either of its forms, rejects the workload, and one that does is accepted.
func TestRejected_SelectorOfAWorkload(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		manual := ""
		switch kind {
		case pod.KindCronJob:
			continue // the selector of its Jobs is generated
		case pod.KindJob:
			manual = "manualSelector: true, template: {metadata: {labels: {a: b}}}, "
		}
		for selector, want := range map[string]int{
			"{matchLabels: {a: b}}": 1, "{matchLabels: {a: c}}": 0,
			"{matchLabels: {a: b}, matchExpressions: [{key: a, operator: In, values: [b]}]}":    1,
			"{matchLabels: {a: b}, matchExpressions: [{key: a, operator: NotIn, values: [b]}]}": 0,
		} {
			file, _ := parseWorkload(t, kind, yamlOf("spec: {"+manual+"selector: "+selector+"}"))
			if len(file.Objects) != want || want == 0 && len(file.Problems) != 1 {
				t.Errorf("%s: %s: %d objects, problems %v", kind, selector, len(file.Objects), file.Problems)
			}
		}
	}
}

// TestWorkloads_ShareTheirMetadata: one table on the page stands for all kinds, and that of a Job
// for the jobs of a CronJob.
func TestWorkloads_ShareTheirMetadata(t *testing.T) {
	t.Parallel()
	words := func(f podspec.Field) string { return fmt.Sprint(f.Path, f.Support, f.Note, f.Why) }
	all := map[string]bool{}
	for _, kind := range []string{pod.KindDeployment, pod.KindJob} {
		for _, f := range podspec.WorkloadFields(kind) {
			all[words(f)] = true
		}
	}
	for _, kind := range pod.WorkloadKinds() {
		for _, f := range podspec.WorkloadFields(kind) {
			rest, ofJob := strings.CutPrefix(f.Path, "spec.jobTemplate.")
			if ofJob && strings.HasPrefix(rest, "spec.") {
				f.Path = rest
			} else if !sharedRow(f.Path) {
				continue
			}
			if !all[words(f)] {
				t.Errorf("%s: %s is another row than that on the page", kind, f.Path)
			}
		}
	}
}

// metaOf returns the metadata of a workload.
func metaOf(o *pod.Object) metav1.Object { return o.Object.(metav1.Object) }
