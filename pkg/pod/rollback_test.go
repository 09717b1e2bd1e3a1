package pod

import "testing"

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
		if got := RollbackProblems(c.annotations); len(got) != c.wrong {
			t.Errorf("%v: %v", c.annotations, got)
		}
	}
}
