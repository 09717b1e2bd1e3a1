//go:build full

package texts

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKubeletTable_IsOfTheSources makes the committed table again from the kubelet's
// sources.
func TestKubeletTable_IsOfTheSources(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "go", "mod", "download", "-json", "k8s.io/kubernetes@"+release)
	cmd.Dir = filepath.Join(root, "hack/cluster")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %v: %s", cmd.Args, err, out)
	}
	var module struct{ Dir string }
	if err := json.Unmarshal(out, &module); err != nil {
		t.Fatal(err)
	}
	all, err := Extract(module.Dir)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Made from the kubelet's sources, " + release + ": go test -tags full ./test/texts -update\n")
	for _, text := range all {
		b.WriteString(text.Line() + "\n")
	}
	if *update {
		if err := os.WriteFile(table, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if had, err := os.ReadFile(table); err != nil || string(had) != b.String() {
		t.Errorf("%s is not what the sources say (%v): go test -tags full ./test/texts -update", table, err)
	}
}
