//go:build full

package texts

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// before is the last commit before the texts of the program were rewritten.
const before = "eb7139c8"

// freeText finds what a rewrite may change in a golden file: the reason of a step, what a plan
// waits for, the message of a problem after its place and field, and hints.
var freeText = regexp.MustCompile(`(?m)( #|^wait[^:\n]*:|^ *(?:error|warning|notice): \S+: (?:[\w.\[\]/-]+(?: is ignored)?: )?|^ *hint:).*$`)

// TestGoldens_RewrittenTexts_NothingElseChanged: without free texts, the golden files of plans,
// statuses and manifests are byte for byte those from before the rewrite: inputs, steps, order,
// numbers, keys and places.
func TestGoldens_RewrittenTexts_NothingElseChanged(t *testing.T) {
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), "git", "archive", before, "pkg/plan/testdata", "pkg/status/testdata", "pkg/manifest/testdata")
	cmd.Dir = root
	files, err := cmd.Output()
	if err != nil {
		t.Fatalf("read commit %s, for which the history of the repository is needed: %v", before, err)
	}
	compared := 0
	for in := tar.NewReader(bytes.NewReader(files)); ; compared++ {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if filepath.Ext(h.Name) != ".txtar" {
			continue
		}
		old, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		now, err := os.ReadFile(filepath.Join(root, h.Name))
		if err != nil {
			t.Error(err)
			continue
		}
		if want, got := stripped(old), stripped(now); want != got {
			t.Errorf("%s differs in more than its texts:\n--- before\n%s\n--- now\n%s", h.Name, want, got)
		}
	}
	if compared < 300 {
		t.Errorf("%d golden files were compared", compared)
	}
}

// stripped returns the files of an archive without free texts. Its comment is free text.
func stripped(archive []byte) string {
	a := txtar.Parse(archive)
	a.Comment = nil
	return freeText.ReplaceAllString(string(txtar.Format(a)), "$1")
}
