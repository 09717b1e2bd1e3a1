// Package page writes a benchmark's figures for people, into docs/benchmarks.md.
//
// The one rule: only a whole run is written there.
package page

import (
	"errors"
	"fmt"
	"iter"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/test/bench/result"
	"github.com/nodectl/nodectl/test/node"
)

// Origin says when and on which machine a comparison with the kubelet was measured.
func Origin(r *result.Report) string {
	m := r.Machine
	return fmt.Sprintf("Taken on %s on %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; kubelet %s (%s), nodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), m["cpu"], m["memory"], m["kernel"], m["cgroup"], m["runtime"], m["runc"], m["containerd"],
		m["kubelet version"], m["kubelet"], m["commit"], m["nodectl"], m["go"])
}

// Noise says how quiet the machine was for a measure.
func Noise(m *result.Measure) string {
	loud := ""
	if !m.Quiet() {
		loud = " — NOT QUIET, provisional"
	}
	return m.Noise.String() + loud
}

// SetFigures replaces the figures of the measures with these IDs. A nil figure was not
// measured.
func SetFigures(r *result.Report, figures iter.Seq2[int, *result.Figure]) {
	for _, m := range r.Measures {
		m.Figures = nil
	}
	for id, f := range figures {
		if f != nil {
			m := r.Find(id)
			m.Figures = append(m.Figures, f)
		}
	}
}

// A Section is the part of the document that one command writes.
type Section struct {
	Command string // as users type it: it appears in the lines before and after
	Needs   []int  // the IDs of the measures of a whole run
}

func (s Section) marks() (begin, end string) {
	return "<!-- begin: " + s.Command + " -->\n", "<!-- end: " + s.Command + " -->\n"
}

// Whole returns an error if the report is not complete enough for the documentation.
func (s Section) Whole(r *result.Report) error {
	if r.Quick {
		return errors.New("a quick run shows that it works, not how fast anything is")
	}
	for _, id := range s.Needs {
		if r.Find(id) == nil {
			return fmt.Errorf("measure %d is missing: the docs are of a whole run", id)
		}
	}
	return nil
}

// Write writes the text, made from a whole report, into the document.
func (s Section) Write(r *result.Report, text string) error {
	if err := s.Whole(r); err != nil {
		return fmt.Errorf("docs are not written: %w", err)
	}
	file := filepath.Join(node.Repo(), "docs/benchmarks.md")
	doc, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	written, err := s.Insert(string(doc), text)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	return os.WriteFile(file, []byte(written), 0o644)
}

// Insert puts a text between the section's marks.
func (s Section) Insert(doc, text string) (string, error) {
	begin, end := s.marks()
	before, rest, ok := strings.Cut(doc, begin)
	_, after, ended := strings.Cut(rest, end)
	if !ok || !ended {
		return "", fmt.Errorf("no lines %q and %q", strings.TrimSpace(begin), strings.TrimSpace(end))
	}
	return before + begin + text + end + after, nil
}
