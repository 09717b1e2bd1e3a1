package cmd

import (
	"errors"
	"iter"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/ui"
)

// sourceKinds returns all kinds of sources.
func sourceKinds() []string { return []string{"file", "http", "stdin", "etcd", pod.SourceAPI} }

// selection selects updates for a reader, and their detail. watch makes it from flags; an
// agent makes it from the query that watch --attach sends.
type selection struct {
	mode      podconfig.Mode
	full      bool     // with each pod's object
	notices   bool     // with the files that sources skip
	kinds     []string // of sources; none for all
	namespace string
	labels    string
	selector  labels.Selector // labels, read
	max       int             // updates; 0 for no end
}

// check validates a selection, and parses its selector.
func (s *selection) check() error {
	if s.max < 0 {
		return errors.New("--max-events: a number below 0 has no meaning")
	}
	for _, kind := range s.kinds {
		if !slices.Contains(sourceKinds(), kind) {
			return errors.New(`--source: "` + kind + `" is not one of ` + strings.Join(sourceKinds(), ", "))
		}
	}
	var err error
	if s.selector, err = labels.Parse(s.labels); err != nil {
		return errors.New("--selector: " + err.Error())
	}
	return nil
}

// query returns the selection as selectionOf reads it.
func (s selection) query() url.Values {
	q := url.Values{"mode": {s.mode.String()}, "full": {strconv.FormatBool(s.full)}, "notices": {strconv.FormatBool(s.notices)}}
	if len(s.kinds) > 0 {
		q["source"] = s.kinds
	}
	if s.namespace != "" {
		q.Set("namespace", s.namespace)
	}
	if s.labels != "" {
		q.Set("selector", s.labels)
	}
	if s.max > 0 {
		q.Set("max", strconv.Itoa(s.max))
	}
	return q
}

// selectionOf reads a query; an unknown parameter is an error.
func selectionOf(q url.Values) (s selection, err error) {
	for name, values := range q {
		if len(values) != 1 && name != "source" {
			return s, errors.New(name + " is given more than once")
		}
		var wrong error
		switch v := values[0]; name {
		case "mode":
			s.mode, wrong = podconfig.ParseMode(v)
		case "full":
			s.full, wrong = strconv.ParseBool(v)
		case "notices":
			s.notices, wrong = strconv.ParseBool(v)
		case "source":
			s.kinds = values
		case "namespace":
			s.namespace = v
		case "selector":
			s.labels = v
		case "max":
			s.max, wrong = strconv.Atoi(v)
		default:
			wrong = errors.New("nothing of that name")
		}
		if wrong != nil {
			return s, errors.New(name + ": " + wrong.Error())
		}
	}
	return s, s.check()
}

// documents turns updates into the reader's documents: the selected ones, numbered without
// gaps, until max. The problems of the last update follow it. A notice has no number.
func (s selection) documents(updates iter.Seq[feed.Update]) iter.Seq[ui.PodUpdate] {
	return func(yield func(ui.PodUpdate) bool) {
		lines, told := 0, 0
		enough := func() bool { return s.max > 0 && told >= s.max }
		for u := range updates {
			shown, ok := s.keep(u)
			switch {
			case !ok, enough() && u.IsPods():
			case u.Op == feed.NOTICE:
				if !yield(ui.NewPodUpdate(u, 0, false)) {
					return
				}
			default:
				lines++
				if u.IsPods() {
					told++
				}
				if !yield(ui.NewPodUpdate(shown, lines, s.full)) {
					return
				}
			}
			if enough() && u.Last {
				return
			}
		}
	}
}

// keep returns the selected part of an update, and whether it gets a line. The first update
// of a source always gets one: it shows that the source is ready.
func (s selection) keep(u feed.Update) (feed.Update, bool) {
	switch {
	case u.Op == feed.DROPPED:
		return u, true
	case len(s.kinds) > 0 && u.Source != podconfig.AllSources && !slices.Contains(s.kinds, u.Source):
		return u, false
	case u.Op == feed.NOTICE:
		return u, s.notices
	case u.Op == feed.CONFLICT:
		return u, s.namespace == "" || u.Key.Namespace == s.namespace
	case !u.IsPods() || len(s.kinds) == 0 && s.namespace == "" && s.selector.Empty():
		return u, true
	}
	all, before := u.Pods, u.Old
	u.Pods, u.Old = nil, nil
	for i, it := range all {
		var old *pod.Spec
		if i < len(before) {
			old = before[i]
		}
		// A reader that selects by labels gets the update with which a pod stops matching.
		if !s.wants(it, u.Op) && (old == nil || !s.wants(old, u.Op)) {
			continue
		}
		u.Pods, u.Old = append(u.Pods, it), append(u.Old, old)
	}
	return u, len(u.Pods) > 0 || u.First || u.Op == podconfig.SET
}

// wants reports whether s selects a pod. A SET holds the pods of every source.
func (s selection) wants(it *pod.Spec, op podconfig.Op) bool {
	return (s.namespace == "" || it.Namespace == s.namespace) && s.selector.Matches(labels.Set(it.Pod.Labels)) &&
		(op != podconfig.SET || len(s.kinds) == 0 || slices.Contains(s.kinds, it.Origin.Source))
}
