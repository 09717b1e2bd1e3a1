package manifest

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/conversion"
	apivalidation "k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	podapi "k8s.io/kubernetes/pkg/api/pod"
	"k8s.io/kubernetes/pkg/apis/apps"
	appsdefaults "k8s.io/kubernetes/pkg/apis/apps/v1"
	appsvalidation "k8s.io/kubernetes/pkg/apis/apps/validation"
	"k8s.io/kubernetes/pkg/apis/batch"
	batchdefaults "k8s.io/kubernetes/pkg/apis/batch/v1"
	batchvalidation "k8s.io/kubernetes/pkg/apis/batch/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/core/validation"
	"k8s.io/kubernetes/pkg/capabilities"

	"github.com/nodectl/nodectl/pkg/pod"
)

// longestStatefulSet is the longest name of a StatefulSet. The label controller-revision-hash of its pods
// has the name, a dash and a hash of at most ten characters.
const longestStatefulSet = apivalidation.LabelValueMaxLength - 11

// validateWorkload defaults w, and returns the problems that the API's validation of new objects finds in
// it (C-1.5.11), without their places. A workload whose pods have too many ports has only that problem.
func validateWorkload(w any) []pod.Problem {
	o := &pod.Object{Object: w}
	template, at := o.Template()
	if bad, is := pod.PortsProblem(&template.Spec); is {
		bad.Path = at + "." + bad.Path
		return []pod.Problem{bad}
	}
	if set, is := w.(*appsv1.StatefulSet); is {
		if problems := claimTemplateProblems(set); len(problems) > 0 {
			return problems
		}
	}
	capabilities.Setup(true, 0) // as for a pod
	errs, err := workloadErrors(w)
	if err != nil {
		return []pod.Problem{{Msg: "not valid: " + err.Error()}}
	}
	own := w.(metav1.ObjectMetaAccessor).GetObjectMeta()
	nameEntries(errs, "metadata.labels", "metadata.labels", own.GetLabels())
	nameEntries(errs, "metadata.annotations", "metadata.annotations", own.GetAnnotations())
	nameEntries(errs, at+".labels", at+".metadata.labels", template.Labels)
	nameEntries(errs, at+".annotations", at+".metadata.annotations", template.Annotations)
	return fieldProblems(withoutSelector(errs), false)
}

// withoutSelector returns errs without the error that the labels of the template do not match a
// selector that is missing.
func withoutSelector(errs field.ErrorList) field.ErrorList {
	missing := slices.ContainsFunc(errs, func(e *field.Error) bool { return e.Field == "spec.selector" && e.Type == field.ErrorTypeRequired })
	return slices.DeleteFunc(errs, func(e *field.Error) bool {
		return missing && e.Field == "spec.template.metadata.labels" && strings.HasPrefix(e.Detail, noMatch)
	})
}

// noMatch begins the detail of the error that the selector does not match the template.
const noMatch = "`selector` does not match"

// workloadErrors defaults a workload and validates it.
func workloadErrors(w any) (field.ErrorList, error) {
	switch w := w.(type) {
	case *appsv1.Deployment:
		return checked(w, appsdefaults.SetObjectDefaults_Deployment, appsdefaults.Convert_v1_Deployment_To_apps_Deployment, func(in *apps.Deployment) field.ErrorList {
			return appsvalidation.ValidateDeployment(in, templateOptions(&in.Spec.Template))
		})
	case *appsv1.ReplicaSet:
		return checked(w, appsdefaults.SetObjectDefaults_ReplicaSet, appsdefaults.Convert_v1_ReplicaSet_To_apps_ReplicaSet, func(in *apps.ReplicaSet) field.ErrorList {
			return appsvalidation.ValidateReplicaSet(in, templateOptions(&in.Spec.Template))
		})
	case *appsv1.StatefulSet:
		return checked(w, appsdefaults.SetObjectDefaults_StatefulSet, appsdefaults.Convert_v1_StatefulSet_To_apps_StatefulSet, func(in *apps.StatefulSet) field.ErrorList {
			mountClaims(&in.Spec)
			errs := appsvalidation.ValidateStatefulSet(in, templateOptions(&in.Spec.Template))
			if len(in.Name) > longestStatefulSet {
				errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), in.Name, longestStatefulSet))
			}
			return errs
		})
	case *appsv1.DaemonSet:
		return checked(w, appsdefaults.SetObjectDefaults_DaemonSet, appsdefaults.Convert_v1_DaemonSet_To_apps_DaemonSet, func(in *apps.DaemonSet) field.ErrorList {
			errs := appsvalidation.ValidateDaemonSet(in, templateOptions(&in.Spec.Template))
			if in.Spec.Selector == nil { // the library's validation has no error for that
				errs = append(errs, field.Required(field.NewPath("spec", "selector"), ""))
			}
			return errs
		})
	case *batchv1.Job:
		return checked(w, jobDefaults, batchdefaults.Convert_v1_Job_To_batch_Job, func(in *batch.Job) field.ErrorList {
			return batchvalidation.ValidateJob(in, batchvalidation.JobValidationOptions{PodValidationOptions: templateOptions(&in.Spec.Template), RequirePrefixedLabels: true})
		})
	case *batchv1.CronJob:
		return checked(w, batchdefaults.SetObjectDefaults_CronJob, batchdefaults.Convert_v1_CronJob_To_batch_CronJob, func(in *batch.CronJob) field.ErrorList {
			return batchvalidation.ValidateCronJobCreate(in, templateOptions(&in.Spec.JobTemplate.Spec.Template))
		})
	}
	return nil, fmt.Errorf("%T is not a workload", w)
}

// checked defaults an object, converts it and validates it.
func checked[V, I any](v *V, setDefaults func(*V), convert func(*V, *I, conversion.Scope) error, validate func(*I) field.ErrorList) (field.ErrorList, error) {
	setDefaults(v)
	var in I
	if err := convert(v, &in, nil); err != nil {
		return nil, err
	}
	return validate(&in), nil
}

func templateOptions(t *core.PodTemplateSpec) validation.PodValidationOptions {
	return podapi.GetValidationOptionsFromPodTemplate(t, nil)
}

// jobDefaults defaults a Job. Unless manualSelector is set, it adds the labels and the selector that an
// API server adds, so that validation finds a selector that does not fit them.
func jobDefaults(j *batchv1.Job) {
	own := j.Labels
	batchdefaults.SetObjectDefaults_Job(j)
	j.Labels = own // not the template's labels, whose problems would be reported twice
	if *j.Spec.ManualSelector {
		return
	}
	if j.UID == "" {
		j.UID = "job" // stands for the one that an API server gives
	}
	labels := map[string]string{
		batch.LegacyJobNameLabel: j.Name, batch.JobNameLabel: j.Name,
		batch.LegacyControllerUidLabel: string(j.UID), batch.ControllerUidLabel: string(j.UID),
	}
	maps.Copy(labels, j.Spec.Template.Labels)
	j.Spec.Template.Labels = labels
	if j.Spec.Selector == nil {
		j.Spec.Selector = &metav1.LabelSelector{}
	}
	if _, chosen := j.Spec.Selector.MatchLabels[batch.ControllerUidLabel]; !chosen {
		selected := maps.Clone(j.Spec.Selector.MatchLabels)
		if selected == nil {
			selected = map[string]string{}
		}
		selected[batch.ControllerUidLabel] = string(j.UID)
		j.Spec.Selector.MatchLabels = selected
	}
}

// mountClaims adds the volumes of the claim templates to the pod template, since the pods have them. Each
// replaces a volume of its name, or is added at the end.
func mountClaims(s *apps.StatefulSetSpec) {
	volumes := &s.Template.Spec.Volumes
	for i := range s.VolumeClaimTemplates {
		name := s.VolumeClaimTemplates[i].Name
		claim := core.Volume{Name: name, VolumeSource: core.VolumeSource{PersistentVolumeClaim: &core.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
		if at := slices.IndexFunc(*volumes, func(v core.Volume) bool { return v.Name == name }); at >= 0 {
			(*volumes)[at] = claim
		} else {
			*volumes = append(*volumes, claim)
		}
	}
	s.VolumeClaimTemplates = nil // claimTemplateProblems has validated them
}

// claimTemplateProblems returns the problems of the claim templates of a StatefulSet.
func claimTemplateProblems(s *appsv1.StatefulSet) []pod.Problem {
	var out []pod.Problem
	seen := map[string]bool{}
	for i := range s.Spec.VolumeClaimTemplates {
		c := s.Spec.VolumeClaimTemplates[i].DeepCopy()
		at := fmt.Sprintf("spec.volumeClaimTemplates[%d].", i)
		c.ObjectMeta = metav1.ObjectMeta{Namespace: s.Namespace, Name: c.Name, Labels: c.Labels, Annotations: c.Annotations}
		c.Status = v1.PersistentVolumeClaimStatus{}
		problems := claimProblems(c)
		named := slices.ContainsFunc(problems, func(p pod.Problem) bool { return p.Path == "metadata.name" })
		switch {
		case named:
		case seen[c.Name]:
			problems = append(problems, pod.Problem{Path: "metadata.name", Msg: "duplicate value " + quote(c.Name), Hint: "give one of the claim templates another name"})
		case len(apivalidation.IsDNS1123Label(c.Name)) > 0: // it is the name of a volume, too
			problems = append(problems, pod.Problem{Path: "metadata.name", Msg: "invalid value " + quote(c.Name), Hint: "write at most 63 lower-case letters, digits and -"})
		}
		seen[c.Name] = true
		for _, p := range problems {
			p.Path = at + p.Path
			out = append(out, p)
		}
	}
	return out
}
