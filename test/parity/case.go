package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// A Case is one file of cases/: a header, the manifests of one or more pods, and of the
// config objects they name, separated by "---". The agent gets every manifest of a case as
// its own file. In all of them $DIR is the case's own directory. $REGISTRY is a registry with
// every image that a case names, except those called none, and $DIGEST is the digest of that
// image.
type Case struct {
	// Name is the file's, without .yaml. The names of the case's pods begin with it.
	Name string `json:"-"`
	// Shows is a short description of the case.
	Shows string `json:"shows"`
	// Contract lists the numbers of the rules that it shows.
	Contract []string `json:"contract"`
	// Watch is how long the case runs before its manifests are removed, counted from the
	// moment they appeared.
	Watch metav1.Duration `json:"watch"`
	// After is how long it is watched after that. Default 6s.
	After metav1.Duration `json:"after"`
	// Look is when running containers are inspected from inside. Default: at the end of
	// Watch.
	Look metav1.Duration `json:"look"`
	// Within is the tolerance for an interval, in place of the usual one.
	Within metav1.Duration `json:"within"`
	// Restart runs the case with those whose agent is killed and started again.
	Restart bool `json:"restart"`
	// API says that the kubelet rejects such a pod from a file: it gets the same objects and
	// pods from a real API server, bound to its node.
	API bool `json:"api"`
	// Alone runs the case without others, and reads the cgroups above all pods, whose
	// settings depend on the existing pods.
	Alone bool `json:"alone"`
	// Prepare is the initial content of $DIR, in order.
	Prepare []Thing `json:"prepare"`
	// Refused says that neither agent accepts the manifests.
	Refused bool `json:"refused"`
	// Nodectl has nodectl's events before the manifests are removed, for an intended difference:
	// the events in order, "sandbox 2 is made", "app 1 ends with 137 Error", and their times,
	// counted from the first container's start, "app 2 starts at 6s", within Within; then the last
	// state of the pod and each container. So only this difference is accepted.
	Nodectl []string `json:"nodectl"`
	// Script is the actions meanwhile, in order.
	Script []Action `json:"script"`

	manifests []string // of pods
	objects   []string // that they name
}

// An Action is one step of a running case; exactly one of its fields beside At is set.
type Action struct {
	At      metav1.Duration `json:"at"`      // since the manifests appeared
	Replace []Replacement   `json:"replace"` // in the manifests, then written again
	Remove  string          `json:"remove"`  // the pod whose manifest is removed; it is not restored
	Drop    string          `json:"drop"`    // the pod whose manifest appears now, and not at once
	Copy    string          `json:"copy"`    // the pod whose manifest appears a second time, as another file
	Kill    string          `json:"kill"`    // "pod/container": its process gets SIGKILL
	Create  string          `json:"create"`  // a file in the case's directory $DIR
	Delete  string          `json:"delete"`  // that file
	// Not an action of the case, but of its whole group.
	agent string
}

// A Replacement is one change of a text.
type Replacement struct {
	Old string `json:"old"`
	New string `json:"new"`
}

// Defaults of a case's header.
const (
	defaultAfter  = 6 * time.Second
	defaultWithin = 1500 * time.Millisecond
)

var contractNumber = regexp.MustCompile(`^C-1\.\d+(\.\d+[a-z]?)?$`)

// readCases reads all cases whose name matches.
func readCases(dir string, match *regexp.Regexp) ([]*Case, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil {
		return nil, err
	}
	slices.Sort(files)
	var cases []*Case
	var errs []error
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		name := strings.TrimSuffix(filepath.Base(f), ".yaml")
		if !match.MatchString(name) {
			continue
		}
		c, err := readCase(name, text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f, err))
			continue
		}
		cases = append(cases, c)
	}
	return cases, errors.Join(errs...)
}

func readCase(name string, text []byte) (*Case, error) {
	all := strings.ReplaceAll(string(bytes.TrimSpace(text)), "$ALLBUTONE", strconv.Itoa(runtime.NumCPU()-1)) // CPUs
	documents := strings.Split("\n"+all+"\n", "\n---\n")
	c := &Case{Name: name}
	for _, d := range documents[1:] {
		switch kind, _, err := identify(d); {
		case err != nil:
			return nil, err
		case kind == "Pod":
			c.manifests = append(c.manifests, d)
		default:
			c.objects = append(c.objects, d)
		}
	}
	if err := yaml.UnmarshalStrict([]byte(documents[0]), c); err != nil {
		return nil, err
	}
	if c.After.Duration == 0 {
		c.After.Duration = defaultAfter
	}
	if c.Within.Duration == 0 {
		c.Within.Duration = defaultWithin
	}
	if c.Look.Duration == 0 {
		c.Look = c.Watch
	}
	if c.Shows == "" || len(c.Contract) == 0 || c.Watch.Duration <= 0 || len(c.manifests) == 0 {
		return nil, errors.New("a case has shows, contract, watch and a manifest")
	}
	for _, n := range c.Contract {
		if !contractNumber.MatchString(n) {
			return nil, fmt.Errorf("%q is no contract number", n)
		}
	}
	for _, line := range c.Nodectl {
		if _, err := parseExpectation(line); err != nil {
			return nil, err
		}
	}
	for i, a := range c.Script {
		if a.At.Duration <= 0 || a.At.Duration > c.Watch.Duration || i > 0 && a.At.Duration < c.Script[i-1].At.Duration {
			return nil, fmt.Errorf("script: %s is out of order, or not while the case is watched", a.At.Duration)
		}
	}
	for _, o := range c.objects {
		if kind, n, _ := identify(o); n != c.Name && !strings.HasPrefix(n, c.Name+"-") {
			return nil, fmt.Errorf("%s %q: the name of a case's object begins with the case's", kind, n)
		}
	}
	_, err := c.pods()
	return c, err
}

// identify returns the kind and the name of a manifest; without a kind it is a pod's.
func identify(manifest string) (kind, name string, err error) {
	var it metav1.PartialObjectMetadata
	if err := yaml.Unmarshal([]byte(manifest), &it); err != nil {
		return "", "", err
	}
	if it.Kind == "" {
		it.Kind = "Pod"
	}
	return it.Kind, it.Name, nil
}

// pods returns the names of the case's pods, as their manifests have them.
func (c *Case) pods() ([]string, error) {
	var names []string
	for _, m := range c.manifests {
		var p v1.Pod
		if err := yaml.Unmarshal([]byte(m), &p); err != nil {
			return nil, err
		}
		if p.Name != c.Name && !strings.HasPrefix(p.Name, c.Name+"-") {
			return nil, fmt.Errorf("pod %q: the name of a case's pod begins with the case's", p.Name)
		}
		if slices.Contains(names, p.Name) {
			return nil, fmt.Errorf("two pods are named %q", p.Name)
		}
		names = append(names, p.Name)
	}
	return names, nil
}

// describe returns a short text of an action, for the record of a run.
func (a Action) describe() string {
	switch {
	case a.Replace != nil:
		return "edit"
	case a.Remove != "":
		return "remove " + a.Remove
	case a.Drop != "":
		return "drop " + a.Drop
	case a.Copy != "":
		return "copy " + a.Copy
	case a.Kill != "":
		return "kill " + a.Kill
	case a.Create != "":
		return "create " + a.Create
	case a.Delete != "":
		return "delete " + a.Delete
	}
	return a.agent
}
