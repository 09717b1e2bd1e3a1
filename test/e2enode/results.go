package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/node"
)

// The outcomes of a case. Any other of the suite's states is a failure.
const (
	passed  = "passed"
	failed  = "failed"
	skipped = "skipped"
)

// A Result is the outcome of one case with one agent.
type Result struct {
	Outcome string `json:"outcome"`
	Reason  string `json:"reason,omitempty"` // why it was skipped or failed, shortened
	Seconds int    `json:"seconds"`
	Tree    string `json:"tree"` // of nodectl and of this harness
	Date    string `json:"date"`
}

// isDirty reports whether the tree had changes that no commit has.
func (r Result) isDirty() bool { return strings.HasSuffix(r.Tree, dirty) || r.Tree == "unknown" }

// Results are those of one agent, by the name of the case.
type Results map[string]Result

// readResults reads a file of results; one that is missing has none.
func readResults(file string) (Results, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return Results{}, nil
	}
	if err != nil {
		return nil, err
	}
	r := Results{}
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// write replaces a file of results, with one line for each case.
func (r Results) write(file string) error {
	var b bytes.Buffer
	b.WriteString("{")
	separator := "\n"
	for _, name := range slices.Sorted(maps.Keys(r)) {
		key, err := marshal(name)
		if err != nil {
			return err
		}
		value, err := marshal(r[name])
		if err != nil {
			return err
		}
		b.WriteString(separator + key + ": " + value)
		separator = ",\n"
	}
	b.WriteString("\n}\n")
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(file+".new", b.Bytes(), 0o644); err != nil {
		return err
	}
	return os.Rename(file+".new", file)
}

// marshal is JSON that people can read: <, > and & stay.
func marshal(v any) (string, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return strings.TrimSpace(b.String()), err
}

// stamp notes the tree and the day of results.
func (r Results) stamp(tree string) {
	for name, is := range r {
		is.Tree, is.Date = tree, time.Now().UTC().Format(time.DateOnly)
		r[name] = is
	}
}

// resultsOf returns the results of the named cases. A case without one did not run to its end.
func resultsOf(specs []spec, names []string) Results {
	all := Results{}
	for _, n := range names {
		all[n] = Result{Outcome: failed, Reason: "did not run to its end"}
	}
	for _, s := range specs {
		if _, ok := all[s.name()]; !ok {
			continue
		}
		r := Result{Outcome: s.State, Reason: short(s.Failure.Message), Seconds: int(s.RunTime.Seconds())}
		if s.State != passed && s.State != skipped {
			r.Outcome = failed
		}
		all[s.name()] = r
	}
	return all
}

// short returns the first line of a message that says something, at most 160 bytes.
func short(message string) string {
	for line := range strings.Lines(message) {
		if line = strings.TrimSpace(line); line != "" {
			return strings.ToValidUTF8(line[:min(len(line), 160)], "")
		}
	}
	return ""
}

// dirty ends the name of a tree with changes that no commit has.
const dirty = "-dirty"

// treeName is the commit of the tree, with a mark if it has changes.
func treeName() string { return treeOf(node.Repo()) }

// treeOf is treeName for a repository. Files that runs write are no changes: a run begins with the
// results of the one before.
func treeOf(dir string) string {
	git := func(args ...string) (string, error) {
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).Output()
		return strings.TrimSpace(string(out)), err
	}
	commit, err := git("describe", "--always", "--abbrev=12", "--exclude=*")
	if err != nil {
		return "unknown"
	}
	changes, err := git("status", "--porcelain", "--untracked-files=all", "--", ".", ":!"+document, ":!test/e2enode/results", ":!docs/test-full.md")
	if err != nil || changes != "" {
		return commit + dirty
	}
	return commit
}
