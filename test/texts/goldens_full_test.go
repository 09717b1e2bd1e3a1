//go:build full

package texts

import (
	"archive/tar"
	"bytes"
	"cmp"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// before is the last commit before the texts of the program were rewritten.
const before = "eb7139c8"

// freeText finds the texts that a rewrite may change in a golden file: the reason of a step,
// WaitFor of a plan, the message of a problem after its place and field, and hints.
var freeText = regexp.MustCompile(`(?m)( #|^wait[^:\n]*:|^ *(?:error|warning|notice): \S+: (?:[\w.\[\]/-]+(?: is ignored)?: )?|^ *hint:).*$`)

// words replaces words of the tests' own result formats as later commits did.
var words = strings.NewReplacer("\n  before: ", "\n  last: ", ": whole\n", ": incomplete\n", "\n(outcome ", "\n(ended ")

// twice finds the phase of a pod that has ended where an older format names it a second time.
var twice = regexp.MustCompile(`(\n\(ended \w+ .*\))\n\(outcome \w+\)`)

// extended are golden files whose results later features have changed, each with the feature.
var extended = map[string]string{
	"pkg/manifest/testdata/kinds.txtar":       "workloads and Services are kinds of a manifest",
	"pkg/manifest/testdata/lists.txtar":       "a list may hold a Service",
	"pkg/manifest/testdata/unsupported.txtar": "a pod may ask for the resource of a device plugin",
}

// TestGoldens_RewrittenTexts_NothingElseChanged: without free texts, the results in the golden
// files of plans, statuses and manifests are byte for byte those from before the rewrite: steps,
// order, numbers, keys and places. A golden may have another name now. Those that a feature has
// changed are listed with it.
func TestGoldens_RewrittenTexts_NothingElseChanged(t *testing.T) {
	t.Parallel()
	dirs := []string{"pkg/plan/testdata", "pkg/status/testdata", "pkg/manifest/testdata"}
	files := git(t, append([]string{"archive", before}, dirs...)...)
	names := make(map[string]string) // old to new
	for line := range strings.Lines(string(git(t, append([]string{"diff", "--name-status", "-M30%", "--diff-filter=R", before, "--"}, dirs...)...))) {
		f := strings.Fields(line)
		names[f[1]] = f[2]
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
		name := cmp.Or(names[h.Name], h.Name)
		now, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Error(err)
			continue
		}
		want, got := words.Replace(twice.ReplaceAllString(results(old), "$1")), results(now)
		if extended[name] != "" {
			if want == got {
				t.Errorf("%s is in the list of files that a feature has changed, but no result of it differs", name)
			}
			continue
		}
		if want != got {
			t.Errorf("%s differs in more than its texts:\n--- before\n%s\n--- now\n%s", name, want, got)
		}
	}
	if compared < 300 {
		t.Errorf("%d golden files were compared", compared)
	}
}

// git returns the output of a git command in this repository.
func git(t *testing.T, args ...string) []byte {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("git %s, which needs the history of the repository: %v", strings.Join(args, " "), err)
	}
	return out
}

// results returns the files of an archive that a test compares with its result, without free texts.
// The other files are the input of the test.
func results(archive []byte) string {
	a := txtar.Parse(archive)
	a.Comment = nil
	a.Files = slices.DeleteFunc(a.Files, func(f txtar.File) bool { return filepath.Ext(f.Name) != "" })
	return freeText.ReplaceAllString(string(txtar.Format(a)), "$1")
}
