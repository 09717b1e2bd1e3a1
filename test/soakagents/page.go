package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// Result is the result of one agent.
type Result struct {
	Arm, Version   string
	Date           time.Time
	Seed           uint64
	Kills, Reboots int

	Failed      map[string]int // pods, by the reason
	NotRunning  int            // waits for the pods of a round that ended without them
	Stuck       int            // rounds whose pods did not go
	Changed     int            // pods with other devices or CPUs after a reboot
	Shared      int            // devices of two pods
	Twice       int            // claims that were prepared again
	StagedTwice int            // volumes that were staged or published again
	Repeated    int            // calls whose answer a kill had lost
	Leaks       int            // claims, volumes and exclusive CPUs at the end
	Mounts      int            // mounts at the end
	Notes       []string
}

var section = report.Section{Command: "make soak-agents"}

// write writes the kept results into the page.
func write(dir string) error {
	var all []*Result
	for _, name := range []string{"kubelet", "nodectl"} {
		r := &Result{}
		err := report.ReadJSON(filepath.Join(dir, name+".json"), r)
		switch {
		case err == nil:
			all = append(all, r)
		case !errors.Is(err, os.ErrNotExist):
			return err
		}
	}
	page := filepath.Join(node.Repo(), "docs/soak-devices.md")
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	written, err := section.Insert(string(text), table(all))
	if err != nil {
		return fmt.Errorf("%s: %w", page, err)
	}
	return os.WriteFile(page, []byte(written), 0o644)
}

// table is the section of the page.
func table(all []*Result) string {
	var b strings.Builder
	row := func(what string, value func(*Result) any) {
		b.WriteString("| " + what + " |")
		for _, r := range all {
			fmt.Fprintf(&b, " %v |", value(r))
		}
		b.WriteString("\n")
	}
	b.WriteString("| |")
	for _, r := range all {
		b.WriteString(" " + r.Arm + " |")
	}
	b.WriteString("\n|---|" + strings.Repeat("---|", len(all)) + "\n")
	row("version", func(r *Result) any { return r.Version })
	row("date", func(r *Result) any { return r.Date.Format("2006-01-02") })
	row("random kills of the agent", func(r *Result) any { return r.Kills })
	row("reboots, with each plugin 30 s late", func(r *Result) any { return r.Reboots })
	reasons := make(map[string]bool)
	for _, r := range all {
		for reason := range r.Failed {
			reasons[reason] = true
		}
	}
	reasons["UnexpectedAdmissionError"] = true
	for _, reason := range slices.Sorted(maps.Keys(reasons)) {
		row("pods that failed: "+reason, func(r *Result) any { return r.Failed[reason] })
	}
	row("waits of 3 minutes without a pod that runs", func(r *Result) any { return r.NotRunning })
	row("pods with other devices or CPUs after a reboot", func(r *Result) any { return r.Changed })
	row("devices of two pods", func(r *Result) any { return r.Shared })
	row("claims prepared again, although the answer was known", func(r *Result) any { return r.Twice })
	row("volumes staged or published again, although the answer was known", func(r *Result) any { return r.StagedTwice })
	row("calls repeated because a kill lost the answer", func(r *Result) any { return r.Repeated })
	row("rounds whose pods were not gone after 3 minutes", func(r *Result) any { return r.Stuck })
	row("claims, volumes and exclusive CPUs left at the end", func(r *Result) any { return r.Leaks })
	row("mounts left at the end", func(r *Result) any { return r.Mounts })
	return b.String()
}
