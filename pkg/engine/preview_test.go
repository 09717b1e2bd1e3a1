package engine

import (
	"context"
	"fmt"
	"iter"

	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
)

// said is a source with a fixed snapshot.
type said struct {
	name  string
	files []source.File
	err   error
}

func (s said) Name() string { return s.name }
func (s said) Sets(context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		if s.err != nil {
			yield(source.Snapshot{}, s.err)
			return
		}
		yield(source.Snapshot{Revision: 1, Files: source.FilesOf(s.files...)}, nil)
	}
}

func fileOf(s *pod.Spec) source.File {
	return source.File{File: s.Origin.File, Pods: []*pod.Spec{s}}
}

// summary formats a forecast as lines.
func summary(f forecast.Forecast) []string {
	var out []string
	for _, c := range f.Changes {
		line := fmt.Sprintf("%s %s %s", c.Op, c.Key.Name, c.Origin)
		for _, d := range c.Fields {
			line += fmt.Sprintf(" %s:%s->%s", d.Path, d.Old, d.New)
		}
		if c.Restarts() {
			line += fmt.Sprintf(" restart pod=%v %v", c.RestartPod, c.RestartContainers)
		}
		if len(c.Resizes) > 0 {
			line += fmt.Sprintf(" resize %v", c.Resizes)
		}
		if c.Op == podconfig.REMOVE {
			line += fmt.Sprintf(" grace=%d", c.Grace)
		}
		if c.Reason != "" {
			line += " (" + c.Reason + ")"
		}
		out = append(out, line)
	}
	for _, n := range f.Notices {
		out = append(out, "notice "+n)
	}
	return append(out, fmt.Sprintf("unchanged %d", f.Unchanged))
}
