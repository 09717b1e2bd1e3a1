package ui

import (
	"fmt"
	"strconv"
	"strings"
)

// Reclaim is the output of reclaim --dry-run: the levels of the node's resources, and the objects
// that it would remove now.
type Reclaim struct {
	Document
	Levels []ReclaimLevel `json:"levels"`
	Rounds []ReclaimRound `json:"rounds"`
}

// ReclaimLevel is the level of one signal: how much of its resource is left.
type ReclaimLevel struct {
	Signal     string             `json:"signal"`
	Available  int64              `json:"available"`
	Capacity   int64              `json:"capacity"`
	Assumed    bool               `json:"assumed,omitempty"`
	Thresholds []ReclaimThreshold `json:"thresholds,omitempty"`
}

// ReclaimThreshold is a threshold of a signal.
type ReclaimThreshold struct {
	Limit string `json:"limit"`
	Least int64  `json:"least"` // the limit in the unit of the signal
	Grace string `json:"gracePeriod,omitempty"`
	Met   bool   `json:"met"`
}

// ReclaimRound is one round of removals.
type ReclaimRound struct {
	In         string        `json:"in"` // from now
	Conditions []string      `json:"conditions,omitempty"`
	Steps      []ReclaimStep `json:"steps"`
	Stuck      string        `json:"stuck,omitempty"` // why a round without steps can remove nothing
}

// ReclaimStep is one removal with its reason.
type ReclaimStep struct {
	Action string `json:"action"`
	ID     string `json:"id"`
	Name   string `json:"name,omitempty"`
	Pod    string `json:"pod,omitempty"`
	Bytes  int64  `json:"bytes"` // that it frees on disks
	Grace  int64  `json:"gracePeriodSeconds,omitempty"`
	Why    string `json:"why"`
}

// text describes the step.
func (s ReclaimStep) text() string {
	switch s.Action {
	case "evict-pod":
		return fmt.Sprintf("pod/%s would be evicted, %s: %s", s.Pod, binary(s.Bytes), s.Why)
	case "remove-image":
		return fmt.Sprintf("image/%s would be removed, %s: %s", s.Name, binary(s.Bytes), s.Why)
	case "remove-container":
		return fmt.Sprintf("container %s of pod %s would be removed, %s: %s", s.Name, s.Pod, binary(s.Bytes), s.Why)
	}
	return fmt.Sprintf("a stopped sandbox of pod %s would be removed, %s: %s", s.Pod, binary(s.Bytes), s.Why)
}

// amount returns an amount in the unit of the signal.
func (l ReclaimLevel) amount(n int64) string {
	if strings.HasSuffix(l.Signal, ".inodesFree") || l.Signal == "pid.available" {
		return strconv.FormatInt(n, 10)
	}
	return binary(n)
}

// limits returns the thresholds as text.
func (l ReclaimLevel) limits() string {
	var all []string
	for _, t := range l.Thresholds {
		text := t.Limit
		if t.Grace != "" {
			text += " for " + t.Grace
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

// Reclaim returns the levels as a table, then a line for each step, and the sum.
func (v *View) Reclaim(d Reclaim) string {
	g := grid(Columns{}, "SIGNAL", "AVAILABLE", "CAPACITY", "STATE", "THRESHOLD")
	for _, l := range d.Levels {
		state := cell{text: "ok", tone: good}
		for _, t := range l.Thresholds {
			if t.Met {
				state = cell{text: "met", tone: bad}
			}
		}
		if l.Assumed {
			state.text += ", assumed"
		}
		g.add(Columns{}, nil, cell{text: l.Signal}, cell{text: l.amount(l.Available)}, cell{text: l.amount(l.Capacity)}, state, cell{text: l.limits()})
	}
	all := []string{""}
	steps, total := 0, int64(0)
	for _, r := range d.Rounds {
		if r.In != "0s" {
			all = append(all, "after "+r.In+":")
		}
		for _, s := range r.Steps {
			all = append(all, Clean(s.text()))
			steps++
			total += s.Bytes
		}
		if r.Stuck != "" {
			all = append(all, "nothing more can be removed: "+Clean(r.Stuck))
		}
	}
	if len(d.Rounds) == 0 {
		all = append(all, "no threshold is met: nothing would be removed")
	} else {
		all = append(all, fmt.Sprintf("%s, %s on disks would be freed", count(steps, "step"), binary(total)))
	}
	return v.Grid(g, Columns{}) + lines(all)
}

// binary returns bytes as thresholds are written: "1.5Gi".
func binary(n int64) string {
	f, unit := float64(n), ""
	for _, u := range []string{"Ki", "Mi", "Gi", "Ti"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, u
	}
	if unit == "" {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%.1f%s", f, unit)
}
