package docs_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// TestDependencies_GoMod_EachHasARow: every direct dependency of go.mod has a row in the
// decision about dependencies, and every row names direct dependencies only.
func TestDependencies_GoMod_EachHasARow(t *testing.T) {
	cmd := exec.Command("go", "mod", "edit", "-json")
	cmd.Dir = ".."
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go mod edit -json: %v", err)
	}
	var mod struct {
		Require []struct {
			Path     string
			Indirect bool
		}
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("decisions/0001-dependencies.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string]int)
	for row := range strings.Lines(string(page)) {
		cells := strings.Split(row, "|")
		if len(cells) < 4 {
			continue
		}
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(cells[1], -1) {
			rows[m[1]]++
		}
	}
	for _, r := range mod.Require {
		if r.Indirect {
			continue
		}
		if n := rows[r.Path]; n != 1 {
			t.Errorf("decisions/0001-dependencies.md has %d rows for %s, which go.mod requires directly; want 1", n, r.Path)
		}
		delete(rows, r.Path)
	}
	for path := range rows {
		t.Errorf("decisions/0001-dependencies.md has a row for %s, which go.mod does not require directly", path)
	}
}
