package main

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Rounds is the course of a scenario: one line a step, with the pods that were created and
// deleted in consequence.
type Rounds []string

func parseRounds(text string) Rounds {
	out := Rounds{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}

func (r Rounds) String() string {
	if len(r) == 0 {
		return ""
	}
	return strings.Join(r, "\n") + "\n"
}

// A Book names the pods of one scenario, and writes down the rounds. Both sides have one: names
// with random parts differ between two runs, and labels do not.
//
// A label is the class of a pod, as v2 for the second version of a Deployment's template, and its
// number in the order of creation. Pods of one class to which the same happened in the same
// rounds are alike: if the controllers delete some of them, these are the ones with the lowest
// numbers.
type Book struct {
	pods    []*booked
	hashes  map[string]int    // versions, in the order of their appearance
	counts  map[string]int    // pods of each class
	owners  map[string]string // Jobs of a CronJob, and their labels
	rounds  Rounds
	states  map[string]string // conditions of the workload, as last written down
	current map[string]string // conditions now
	created []*booked         // in this round
	deleted []*booked         // likewise
}

// booked is one pod.
type booked struct {
	id      string
	class   string
	number  int // 0 for a pod that has a name of its own
	history string
	leaving bool // it was deleted, and may still stop
	gone    bool
	ended   bool // it has Succeeded or Failed
}

func newBook() *Book {
	return &Book{
		hashes: map[string]int{}, counts: map[string]int{}, owners: map[string]string{},
		states: map[string]string{}, current: map[string]string{},
	}
}

func (p *booked) label() string {
	if p.number == 0 {
		return p.class
	}
	return p.class + "#" + strconv.Itoa(p.number)
}

// facts are the labels and annotations of a pod that say to which class it belongs.
type facts struct {
	kind, name  string // of the workload's kind; of the pod
	owner       string // the pod's controller
	labels      map[string]string
	annotations map[string]string
}

// class returns the class of a pod, and whether its name is its own.
func (b *Book) class(f facts) (class string, own bool) {
	version := func(label string) string {
		hash := f.labels[label]
		if b.hashes[hash] == 0 {
			b.hashes[hash] = len(b.hashes) + 1
		}
		return fmt.Sprintf("v%d", b.hashes[hash])
	}
	switch f.kind {
	case "Deployment":
		return version("pod-template-hash"), false
	case "DaemonSet":
		return version("controller-revision-hash"), false
	case "StatefulSet":
		return f.name + "@" + version("controller-revision-hash"), true
	case "CronJob":
		if b.owners[f.owner] == "" {
			b.owners[f.owner] = fmt.Sprintf("run%d", len(b.owners)+1)
		}
		return b.owners[f.owner], false
	case "Job":
		if index, ok := f.annotations["batch.kubernetes.io/job-completion-index"]; ok {
			return "index" + index, false
		}
	}
	return "pod", false
}

// Created notes a new pod.
func (b *Book) Created(id string, f facts) {
	class, own := b.class(f)
	p := &booked{id: id, class: class}
	if !own {
		b.counts[class]++
		p.number = b.counts[class]
	}
	b.pods = append(b.pods, p)
	b.created = append(b.created, p)
	p.history = fmt.Sprintf("created in %d", len(b.rounds))
}

// Deleted notes that a pod has to stop. gone says that nothing is left of it.
func (b *Book) Deleted(id string, gone bool) {
	p := b.byID(id)
	if p == nil {
		return
	}
	if !p.leaving {
		p.leaving = true
		b.deleted = append(b.deleted, p)
	}
	p.gone = p.gone || gone
}

func (b *Book) byID(id string) *booked {
	for _, p := range b.pods {
		if p.id == id {
			return p
		}
	}
	return nil
}

// Note notes a condition of the workload, "" for one that does not count. A round has those that
// changed.
func (b *Book) Note(condition, value string) { b.current[condition] = value }

// Touch notes that a step changed a pod.
func (b *Book) Touch(p *booked, step Step) {
	p.history += fmt.Sprintf(", %s in %d", step.Verb, len(b.rounds))
	if slices.Contains([]string{"succeed", "fail", "evict", "disrupt"}, step.Verb) {
		p.ended = true
	}
}

// Select returns the pods that a step names, in the order of their creation: by label, by class,
// or all. Only a label selects a pod that was deleted or has ended.
func (b *Book) Select(selectors ...string) []*booked {
	var out []*booked
	for _, p := range b.pods {
		if p.gone {
			continue
		}
		open := !p.leaving && !p.ended
		if slices.ContainsFunc(selectors, func(s string) bool {
			return p.number > 0 && s == p.label() || open && (s == "all" || s == p.class || strings.HasPrefix(p.class, s+"@"))
		}) {
			out = append(out, p)
		}
	}
	return out
}

// Leaving returns the deleted pods that may still stop.
func (b *Book) Leaving(selectors ...string) []*booked {
	var out []*booked
	for _, p := range b.pods {
		if p.leaving && !p.gone && (len(selectors) == 0 || slices.ContainsFunc(selectors, func(s string) bool {
			return s == p.label() || s == p.class || strings.HasPrefix(p.class, s+"@")
		})) {
			out = append(out, p)
		}
	}
	return out
}

// Close ends a round, and reports whether pods or conditions changed in it.
func (b *Book) Close(step string) bool {
	b.relabel()
	var parts []string
	for _, list := range []struct {
		sign string
		pods []*booked
	}{{"+", b.created}, {"-", b.deleted}} {
		slices.SortFunc(list.pods, func(a, b *booked) int { return cmp.Or(cmp.Compare(a.class, b.class), a.number-b.number) })
		for _, p := range list.pods {
			parts = append(parts, list.sign+p.label())
		}
	}
	for _, name := range slices.Sorted(maps.Keys(b.current)) {
		if value := b.current[name]; b.states[name] != value {
			b.states[name] = value
			if value != "" {
				parts = append(parts, name+" "+value)
			}
		}
	}
	changed := len(parts) > 0
	if !changed {
		parts = []string{"nothing"}
	}
	b.rounds = append(b.rounds, step+": "+strings.Join(parts, ", "))
	b.created, b.deleted = nil, nil
	return changed
}

// relabel gives the lowest numbers among pods that are alike to those that were deleted.
func (b *Book) relabel() {
	groups := map[string][]*booked{}
	for _, p := range b.pods {
		if p.number > 0 && (!p.leaving || slices.Contains(b.deleted, p)) {
			key := p.class + ": " + p.history
			groups[key] = append(groups[key], p)
		}
	}
	for _, pods := range groups {
		var numbers []int
		for _, p := range pods {
			numbers = append(numbers, p.number)
		}
		slices.Sort(numbers)
		slices.SortStableFunc(pods, func(a, b *booked) int {
			switch {
			case a.leaving == b.leaving:
				return a.number - b.number
			case a.leaving:
				return -1
			}
			return 1
		})
		for i, p := range pods {
			p.number = numbers[i]
		}
	}
}
