package tui

import (
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// failed records that a source cannot be read, or can be again. A failure that changes its
// reason keeps its start time.
func (s *state) failed(u ui.PodUpdate, at time.Time) {
	from := s.from(u.Source, u.Location)
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

// reject records a problem of a manifest, or its end. The stream does not report the end of
// a problem that another one of the same file has replaced, so the end of a problem ends
// the older ones too.
func (s *state) reject(u ui.PodUpdate, at time.Time) {
	p, r := u.Problem, s.rejected[u.Problem.File]
	switch {
	case !u.Ended && r == nil:
		from := s.from(u.Source, u.Location)
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

// contest records that another manifest defines the same pod, or the end of that.
func (s *state) contest(u ui.PodUpdate) {
	loser := layer{u.Source, u.Location, u.Problem.File}
	for _, p := range u.Pods {
		key := pod.Key{Namespace: p.Namespace, Name: p.Name}
		if u.Ended {
			delete(s.contests[key], loser)
		} else {
			if s.contests[key] == nil {
				s.contests[key] = map[layer]bool{}
			}
			s.contests[key][loser] = true
		}
		if len(s.contests[key]) == 0 {
			delete(s.contests, key)
		}
	}
}

// forget drops every problem after lost updates: the stream reports those that still exist
// again, after the whole set. A source that still fails keeps its start time.
func (s *state) forget() {
	clear(s.rejected)
	clear(s.contests)
	for _, line := range s.sourceLines {
		line.failing, line.rejects = false, 0
	}
}
