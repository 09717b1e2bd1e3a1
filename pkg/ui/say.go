package ui

import (
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Error returns one error for standard error: "error: text", then its hints.
// Every line of text becomes an error of its own.
func (v *View) Error(text string, hints ...string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(strings.TrimRight(text, "\n"), "\n") {
		b.WriteString(v.paint(bad, "error:") + " " + Clean(line) + "\n")
	}
	for _, h := range hints {
		if h != "" {
			b.WriteString("  " + v.paint(faint, "hint:") + " " + Clean(h) + "\n")
		}
	}
	return b.String()
}

// Problem returns a problem as an error.
func (v *View) Problem(p pod.Problem) string { return v.Error(Clean(p.Error()), p.Hint) }

// Notice returns one notice for standard error.
func (v *View) Notice(text string) string {
	return v.paint(faint, "notice:") + " " + Clean(text) + "\n"
}

// Conflict returns one conflict for standard error.
func (v *View) Conflict(key pod.Key, winner, loser pod.Origin, reason string) string {
	text := key.String() + ": " + loser.Source + " " + loser.String() + " loses to " + winner.String()
	if reason != "" {
		text += " (" + reason + ")"
	}
	return v.paint(change, "conflict:") + " " + Clean(text) + "\n"
}
