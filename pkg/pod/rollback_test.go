package pod

import (
	"strings"
	"testing"
)

func TestRollbackProblems_NamesWrongValues(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		annotations map[string]string
		wrong       int
	}{
		{nil, 0},
		{map[string]string{AnnotationRollback: "on-failure", AnnotationRollbackTrial: "90s", AnnotationRollbackDeadline: "0s"}, 0},
		{map[string]string{AnnotationRollback: "yes"}, 1},
		{map[string]string{AnnotationRollback: "", AnnotationRollbackTrial: "90", AnnotationRollbackDeadline: "-1s"}, 3},
		{map[string]string{AnnotationRollbackTrial: "25h"}, 1},
	} {
		if got := RollbackProblems(KindDeployment, c.annotations); len(got) != c.wrong {
			t.Errorf("%v: %v", c.annotations, got)
		}
	}
}

func TestRollbackProblems_Release_HasANameAndVersions(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, name, problem string }{
		{KindDeployment, "shop", ""},
		{KindStatefulSet, "shop", ""},
		{KindDaemonSet, "a", ""},
		{KindJob, "shop", "a Job has no versions to return to"},
		{KindCronJob, "shop", "a CronJob has no versions to return to"},
		{KindReplicaSet, "shop", "a ReplicaSet has no versions to return to"},
		{KindDeployment, "", `"" is no name of a release`},
		{KindDeployment, "Shop", `"Shop" is no name of a release`},
		{KindDeployment, "shop/web", `"shop/web" is no name of a release`},
		{KindDeployment, strings.Repeat("a", 64), "is no name of a release"},
	} {
		got := RollbackProblems(c.kind, map[string]string{AnnotationRelease: c.name})
		if text := got[AnnotationRelease]; !strings.Contains(text, c.problem) || (text == "") != (c.problem == "") {
			t.Errorf("%s in release %q: %q, want %q", c.kind, c.name, text, c.problem)
		}
	}
}
