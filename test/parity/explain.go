package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// An Explanation is why a person finds that some differences are right, or what
// they wait for.
type Explanation struct {
	// Cases are names of cases, * and ? as in file names.
	Cases []string `json:"cases"`
	// Aspects are the differences'.
	Aspects []string `json:"aspects"`
	// Match is a regular expression for the rest of a difference. Empty: all.
	Match string `json:"match"`
	// Reason is why it is so; or Waits what has to come first: one of waitsFor.
	Reason string `json:"reason"`
	Waits  string `json:"waits"`
	// Everywhere says it of all pods, once, and not in each row.
	Everywhere bool `json:"everywhere"`
	// Sometimes is of what need not be in every run; other explanations that
	// explain nothing fail a whole run.
	Sometimes bool `json:"sometimes"`

	match *regexp.Regexp
	used  int
}

// waitsFor are the parts of nodectl that come with a later issue.
var waitsFor = map[string]bool{"volumes": true, "env": true, "identity": true, "cgroup tree": true}

func readExplained(file string) ([]*Explanation, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var all []*Explanation
	if err := yaml.UnmarshalStrict(text, &all); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var errs []error
	for i, e := range all {
		if len(e.Cases) == 0 || len(e.Aspects) == 0 || (e.Reason == "") == (e.Waits == "") || e.Waits != "" && !waitsFor[e.Waits] {
			errs = append(errs, fmt.Errorf("%s: explanation %d lacks cases, aspects, or one of reason and waits", file, i+1))
			continue
		}
		if e.match, err = regexp.Compile(e.Match); err != nil {
			errs = append(errs, fmt.Errorf("%s: explanation %d: %w", file, i+1, err))
		}
	}
	return all, errors.Join(errs...)
}

// covers reports whether e explains a difference of a case.
func (e *Explanation) covers(c string, d Difference) bool {
	if !slices.Contains(e.Aspects, d.Aspect) || !e.match.MatchString(d.What) {
		return false
	}
	for _, pattern := range e.Cases {
		if ok, _ := path.Match(pattern, c); ok {
			return true
		}
	}
	return false
}

// text is how the explanation is written in a table.
func (e *Explanation) text() string {
	if e.Waits != "" {
		return "waits for issue: " + e.Waits
	}
	return e.Reason
}
