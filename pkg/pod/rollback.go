package pod

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// The annotations of a workload whose version is replaced by the one before if it fails.
const (
	// AnnotationRollback has the value RollbackOnFailure.
	AnnotationRollback = "nodectl.dev/rollback"
	// AnnotationRollbackTrial is how long a complete version is on trial, such as 2m.
	AnnotationRollbackTrial = "nodectl.dev/rollback-trial"
	// AnnotationRollbackDeadline is when a version of a StatefulSet or DaemonSet that is not
	// complete has failed, such as 5m. A Deployment has progressDeadlineSeconds.
	AnnotationRollbackDeadline = "nodectl.dev/rollback-deadline"

	// AnnotationRelease is the name of the release of a workload. The workloads of one namespace and
	// one source with the same name return to their versions before together if a version of one of
	// them fails.
	AnnotationRelease = "nodectl.dev/release"

	// RollbackOnFailure is the only value of AnnotationRollback.
	RollbackOnFailure = "on-failure"
)

// maxRollbackPeriod is the longest trial or deadline.
const maxRollbackPeriod = 24 * time.Hour

// RollbackPeriod returns the duration in an annotation; ok is false if it is none, or out of
// bounds.
func RollbackPeriod(text string) (d time.Duration, ok bool) {
	d, err := time.ParseDuration(text)
	return d, err == nil && d >= 0 && d <= maxRollbackPeriod
}

// HasVersions reports whether the workloads of a kind roll out versions of a pod template, so that
// one that fails can be rolled back.
func HasVersions(kind string) bool {
	return slices.Contains([]string{KindDeployment, KindStatefulSet, KindDaemonSet}, kind)
}

// RollbackProblems returns the problems of these annotations of a workload, by annotation.
func RollbackProblems(kind string, annotations map[string]string) map[string]string {
	out := map[string]string{}
	if v, given := annotations[AnnotationRelease]; given {
		switch problems := validation.IsDNS1123Label(v); {
		case !HasVersions(kind):
			out[AnnotationRelease] = fmt.Sprintf("a %s has no versions to return to: only a Deployment, StatefulSet or DaemonSet is part of a release", kind)
		case len(problems) > 0:
			out[AnnotationRelease] = fmt.Sprintf("%q is no name of a release: %s", v, problems[0])
		}
	}
	if v, given := annotations[AnnotationRollback]; given && v != RollbackOnFailure {
		out[AnnotationRollback] = fmt.Sprintf("%q is not %s", v, RollbackOnFailure)
	}
	for _, name := range []string{AnnotationRollbackTrial, AnnotationRollbackDeadline} {
		v, given := annotations[name]
		if _, ok := RollbackPeriod(v); given && !ok {
			out[name] = fmt.Sprintf("%q is not a duration between 0s and 24h, such as 90s", v)
		}
	}
	return out
}
