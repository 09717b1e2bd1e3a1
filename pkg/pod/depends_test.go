package pod

import (
	"fmt"
	"strings"
	"testing"
)

// dependencyNames returns a list of n names of pods.
func dependencyNames(n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprint("p", i))
	}
	return strings.Join(out, ",")
}

// TestParseDependsOn_EndlessList_IsOneShortProblem: an attacker fills the annotation
// with as many names as fit, or with one name.
func TestParseDependsOn_EndlessList_IsOneShortProblem(t *testing.T) {
	t.Parallel()
	if on, err := ParseDependsOn(dependencyNames(MaxDependencies)); err != nil || len(on) != MaxDependencies {
		t.Errorf("%d dependencies, %v", len(on), err)
	}
	for name, text := range map[string]string{
		"one too many":   dependencyNames(MaxDependencies + 1),
		"three million":  dependencyNames(3_000_000),
		"a long name":    strings.Repeat("a", 1<<20),
		"a long mistake": "db:" + strings.Repeat("é", 1<<20),
	} {
		on, err := ParseDependsOn(text)
		if err == nil || len(err.Error()) > 2000 || len(on) > 0 {
			t.Errorf("%s: %d dependencies, error of %d bytes", name, len(on), len(fmt.Sprint(err)))
		}
	}
}
