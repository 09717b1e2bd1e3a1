package ui

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
)

// SourceKinds returns all kinds of sources.
func SourceKinds() []string { return []string{"file", "http", "stdin", "etcd", pod.SourceAPI} }

// Selection selects updates for a reader, and their detail. watch makes it from flags. An agent
// makes it from the query that watch --attach sends. Call Check before Documents.
type Selection struct {
	Mode      podconfig.Mode
	Full      bool     // with each pod's object
	Notices   bool     // with the files that sources skip
	Kinds     []string // of sources; none for all
	Namespace string
	Labels    string
	Max       int             // updates; 0 for no limit
	selector  labels.Selector // Labels, parsed
}

// Check validates a selection, and parses its selector.
func (s *Selection) Check() error {
	if s.Max < 0 {
		return errors.New("--max-events: must not be negative")
	}
	for _, kind := range s.Kinds {
		if !slices.Contains(SourceKinds(), kind) {
			return errors.New(`--source: "` + kind + `" is not one of ` + strings.Join(SourceKinds(), ", "))
		}
	}
	var err error
	if s.selector, err = labels.Parse(s.Labels); err != nil {
		return errors.New("--selector: " + err.Error())
	}
	return nil
}

// Query returns the selection as ParseSelection reads it.
func (s Selection) Query() url.Values {
	q := url.Values{"mode": {s.Mode.String()}, "full": {strconv.FormatBool(s.Full)}, "notices": {strconv.FormatBool(s.Notices)}}
	if len(s.Kinds) > 0 {
		q["source"] = s.Kinds
	}
	if s.Namespace != "" {
		q.Set("namespace", s.Namespace)
	}
	if s.Labels != "" {
		q.Set("selector", s.Labels)
	}
	if s.Max > 0 {
		q.Set("max", strconv.Itoa(s.Max))
	}
	return q
}

// ParseSelection reads a query; an unknown parameter is an error.
func ParseSelection(q url.Values) (s Selection, err error) {
	for name, values := range q {
		if len(values) != 1 && name != "source" {
			return s, errors.New(name + " is given more than once")
		}
		var wrong error
		switch v := values[0]; name {
		case "mode":
			s.Mode, wrong = podconfig.ParseMode(v)
		case "full":
			s.Full, wrong = strconv.ParseBool(v)
		case "notices":
			s.Notices, wrong = strconv.ParseBool(v)
		case "source":
			s.Kinds = values
		case "namespace":
			s.Namespace = v
		case "selector":
			s.Labels = v
		case "max":
			s.Max, wrong = strconv.Atoi(v)
		default:
			wrong = errors.New("unknown parameter")
		}
		if wrong != nil {
			return s, errors.New(name + ": " + wrong.Error())
		}
	}
	return s, s.Check()
}

// Documents returns the documents of the selected updates, numbered without gaps. It ends after Max
// updates of pods and the problems that belong to the last one. A notice has no number.
func (s Selection) Documents(updates iter.Seq[feed.Update]) iter.Seq[PodUpdate] {
	return func(yield func(PodUpdate) bool) {
		lines, printed := 0, 0
		enough := func() bool { return s.Max > 0 && printed >= s.Max }
		for u := range updates {
			shown, ok := s.keep(u)
			switch {
			case !ok, enough() && u.IsPods():
			case u.Op == feed.NOTICE:
				if !yield(NewPodUpdate(u, 0, false)) {
					return
				}
			default:
				lines++
				if u.IsPods() {
					printed++
				}
				if !yield(NewPodUpdate(shown, lines, s.Full)) {
					return
				}
			}
			if enough() && u.Last {
				return
			}
		}
	}
}

// keep returns the selected part of an update, and whether it gets a document. The first update of a
// source always gets one: it shows that the source is ready.
func (s Selection) keep(u feed.Update) (feed.Update, bool) {
	switch {
	case u.Op == feed.DROPPED:
		return u, true
	case len(s.Kinds) > 0 && u.Source != podconfig.AllSources && !slices.Contains(s.Kinds, u.Source):
		return u, false
	case u.Op == feed.NOTICE:
		return u, s.Notices
	case u.Op == feed.CONFLICT:
		return u, s.Namespace == "" || u.Key.Namespace == s.Namespace
	case !u.IsPods() || len(s.Kinds) == 0 && s.Namespace == "" && s.selector.Empty():
		return u, true
	}
	all, before := u.Pods, u.Old
	u.Pods, u.Old = nil, nil
	for i, it := range all {
		var old *pod.Spec
		if i < len(before) {
			old = before[i]
		}
		// A reader that selects by labels also gets the update after which a pod no longer matches.
		if !s.selects(it, u.Op) && (old == nil || !s.selects(old, u.Op)) {
			continue
		}
		u.Pods, u.Old = append(u.Pods, it), append(u.Old, old)
	}
	return u, len(u.Pods) > 0 || u.First || u.Op == podconfig.SET
}

// selects reports whether s selects a pod. A SET has the pods of every source.
func (s Selection) selects(it *pod.Spec, op podconfig.Op) bool {
	return (s.Namespace == "" || it.Namespace == s.Namespace) && s.selector.Matches(labels.Set(it.Pod.Labels)) &&
		(op != podconfig.SET || len(s.Kinds) == 0 || slices.Contains(s.Kinds, it.Origin.Source))
}
