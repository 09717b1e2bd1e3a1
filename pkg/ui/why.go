package ui

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
)

// WhyReport is the document of nodectl why.
type WhyReport struct {
	Document
	activity.Report
}

// NewWhyReport puts a report into its document.
func NewWhyReport(r activity.Report) WhyReport {
	return WhyReport{Document{APIVersion, "WhyReport"}, r}
}

// Why returns a report as text: first the summary, then the details.
func (v *View) Why(r activity.Report) string {
	w := whyText{view: v, now: r.Now}
	phase := r.Phase
	if phase == "" {
		phase = "no status yet"
	}
	if r.Stopping {
		phase += ", stopping"
	}
	mark := change
	if r.Settled {
		mark = good
	}
	w.line(0, v.paint(strong, "pod/"+Clean(r.Name))+" in namespace "+Clean(r.Namespace)+" ("+Clean(phase)+")")
	w.line(1, v.paint(mark, Clean(r.Summary)))
	if r.Message != "" && !strings.Contains(r.Summary, r.Message) {
		w.line(1, Clean(strings.TrimSpace(r.Reason+": "+r.Message)))
	}
	w.state(r)
	w.calls("Running now:", r.Calls)
	w.mounts(r.Mounts)
	w.processes(r.Processes)
	w.rest(r)
	w.calls("The agent itself:", r.Agent)
	if r.AgentWaits != "" && r.AgentWaits != r.Summary {
		w.title("All pods:")
		w.line(1, Clean(r.AgentWaits))
	}
	return w.b.String()
}

// shownStack is the maximum number of functions of a kernel stack in the text.
const shownStack = 5

// whyText is the text of one report.
type whyText struct {
	view *View
	b    strings.Builder
	now  time.Time
}

func (w *whyText) line(level int, text string) {
	w.b.WriteString(strings.Repeat("  ", level) + text + "\n")
}

func (w *whyText) title(text string) { w.line(0, w.view.paint(strong, text)) }

// lasted returns the time since at: "for 12s".
func (w *whyText) lasted(at time.Time) string {
	return "for " + w.now.Sub(at).Truncate(100*time.Millisecond).String()
}

// in returns the time until at: "in 30s", or "now" if it has passed.
func (w *whyText) in(at time.Time) string {
	if left := at.Sub(w.now).Round(time.Second); left > 0 {
		return "in " + left.String()
	}
	return "now"
}

// state writes the plan and the failures.
func (w *whyText) state(r activity.Report) {
	s := r.State
	if s == nil {
		return
	}
	w.title("Plan:")
	if s.WaitFor != "" {
		w.line(1, "has waited "+w.lasted(s.Since)+": "+Clean(s.WaitFor))
	}
	for i, step := range s.Steps {
		word := "then  "
		if i == 0 {
			word = "next  "
		}
		w.line(1, word+Clean(step))
	}
	isRetry := func(f activity.Failure) bool { return !f.Until.IsZero() && w.in(f.Until) == w.in(s.Until) }
	if !s.Until.IsZero() && !slices.ContainsFunc(s.Failures, isRetry) {
		w.line(1, "continues "+w.in(s.Until))
	}
	for _, f := range s.Failures {
		text := f.Reason + ": " + f.Message
		if f.Container != "" {
			text = "container " + f.Container + ": " + text
		}
		if f.Count > 1 {
			text += fmt.Sprintf(" (%d times)", f.Count)
		}
		if !f.Until.IsZero() {
			text += ", next try " + w.in(f.Until)
		}
		w.line(1, w.view.paint(bad, "failed")+" "+Clean(text))
	}
}

func (w *whyText) calls(title string, calls []activity.Call) {
	if len(calls) == 0 {
		return
	}
	w.title(title)
	for _, c := range calls {
		text := Clean(c.String()) + " " + w.lasted(c.Since)
		if !c.Limit.IsZero() {
			text += ", fails " + w.in(c.Limit)
		}
		w.line(1, text)
	}
}

func (w *whyText) mounts(mounts []activity.Mount) {
	if len(mounts) == 0 {
		return
	}
	w.title("Mounts:")
	for _, m := range mounts {
		state := "answers"
		switch {
		case m.Hangs:
			state = w.view.paint(bad, "does not answer")
		case m.Error != "":
			state = w.view.paint(bad, Clean(m.Error))
		}
		w.line(1, Clean(m.Path)+" ("+Clean(m.Type)+" from "+Clean(m.Source)+") "+state)
	}
}

func (w *whyText) processes(all []activity.Process) {
	if len(all) == 0 {
		return
	}
	w.title("Processes:")
	for _, p := range all {
		text := fmt.Sprintf("%d %s (%s)", p.PID, Clean(p.Name), Clean(p.Of))
		if p.TID != 0 {
			text += fmt.Sprintf(", thread %d", p.TID)
		}
		text += ", " + processState(p.State)
		if p.Waits != "" && len(p.Stack) == 0 {
			text += ", waits in " + Clean(p.Waits)
		}
		w.line(1, text)
		for i, function := range p.Stack[:min(len(p.Stack), shownStack)] {
			word := "   "
			if i == 0 {
				word = "in "
			}
			w.line(2, w.view.paint(faint, word+Clean(function)))
		}
	}
}

func processState(letter string) string {
	switch letter {
	case "D":
		return "in an uninterruptible wait (D)"
	case "T":
		return "stopped by a signal (T)"
	}
	return "state " + Clean(letter)
}

// rest writes registries, the source and the warnings.
func (w *whyText) rest(r activity.Report) {
	for _, reg := range r.Registries {
		text := "answers"
		switch {
		case reg.Waiting:
			text = "the pull waits for other pulls, or for the pull rate"
		case reg.Error != "":
			text = w.view.paint(bad, Clean(reg.Error))
		}
		w.title("Registry:")
		w.line(1, Clean(reg.Host)+": "+text)
	}
	if s := r.Source; s != nil {
		text := Clean(s.Name) + ": " + w.view.paint(bad, Clean(s.Error))
		if !s.Since.IsZero() {
			text += " " + w.lasted(s.Since)
		}
		w.title("Source:")
		w.line(1, text)
	}
	if s := r.Server; s != nil {
		w.title("API server:")
		w.line(1, Clean(s.Host)+": "+w.view.paint(bad, Clean(s.Error)))
	}
	if r.Settled || len(r.Warnings) == 0 {
		return
	}
	w.title("Last warnings:")
	for _, e := range r.Warnings {
		text := Clean(e.Reason + ": " + e.Message)
		if e.Count > 1 {
			text += fmt.Sprintf(" (%d times)", e.Count)
		}
		w.line(1, ageOf(e.At, w.now)+" ago  "+text)
	}
}
