package podspec

import (
	"reflect"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestWorkloadFields_EveryField_HasARow: no field of a workload is accepted without a decision.
func TestWorkloadFields_EveryField_HasARow(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		rows, used := map[string]Field{}, map[string]bool{}
		for _, f := range WorkloadFields(kind) {
			if _, twice := rows[f.Path]; twice {
				t.Errorf("%s: two rows for %s", kind, f.Path)
			}
			rows[f.Path] = f
			switch {
			case f.Support == Inert && f.Note == "", f.Check != nil && f.Note == "", f.Support == Rejected && f.Why == "":
				t.Errorf("%s: %s without a reason", kind, f.Path)
			}
		}
		walkTypes(reflect.TypeOf(pod.NewWorkload(kind)), "", func(path string, ft reflect.Type) bool {
			row, ok := rows[path]
			if !ok {
				t.Errorf("%s: no row for %s", kind, path)
				return false
			}
			used[path] = true
			return row.Support == Honoured && ft != reflect.TypeFor[v1.PodTemplateSpec]()
		})
		for path := range rows {
			if !used[path] {
				t.Errorf("%s: row for %s: the type has no such field, or a row above covers it", kind, path)
			}
		}
	}
}

// TestTemplateFields_Rows_AreOfThePodTable: a pod template differs from a Pod only in fields
// that both have.
func TestTemplateFields_Rows_AreOfThePodTable(t *testing.T) {
	t.Parallel()
	rows := rowsByPath(t)
	for _, f := range TemplateFields() {
		if _, ok := rows[f.Path]; !ok {
			t.Errorf("%s: the table has no such row", f.Path)
		}
		if f.Note == "" {
			t.Errorf("%s: without a reason", f.Path)
		}
	}
}

// TestUnsupportedWorkload_FieldOfTheTemplate_IsNamedFromTheRoot: the fields of a pod template are
// judged in every kind, and problems have the path from the workload's root.
func TestUnsupportedWorkload_FieldOfTheTemplate_IsNamedFromTheRoot(t *testing.T) {
	t.Parallel()
	spec := v1.PodSpec{
		ServiceAccountName: "web", SchedulerName: "mine",
		Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{NFS: &v1.NFSVolumeSource{Server: "s"}}}},
	}
	template := v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Name: "web", Labels: map[string]string{"app": "web"}}, Spec: spec}
	job := batchv1.JobSpec{Template: template}
	for kind, object := range map[string]any{
		pod.KindDeployment:  &appsv1.Deployment{Spec: appsv1.DeploymentSpec{Template: template}},
		pod.KindReplicaSet:  &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: template}},
		pod.KindStatefulSet: &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{Template: template}},
		pod.KindDaemonSet:   &appsv1.DaemonSet{Spec: appsv1.DaemonSetSpec{Template: template}},
		pod.KindJob:         &batchv1.Job{Spec: job},
		pod.KindCronJob:     &batchv1.CronJob{Spec: batchv1.CronJobSpec{JobTemplate: batchv1.JobTemplateSpec{Spec: job}}},
	} {
		_, prefix := (&pod.Object{Object: object}).Template()
		want := map[string]bool{prefix + ".spec.volumes[0].nfs": true, prefix + ".spec.serviceAccountName": true}
		got := UnsupportedWorkload(kind, object)
		for _, p := range got {
			if !want[p.Path] || p.Msg == "" {
				t.Errorf("%s: %+v", kind, p)
			}
		}
		if len(got) != len(want) {
			t.Errorf("%s: %d problems", kind, len(got))
		}
		var ignored []string
		for _, p := range IgnoredWorkload(kind, object) {
			ignored = append(ignored, p.Path)
		}
		if got, want := strings.Join(ignored, " "), prefix+".metadata.name "+prefix+".spec.schedulerName"; got != want {
			t.Errorf("%s: ignored %s, want %s", kind, got, want)
		}
	}
}

// TestUnsupportedWorkload_ValuesOfTheKinds_AreJudged: a value that this node cannot honour is
// rejected, and a value that it honours is not.
func TestUnsupportedWorkload_ValuesOfTheKinds_AreJudged(t *testing.T) {
	t.Parallel()
	block, files, other, own := v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem, "example.test/jobs", "kubernetes.io/job-controller"
	claims := func(mode *v1.PersistentVolumeMode, volume string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{VolumeClaimTemplates: []v1.PersistentVolumeClaim{{Spec: v1.PersistentVolumeClaimSpec{VolumeMode: mode, VolumeName: volume}}}}}
	}
	retention := func(policy appsv1.PersistentVolumeClaimRetentionPolicyType) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{Spec: appsv1.StatefulSetSpec{PersistentVolumeClaimRetentionPolicy: &appsv1.StatefulSetPersistentVolumeClaimRetentionPolicy{WhenScaled: policy}}}
	}
	for name, c := range map[string]struct {
		kind   string
		object any
		path   string // of the problem; "" for none
	}{
		"block claim":         {pod.KindStatefulSet, claims(&block, ""), "spec.volumeClaimTemplates[0].spec.volumeMode"},
		"claim":               {pod.KindStatefulSet, claims(&files, ""), ""},
		"claim of a volume":   {pod.KindStatefulSet, claims(nil, "pv"), "spec.volumeClaimTemplates[0].spec.volumeName"},
		"data is deleted":     {pod.KindStatefulSet, retention("Delete"), ""},
		"another controller":  {pod.KindJob, &batchv1.Job{Spec: batchv1.JobSpec{ManagedBy: &other}}, "spec.managedBy"},
		"the job controller":  {pod.KindJob, &batchv1.Job{Spec: batchv1.JobSpec{ManagedBy: &own}}, ""},
		"finalizers":          {pod.KindDeployment, &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Finalizers: []string{"a/b"}}}, "metadata.finalizers"},
		"a generated name":    {pod.KindJob, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{GenerateName: "web-"}}, "metadata.generateName"},
		"an empty Deployment": {pod.KindDeployment, &appsv1.Deployment{}, ""},
	} {
		got := UnsupportedWorkload(c.kind, c.object)
		if c.path == "" && len(got) > 0 || c.path != "" && (len(got) != 1 || got[0].Path != c.path || got[0].Msg == "") {
			t.Errorf("%s: %+v, want %q", name, got, c.path)
		}
	}
	for policy, want := range map[appsv1.PersistentVolumeClaimRetentionPolicyType]int{"": 0, "Retain": 0, "Delete": 1} {
		if got := IgnoredWorkload(pod.KindStatefulSet, retention(policy)); len(got) != want {
			t.Errorf("retention %q: %v", policy, got)
		}
	}
}
