package ui

import (
	"fmt"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The values of SourceItem.State.
const (
	SourceOK       = "ok"       // its pods are from the newest reading
	SourceSilent   = "silent"   // it has not answered yet
	SourceRestored = "restored" // it has not answered yet; its pods are the last agent's
	SourceStale    = "stale"    // it cannot be read; its pods are from an older reading
	SourceFailing  = "failing"  // it could never be read
)

// SourceList is the answer of get sources.
type SourceList struct {
	Document
	Items []SourceItem `json:"items"`
}

// SourceItem is one layer of a running agent.
type SourceItem struct {
	Source    string         `json:"source"`
	Location  string         `json:"location"`
	Pods      int            `json:"pods"` // before the merge, last good ones included
	State     string         `json:"state"`
	Ready     bool           `json:"heard"`    // it was read at least once
	Ended     bool           `json:"ended"`    // it will not change any more
	Restored  bool           `json:"restored"` // its pods are the last agent's
	Stale     bool           `json:"stale"`    // its pods are from an older reading
	Since     string         `json:"since"`    // RFC 3339: since when it fails or has not answered; "" if neither
	LastRead  string         `json:"lastRead"` // RFC 3339, time of the reading in use; "" for never
	Error     string         `json:"error"`
	Problems  []pod.Problem  `json:"problems"`  // of its rejected manifests
	Conflicts []PlanConflict `json:"conflicts"` // those in which another source wins
	Skipped   []pod.Problem  `json:"skipped"`   // files that it skips, with reasons
}

// NewSourceList puts the sources of an agent into their document.
func NewSourceList(sources []feed.SourceState) SourceList {
	d := SourceList{Document: Document{APIVersion, "SourceList"}, Items: []SourceItem{}}
	for _, s := range sources {
		it := SourceItem{
			Source: s.Source, Location: s.Location, Pods: s.Pods, State: stateOf(s),
			Ready: s.Ready, Ended: s.Ended, Restored: s.Restored, Stale: s.Stale(),
			Since: stamp(s.Since), LastRead: stamp(s.LastGood), Error: s.Error,
			Problems: append([]pod.Problem{}, s.Problems...), Conflicts: []PlanConflict{}, Skipped: append([]pod.Problem{}, s.Skipped...),
		}
		for _, c := range s.Conflicts {
			it.Conflicts = append(it.Conflicts, PlanConflict{
				Pod: PodRef{Namespace: c.Key.Namespace, Name: c.Key.Name}, Winner: side(c.Winner), Loser: side(c.Loser), Reason: c.Reason,
			})
		}
		d.Items = append(d.Items, it)
	}
	return d
}

// stateOf returns the state of a source; the first match wins.
func stateOf(s feed.SourceState) string {
	switch {
	case s.Stale():
		return SourceStale
	case s.Error != "":
		return SourceFailing
	case s.Restored:
		return SourceRestored
	case !s.Ready && !s.Ended:
		return SourceSilent
	}
	return SourceOK
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

// when returns a time in now's zone, without the date if it is today.
func when(t, now time.Time) string {
	t = t.In(now.Location())
	if t.Format(time.DateOnly) == now.Format(time.DateOnly) {
		return t.Format(time.TimeOnly)
	}
	return t.Format(time.DateTime)
}

// since returns " since 12:05:02" for an RFC 3339 time, "" for none.
func since(rfc string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, rfc)
	if err != nil {
		return ""
	}
	return " since " + when(t, now)
}

// Sources returns the sources as a table. wide adds the numbers of rejections, lost conflicts and
// skipped files, and shows locations in full.
func (v *View) Sources(d SourceList, wide bool, now time.Time) string {
	header := []cell{{text: "SOURCE"}, {text: "LOCATION"}, {text: "PODS"}, {text: "STATE"}, {text: "LAST READ"}}
	if wide {
		header = append(header, cell{text: "REJECTED"}, cell{text: "CONFLICTS"}, cell{text: "SKIPPED"})
	}
	rows := [][]cell{append(header, cell{text: "REASON"})}
	for _, s := range d.Items {
		row := []cell{{text: s.Source}, {text: s.Location}, {text: fmt.Sprint(s.Pods)}, {s.State, sourceTone(s.State)}, {text: ago(s.LastRead, now)}}
		if wide {
			row = append(row, cell{text: fmt.Sprint(len(s.Problems))}, cell{text: fmt.Sprint(len(s.Conflicts))}, cell{text: fmt.Sprint(len(s.Skipped))})
		}
		row = append(row, cell{text: sourceReason(s, now)})
		for i := range row {
			if row[i].text = Clean(row[i].text); row[i].text == "" {
				row[i].text = "-"
			}
		}
		rows = append(rows, row)
	}
	if len(d.Items) == 0 {
		return ""
	}
	gap := 3
	if !wide {
		if v.width > 0 && v.width < 100 {
			gap = 2
		}
		v.squeeze(rows, 1, gap, 30)
	}
	return lines(v.columns("", []int{gap}, rows))
}

func sourceTone(state string) tone {
	switch state {
	case SourceOK:
		return good
	case SourceRestored, SourceSilent:
		return change
	}
	return bad
}

// sourceReason returns why a source is not ok, and since when.
func sourceReason(s SourceItem, now time.Time) string {
	began := since(s.Since, now)
	switch {
	case s.Error != "":
		if began != "" {
			began = strings.TrimSpace(began) + ": "
		}
		return began + s.Error
	case s.State == SourceRestored, s.State == SourceSilent:
		return "has not answered" + began
	case len(s.Problems) > 0:
		text := count(len(s.Problems), "problem") + ": " + within(s.Location, s.Problems[0].Place())
		if len(s.Problems) > 1 {
			text += ", …"
		}
		return text
	case len(s.Conflicts) > 0:
		return "loses " + count(len(s.Conflicts), "pod") + " to others"
	}
	return ""
}

// within returns a place relative to its directory.
func within(dir, place string) string {
	if rest, ok := strings.CutPrefix(place, strings.TrimSuffix(dir, "/")+"/"); ok {
		return rest
	}
	return place
}

func ago(rfc string, now time.Time) string {
	t, err := time.Parse(time.RFC3339, rfc)
	if err != nil {
		return "never"
	}
	return duration.HumanDuration(max(now.Sub(t), 0)) + " ago"
}

// SourceNames returns source/KIND:LOCATION, one a line.
func SourceNames(d SourceList) string {
	var all []string
	for _, s := range d.Items {
		all = append(all, "source/"+Clean(s.Source+":"+s.Location))
	}
	return lines(all)
}
