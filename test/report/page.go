package report

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/test/node"
)

// Origin says when and on which machine the figures were measured, and of which programs.
func Origin(r *Report) string {
	m := r.Machine
	kubelet := ""
	if m["kubelet"] != "" {
		kubelet = fmt.Sprintf("kubelet %s (%s), ", m["kubelet version"], m["kubelet"])
	}
	return fmt.Sprintf("Taken on %s on %s, %s memory, Linux %s, cgroup %s; %s, runc %s, %s; %snodectl %s (%s), %s.\n\n",
		r.Time.Format("2006-01-02"), m["cpu"], m["memory"], m["kernel"], m["cgroup"], m["runtime"], m["runc"], m["containerd"],
		kubelet, m["commit"], m["nodectl"], m["go"])
}

// A Row is one line of a table: the medians of its arms, and one figure of them.
type Row struct {
	Measure   int
	Metric    string
	Arms      []string // in the order of the columns, nodectl's last; "" is none
	To        int      // the arm that nodectl's median is divided by; nodectl itself: its median is the figure
	Unit      string   // if not a duration
	Must, Aim float64  // 0: for information
}

// Arm returns an arm of the row; nil where it was not measured.
func (w Row) Arm(r *Report, i int) *Arm {
	m := r.Find(w.Measure)
	if m == nil {
		return nil
	}
	return m.Lookup(w.Arms[i])
}

// ToArm is the name of the arm that nodectl's is divided by; "" is none.
func (w Row) ToArm() string {
	if w.To == len(w.Arms)-1 {
		return ""
	}
	name, _, _ := strings.Cut(w.Arms[w.To], ",")
	return name
}

// Figure makes the row's figure; nil when an arm was not measured.
func (w Row) Figure(r *Report) (f *Figure) {
	ours, to := w.Arm(r, len(w.Arms)-1), w.Arm(r, w.To)
	switch {
	case ours == nil || to == nil || w.ToArm() != "" && to.Median == 0:
		return nil
	case w.ToArm() == "":
		f = median(w.Metric, ours, w.Must, w.Unit)
	default:
		f = ratio(w.Metric+" / "+w.ToArm(), ours, to, w.Must)
	}
	f.Aim = w.Aim
	return f
}

// Text is the median of an arm.
func (w Row) Text(r *Report, i int) string {
	a := w.Arm(r, i)
	switch {
	case a == nil:
		return ""
	case a.Unit == "ms":
		return milliseconds(a.Median)
	}
	return (&Figure{Unit: w.Unit}).Text(a.Median)
}

func milliseconds(ms float64) string {
	switch {
	case math.Abs(ms) >= 10_000:
		return fmt.Sprintf("%.1f s", ms/1000)
	case math.Abs(ms) >= 1000:
		return fmt.Sprintf("%.2f s", ms/1000)
	case math.Abs(ms) < 10:
		return fmt.Sprintf("%.1f ms", ms)
	}
	return fmt.Sprintf("%.0f ms", ms)
}

// LimitText is one of the figure's limits.
func (f *Figure) LimitText(v float64) string {
	if v == 0 {
		return ""
	}
	return "≤ " + f.Text(v)
}

// Outcome reports whether the figure meets its limits.
func (f *Figure) Outcome() string {
	switch {
	case f.Limit == 0:
		return ""
	case !f.OK:
		return "**not met**"
	case f.Aim != 0 && f.Value <= f.Aim:
		return "met, and the aim"
	}
	return "met"
}

// SetFigures replaces the figures of all measures by those of the rows that were measured.
func SetFigures(r *Report, rows []Row) {
	for _, m := range r.Measures {
		m.Figures = nil
	}
	for _, w := range rows {
		if f := w.Figure(r); f != nil {
			r.Find(w.Measure).add(f)
		}
	}
}

// columns of samples, by their quantile.
var columns = map[float64]string{0: "min", 0.5: "p50", 0.9: "p90", 0.99: "p99", 1: "max"}

// Samples is the table of every series, with these quantiles, under a head for its first two
// columns: the measure as label has it, and the series.
func Samples(r *Report, head string, label func(*Measure) string, quantiles ...float64) string {
	var b strings.Builder
	rule := "|---|---|---|"
	b.WriteString("\n" + head + " n |")
	for _, q := range quantiles {
		b.WriteString(" " + columns[q] + " |")
		rule += "---|"
	}
	b.WriteString("\n" + rule + "\n")
	for _, m := range r.Measures {
		for _, a := range m.Arms {
			if a.Name == Between {
				continue
			}
			fmt.Fprintf(&b, "| %s | %s | %d |", label(m), a.Name, a.N)
			for _, q := range quantiles {
				b.WriteString(" " + a.Text(Quantile(a.Samples, q)) + " |")
			}
			b.WriteString("\n")
		}
	}
	return b.String() + "\n"
}

// Notes is a list of how quiet each measure's time was, and of its notes.
func Notes(r *Report, label func(*Measure) string) string {
	var b strings.Builder
	for _, m := range r.Measures {
		fmt.Fprintf(&b, "- %s before it began: %s\n", label(m), m.NoiseText())
		for _, n := range m.Notes {
			fmt.Fprintf(&b, "- %s %s\n", label(m), n)
		}
	}
	return b.String()
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
func (s Section) Whole(r *Report) error {
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
func (s Section) Write(r *Report, text string) error {
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
