package doctor

import (
	"os"
	"regexp"
	"testing"
)

// The bundled runtime has none of the vulnerabilities that doctor knows.
//
// Shows: D1
func TestD1_BundledRuntime_HasNoKnownHole(t *testing.T) {
	t.Parallel()
	mod, err := os.ReadFile("../../hack/bundle/go.mod")
	if err != nil {
		t.Fatal(err)
	}
	for name, module := range map[string]string{"containerd": "github.com/containerd/containerd/v2", "runc": "github.com/opencontainers/runc"} {
		line := regexp.MustCompile(`(?m)^\s*` + regexp.QuoteMeta(module) + ` (\S+)`).FindSubmatch(mod)
		if line == nil {
			t.Fatalf("hack/bundle/go.mod requires no version of %s", module)
		}
		version := string(line[1])
		if _, ok := parseVersion(version); !ok {
			t.Errorf("%s %s is not a version", name, version)
		}
		if got := vulnerabilities(name, version); len(got) > 0 {
			t.Errorf("%q", got)
		}
	}
}
