package tui

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// failed records that a source cannot be read, or that it can be read again. A failure that changes
// its reason keeps its start time.
func (s *state) failed(u ui.PodUpdate, at time.Time) {
	from := s.sourceOf(u.Source, u.Location)
	if from == nil {
		return
	}
	if u.Ended {
		from.failing, from.since, from.reason = false, time.Time{}, ""
		return
	}
	if began, err := time.Parse(time.RFC3339, u.Since); err == nil {
		from.since = began
	} else if from.since.IsZero() {
		from.since = at
	}
	from.failing, from.reason = true, ui.Clean(u.Problem.Msg)
}

// reject records a problem of a manifest, or its end. If a new problem replaces another one of the
// same file, the stream does not report the end of that one. So the end of a problem also ends all
// older ones of the file.
func (s *state) reject(u ui.PodUpdate, at time.Time) {
	p, r := u.Problem, s.rejected[u.Problem.File]
	switch {
	case !u.Ended && r == nil:
		from := s.sourceOf(u.Source, u.Location)
		if from != nil {
			from.rejects++
		}
		s.rejected[p.File] = &rejection{from, map[pod.Problem]time.Time{p: at}}
	case !u.Ended:
		r.problems[p] = at
	case r != nil:
		appeared, known := r.problems[p]
		for other, when := range r.problems {
			if other == p || known && when.Before(appeared) {
				delete(r.problems, other)
			}
		}
		if len(r.problems) > 0 {
			return
		}
		delete(s.rejected, p.File)
		if r.from != nil {
			r.from.rejects--
		}
	}
}

// conflict records that another manifest defines the same pod, or the end of such a conflict.
func (s *state) conflict(u ui.PodUpdate) {
	loser := layer{u.Source, u.Location, u.Problem.File}
	for _, p := range u.Pods {
		key := pod.Key{Namespace: p.Namespace, Name: p.Name}
		if u.Ended {
			delete(s.conflicts[key], loser)
		} else {
			if s.conflicts[key] == nil {
				s.conflicts[key] = map[layer]bool{}
			}
			s.conflicts[key][loser] = true
		}
		if len(s.conflicts[key]) == 0 {
			delete(s.conflicts, key)
		}
	}
}

// forgetProblems drops every problem after lost updates. After the whole set, the stream reports
// again the problems that still exist. A source that still fails keeps its start time.
func (s *state) forgetProblems() {
	clear(s.rejected)
	clear(s.conflicts)
	for _, line := range s.sourceLines {
		line.failing, line.rejects = false, 0
	}
}
