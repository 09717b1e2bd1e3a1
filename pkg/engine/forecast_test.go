package engine

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// expectation is the expectation of a row for one pod: "" for no change.
type expectation struct {
	row  string
	key  pod.Key
	says string
}

// scenery is two layers, their files, and an agent that serves them.
type scenery struct {
	t      *testing.T
	r      *rand.Rand
	m      *machine
	layers [2]*shelf
	used   map[pod.Key]bool // pods of this round
	files  map[string]bool  // files of this round
	news   int
	past   []string // names of pods that were removed
	lack   []lacking
	undo   []func() // at the next round
}

var shelfNames = [2]string{"file:/m", "file:/n"}

// spec makes a pod as it is parsed from file of layer.
func (s *scenery) spec(layer int, file, name string, edits ...func(*v1.Pod)) *pod.Spec {
	old := mkpod(name, edits...)
	p := *old
	podspec.Fingerprint(&p, p.Pod)
	p.DependsOn, _ = pod.ParseDependsOn(p.Pod.Annotations[pod.AnnotationDependsOn])
	p.Origin = pod.Origin{Source: "file", Location: strings.TrimPrefix(shelfNames[layer], "file:"), File: file, Line: 1}
	return &p
}

// again writes the pod old, edited, into file of layer.
func (s *scenery) again(layer int, file string, old *pod.Spec, edits ...func(*v1.Pod)) *pod.Spec {
	return s.spec(layer, file, old.Name, append([]func(*v1.Pod){func(p *v1.Pod) { old.Pod.DeepCopyInto(p) }}, edits...)...)
}

func (s *scenery) path(layer int, name string) string {
	return strings.TrimPrefix(shelfNames[layer], "file:") + "/" + name + ".yaml"
}

func (s *scenery) put(layer int, file string, pods ...*pod.Spec) {
	s.layers[layer].files[file] = source.File{File: file, Pods: pods}
	s.files[file] = true
	for _, p := range pods {
		s.used[p.Key] = true
	}
}

// place is where a pod is defined.
type place struct {
	layer int
	file  string
	spec  *pod.Spec
}

// plain returns a pod that is alone in exactly one healthy file of a readable layer. It has
// no dependencies in either direction, and no row of this round has touched it.
func (s *scenery) plain(want func(place) bool) (place, bool) {
	var all []place
	count := map[pod.Key]int{}
	for i, l := range s.layers {
		for _, name := range slices.Sorted(maps.Keys(l.files)) {
			f := l.files[name]
			for _, p := range f.Pods {
				count[p.Key]++
				for _, d := range p.DependsOn {
					count[pod.Key{Namespace: p.Namespace, Name: d.Name}] += 2
				}
			}
			for _, k := range f.Broken {
				count[k] += 2
			}
			if l.err == nil && len(f.Pods) == 1 && len(f.Problems) == 0 && len(f.Pods[0].DependsOn) == 0 && !s.files[name] && !s.used[f.Pods[0].Key] {
				all = append(all, place{i, name, f.Pods[0]})
			}
		}
	}
	all = slices.DeleteFunc(all, func(p place) bool { return count[p.spec.Key] != 1 || s.lacks(p.spec) || !want(p) })
	if len(all) == 0 {
		return place{}, false
	}
	p := all[s.r.IntN(len(all))]
	s.used[p.spec.Key], s.files[p.file] = true, true
	return p, true
}

func (s *scenery) fresh() string { s.news++; return fmt.Sprintf("pod-%03d", s.news) }

func lives0(p place) bool { // a pod that keeps running
	return p.spec.Pod.Spec.RestartPolicy == v1.RestartPolicyAlways && p.spec.Pod.DeletionTimestamp == nil
}

func job(p *v1.Pod) {
	p.Spec.RestartPolicy = v1.RestartPolicyNever
	p.Spec.Containers[0].Image = "exit-0-after-1m"
}

func ended(p place) bool { return p.spec.Pod.Spec.RestartPolicy == v1.RestartPolicyNever }

func (s *scenery) nextImage(p *v1.Pod) {
	s.news++
	p.Spec.Containers[0].Image = fmt.Sprintf("app:%d", s.news)
}

// mend repairs the damage of earlier rounds, and removes all dependencies of pods.
func (s *scenery) mend() {
	for i, l := range s.layers {
		l.err = nil
		seen := map[pod.Key]bool{}
		for _, name := range slices.Sorted(maps.Keys(l.files)) {
			f := l.files[name]
			if len(f.Objects) > 0 {
				continue
			}
			if len(f.Problems) > 0 || len(f.Pods) == 0 || slices.ContainsFunc(f.Pods, func(p *pod.Spec) bool { return len(p.DependsOn) > 0 }) {
				delete(l.files, name)
				continue
			}
			f.Pods = slices.DeleteFunc(slices.Clone(f.Pods), func(p *pod.Spec) bool {
				was := seen[p.Key]
				seen[p.Key] = true
				return was || i == 1 && s.holds(0, p.Key)
			})
			if l.files[name] = f; len(f.Pods) == 0 {
				delete(l.files, name)
			}
		}
	}
}

func (s *scenery) holds(layer int, key pod.Key) bool {
	for _, f := range s.layers[layer].files {
		if slices.ContainsFunc(f.Pods, func(p *pod.Spec) bool { return p.Key == key }) {
			return true
		}
	}
	return false
}

func problemIn(file string) []pod.Problem {
	return []pod.Problem{{File: file, Line: 1, Msg: "is broken"}}
}

// healthy counts the files with one pod and no error.
func (s *scenery) healthy() int {
	n := 0
	for _, l := range s.layers {
		for _, f := range l.files {
			if l.err == nil && len(f.Pods) == 1 && len(f.Problems) == 0 && len(f.Pods[0].DependsOn) == 0 {
				n++
			}
		}
	}
	return n
}

// copies counts the files of a layer that define a pod.
func (s *scenery) copies(layer int, key pod.Key) int {
	n := 0
	for _, f := range s.layers[layer].files {
		if slices.ContainsFunc(f.Pods, func(p *pod.Spec) bool { return p.Key == key }) || slices.Contains(f.Broken, key) {
			n++
		}
	}
	return n
}

// preview is merge --dry-run of the current content of the shelves.
func (s *scenery) preview() forecast.Forecast {
	s.t.Helper()
	var kept []*pod.Spec
	records, _ := s.m.disk.All()
	for _, r := range records {
		kept = append(kept, r.Want)
	}
	conn := s.m.rt.Connect()
	defer conn.Cut()
	config := podconfig.New(podconfig.Config{
		Sources: []source.Source{s.layers[0].once(), s.layers[1].once()}, Recorded: kept, Restored: s.m.disk.restored(),
	})
	f, err := forecast.Preview(context.Background(), forecast.Options{Config: config, Observer: s.m.config(conn).Runtime, Records: records})
	if err != nil {
		s.t.Fatal(err)
	}
	return f
}

// says formats a forecast for one pod as an expectation does.
func says(f forecast.Forecast, key pod.Key) string {
	var words []string
	for _, c := range f.Changes {
		if c.Key != key {
			continue
		}
		words = append(words, string(c.Op))
		switch {
		case c.RestartPod:
			words = append(words, "pod")
		case len(c.RestartContainers) > 0:
			words = append(words, fmt.Sprint(c.RestartContainers))
		}
		for _, r := range c.Resizes {
			words = append(words, fmt.Sprint("resize ", r.Container, r.Resources))
		}
	}
	if slices.ContainsFunc(f.State.Problems, func(p pod.Problem) bool { return strings.HasPrefix(p.Msg, "pod "+key.String()+" depends on itself: ") }) {
		words = append(words, "reject")
	}
	object := conf(key.Name)
	if slices.ContainsFunc(f.State.Problems, func(p pod.Problem) bool {
		return strings.Contains(p.Msg, fmt.Sprintf(" source defines configmap %q", object))
	}) {
		words = append(words, "reject")
	}
	if slices.ContainsFunc(f.State.Problems, func(p pod.Problem) bool { return strings.HasPrefix(p.Msg, "ConfigMap default/"+object+" is immutable") }) {
		words = append(words, "held")
	}
	if slices.ContainsFunc(f.Notices, func(n string) bool { return strings.HasPrefix(n, "pod "+key.String()+" depends on pod ") }) {
		words = append(words, "waits")
	}
	if slices.ContainsFunc(f.State.Conflicts, func(c podconfig.Conflict) bool { return c.Key == key }) {
		words = append(words, "conflict")
	}
	return strings.Join(words, " ")
}

// calls formats steps as the runtime's transcript does.
func calls(key pod.Key, steps []plan.Step) []string {
	var out []string
	for _, st := range steps {
		of := key.String()
		if st.Container != "" {
			of += "/" + st.Container
		}
		switch st.Action {
		case plan.RunSandbox:
			out = append(out, fmt.Sprintf("RunPodSandbox %s attempt=%d", of, st.Attempt))
		case plan.CreateContainer:
			out = append(out, fmt.Sprintf("CreateContainer %s attempt=%d", of, st.Attempt))
		case plan.StartContainer:
			out = append(out, "StartContainer "+of)
		case plan.UpdateContainer:
			out = append(out, "UpdateContainerResources "+of)
		case plan.StopContainer:
			out = append(out, fmt.Sprintf("StopContainer %s grace=%d", of, st.Grace))
		case plan.RemoveContainer:
			out = append(out, "RemoveContainer "+of)
		case plan.StopSandbox:
			out = append(out, "StopPodSandbox "+of)
		case plan.RemoveSandbox:
			out = append(out, "RemovePodSandbox "+of)
		}
	}
	return inOrder(out)
}

var (
	attempt = regexp.MustCompile(` attempt=\d+`)
	signal  = regexp.MustCompile(` signal=\w+`)
)

// executed groups the calls of a transcript by pod.
func executed(transcript []string) map[pod.Key][]string {
	out := map[pod.Key][]string{}
	for _, line := range transcript {
		_, line, _ = strings.Cut(line, " ")
		method, rest, _ := strings.Cut(line, " ")
		if method == "PullImage" {
			continue
		}
		rest = signal.ReplaceAllString(rest, "")
		if method != "RunPodSandbox" && method != "CreateContainer" {
			rest = attempt.ReplaceAllString(rest, "")
		}
		path := strings.Split(strings.Fields(rest)[0], "/")
		if len(path) < 2 {
			continue
		}
		key := pod.Key{Namespace: path[0], Name: path[1]}
		out[key] = append(out[key], method+" "+rest)
	}
	for key := range out {
		out[key] = inOrder(out[key])
	}
	return out
}

// inOrder sorts consecutive stops: those of one pod's containers run in parallel.
func inOrder(lines []string) []string {
	for i := 0; i < len(lines); {
		j := i
		for j < len(lines) && strings.HasPrefix(lines[j], "StopContainer") {
			j++
		}
		slices.Sort(lines[i:j])
		i = max(j, i+1)
	}
	return lines
}

// round draws rows, previews them, lets the agent act, and compares.
func (s *scenery) round(rows []string, drawn map[string]int) {
	s.used, s.files = map[pod.Key]bool{}, map[string]bool{}
	var expect []expectation
	if s.r.IntN(7) == 0 {
		s.lock(s.mend)
		s.step(nil)
		s.used, s.files = map[pod.Key]bool{}, map[string]bool{}
	}
	all := s.rows()
	s.lock(func() {
		for _, undo := range s.undo {
			undo()
		}
		s.undo = nil
		for s.healthy() < 12 {
			row := "M1"
			if s.layers[1].err == nil && s.r.IntN(2) == 0 {
				row = "M41"
			}
			got := all[row]()
			drawn[row]++
			expect = append(expect, expectation{row, got[0].key, got[0].says})
		}
		for range 1 + s.r.IntN(3) {
			row := rows[s.r.IntN(len(rows))]
			if other := rows[s.r.IntN(len(rows))]; drawn[other] < drawn[row] { // rows that are hard to draw come first
				row = other
			}
			got := all[row]()
			for i := range got {
				got[i].row = row
			}
			if len(got) > 0 {
				drawn[row]++
			}
			expect = append(expect, got...)
			if row == "M23" && len(got) > 0 {
				break
			}
		}
	})
	s.step(expect)
}

func (s *scenery) lock(f func()) {
	for _, l := range s.layers {
		l.mu.Lock()
		defer l.mu.Unlock()
	}
	f()
}

func (s *scenery) step(expect []expectation) {
	s.t.Helper()
	f := s.preview()
	for _, e := range expect {
		if got := says(f, e.key); got != e.says {
			s.t.Errorf("%s: %s: the plan says %q, want %q", e.row, e.key, got, e.says)
		}
	}
	s.m.rt.Reset()
	s.tell()
	s.lock(func() { // a removed file is reported as gone from now on
		for _, l := range s.layers {
			l.held = map[string]source.File{}
		}
	})
	s.tell()
	s.lock(func() {
		for _, l := range s.layers {
			l.held = maps.Clone(l.files)
		}
	})
	s.m.pass(30 * time.Second)
	did := executed(s.m.rt.Transcript())
	s.m.pass(2 * time.Minute) // exits by itself: no plan has these
	for _, c := range f.Changes {
		want, got := calls(c.Key, c.Steps), did[c.Key]
		if strings.HasSuffix(says(f, c.Key), "waits") { // which Steps do not contain
			want = nil
		}
		if !slices.Equal(want, got) {
			s.t.Errorf("%s %s: the plan said\n\t%s\nserve did\n\t%s", c.Op, c.Key, strings.Join(want, "\n\t"), strings.Join(got, "\n\t"))
		}
		delete(did, c.Key)
	}
	for key, lines := range did {
		s.t.Errorf("%s: no plan (drawn: %v; notices: %q), and serve did\n\t%s", key, expect, f.Notices, strings.Join(lines, "\n\t"))
	}
}

// tell has the agent read every layer.
func (s *scenery) tell() {
	for _, l := range s.layers {
		select {
		case l.tell <- struct{}{}:
		default:
		}
	}
	s.m.settle()
}

// semanticsRows returns the rows of the first table of docs/merge-semantics.md.
func semanticsRows(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile("../../docs/merge-semantics.md")
	if err != nil {
		t.Fatal(err)
	}
	var rows []string
	for _, m := range regexp.MustCompile(`(?m)^\| (M\d+) \|`).FindAllStringSubmatch(string(text), -1) {
		rows = append(rows, m[1])
	}
	return rows
}

// TestForecast_RandomPlansAreExecuted draws 200 random mixtures of the rows of
// docs/merge-semantics.md. For each, merge --dry-run must predict the row's changes, and serve must
// then make exactly the predicted calls to the runtime.
func TestForecast_RandomPlansAreExecuted(t *testing.T) {
	rows := semanticsRows(t)
	drawn := map[string]int{}
	for story := range 5 {
		bubble(t, func(t *testing.T, m *machine) {
			m.src = nil
			m.disk.keepSets()
			s := &scenery{t: t, r: rand.New(rand.NewPCG(uint64(story), 3)), m: m, layers: [2]*shelf{newShelf(shelfNames[0]), newShelf(shelfNames[1])}}
			known := s.rows()
			for _, row := range rows {
				if known[row] == nil {
					t.Fatalf("%s is in docs/merge-semantics.md and the generator cannot draw it", row)
				}
			}
			m.extra = []source.Source{s.layers[0], s.layers[1]}
			m.arrive()
			m.pass(time.Second)
			for range 40 {
				s.round(rows, drawn)
				if t.Failed() {
					return
				}
			}
		})
	}
	for _, row := range rows {
		if drawn[row] == 0 {
			t.Errorf("%s of docs/merge-semantics.md was never drawn", row)
		}
	}
}
