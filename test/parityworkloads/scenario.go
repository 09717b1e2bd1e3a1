package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"sigs.k8s.io/yaml"
)

// A Scenario is one file of testdata: a workload, the steps that follow, and the pods that
// Kubernetes' controllers then create and delete.
type Scenario struct {
	Name  string // of the file, without its suffix
	Group string // the first word of the name: deployment, statefulset, job, …
	Shows string // the comment of the file
	// Object is the workload as YAML.
	Object string
	Steps  []Step
	// Kubernetes are the recorded rounds of kube-controller-manager. Nodectl are those of nodectl
	// where they differ, nil where they do not; Reason is why they differ.
	Kubernetes, Nodectl Rounds
	Reason              string

	file    string
	archive *txtar.Archive
}

// isRecorded reports whether the rounds of Kubernetes' controllers are known.
func (s *Scenario) isRecorded() bool { return len(s.Kubernetes) > 0 }

// A Step is one line of a script.
type Step struct {
	Verb string
	Args []string
	Text string // the line
}

// The sections of a scenario's file.
const (
	sectionObject     = "object.yaml"
	sectionScript     = "script"
	sectionKubernetes = "kubernetes"
	sectionNodectl    = "nodectl"
	sectionReason     = "reason"
)

// readScenarios reads all scenarios of a directory, by name.
func readScenarios(dir string) ([]*Scenario, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.txtar"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var all []*Scenario
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		s, err := parseScenario(file, text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all = append(all, s)
	}
	return all, nil
}

func parseScenario(file string, text []byte) (*Scenario, error) {
	name := strings.TrimSuffix(filepath.Base(file), ".txtar")
	group, _, _ := strings.Cut(name, "-")
	s := &Scenario{Name: name, Group: group, file: file, archive: txtar.Parse(text)}
	s.Shows = strings.TrimSpace(string(s.archive.Comment))
	script := ""
	for _, f := range s.archive.Files {
		data := string(f.Data)
		switch f.Name {
		case sectionObject:
			s.Object = data
		case sectionScript:
			script = data
		case sectionKubernetes:
			s.Kubernetes = parseRounds(data)
		case sectionNodectl:
			s.Nodectl = parseRounds(data)
		case sectionReason:
			s.Reason = strings.TrimSpace(data)
		default:
			return nil, fmt.Errorf("unknown section %q", f.Name)
		}
	}
	if s.Shows == "" || s.Object == "" || script == "" {
		return nil, errors.New("it lacks a comment, an object or a script")
	}
	for line := range strings.Lines(script) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		step, err := parseStep(line)
		if err != nil {
			return nil, err
		}
		s.Steps = append(s.Steps, step)
	}
	return s, nil
}

// verbs has the number of arguments of each step: the fewest, and the most (-1: no limit).
var verbs = map[string][2]int{
	"image": {1, 1}, "edit": {1, 1}, // changes of the object
	"scale": {1, 1}, "undo": {0, 1}, "restart": {0, 0}, "pause": {0, 0}, "resume": {0, 0}, // commands
	"ready": {1, -1}, "unready": {1, -1}, "succeed": {1, -1}, "evict": {1, -1}, "disrupt": {1, -1}, // statuses of pods
	"fail": {2, -1}, "restarts": {2, -1}, // the last argument is a number
	"delete": {1, -1}, "gone": {0, -1},
	"pass": {1, 1}, "minute": {0, 0}, "settle": {0, 0},
}

func parseStep(line string) (Step, error) {
	words := strings.Fields(line)
	step := Step{Verb: words[0], Args: words[1:], Text: line}
	if step.Verb == "edit" {
		step.Args = []string{strings.TrimSpace(strings.TrimPrefix(line, "edit"))}
		var patch map[string]any
		if err := yaml.Unmarshal([]byte(step.Args[0]), &patch); err != nil {
			return step, fmt.Errorf("step %q: %w", line, err)
		}
	}
	count, ok := verbs[step.Verb]
	if n := len(step.Args); !ok || n < count[0] || count[1] >= 0 && n > count[1] {
		return step, fmt.Errorf("step %q: unknown verb, or a wrong number of arguments", line)
	}
	var err error
	switch step.Verb {
	case "scale", "fail", "restarts":
		_, err = strconv.Atoi(step.Args[len(step.Args)-1])
	case "pass":
		_, err = time.ParseDuration(step.Args[0])
	}
	if err != nil {
		return step, fmt.Errorf("step %q: %w", line, err)
	}
	return step, nil
}

// selectors returns the names of pods in the step.
func (s Step) selectors() []string {
	if s.Verb == "fail" || s.Verb == "restarts" {
		return s.Args[:len(s.Args)-1]
	}
	return s.Args
}

// number returns the last argument, a number.
func (s Step) number() int32 {
	n, _ := strconv.ParseInt(s.Args[len(s.Args)-1], 10, 32) // parseStep has read it
	return int32(n)
}

// duration returns the argument of pass.
func (s Step) duration() time.Duration {
	d, _ := time.ParseDuration(s.Args[0]) // parseStep has read it
	return d
}

// Set replaces a section of the file; an empty text removes it.
func (s *Scenario) Set(section, text string) {
	files := slices.DeleteFunc(s.archive.Files, func(f txtar.File) bool { return f.Name == section })
	if text != "" {
		files = append(files, txtar.File{Name: section, Data: []byte(text)})
	}
	order := []string{sectionObject, sectionScript, sectionKubernetes, sectionNodectl, sectionReason}
	slices.SortFunc(files, func(a, b txtar.File) int { return slices.Index(order, a.Name) - slices.Index(order, b.Name) })
	s.archive.Files = files
}

// Write writes the file.
func (s *Scenario) Write() error { return os.WriteFile(s.file, txtar.Format(s.archive), 0o644) }

// merge applies a JSON merge patch.
func merge(into map[string]any, patch map[string]any) {
	for key, value := range patch {
		below, isMap := value.(map[string]any)
		have, hasMap := into[key].(map[string]any)
		switch {
		case value == nil:
			delete(into, key)
		case isMap && hasMap:
			merge(have, below)
		default:
			into[key] = value
		}
	}
}
