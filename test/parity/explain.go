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

// An Explanation is why a person finds that some differences are right.
type Explanation struct {
	// Cases are names of cases, * and ? as in file names.
	Cases []string `json:"cases"`
	// Aspects are the differences'.
	Aspects []string `json:"aspects"`
	// Match is a regular expression for the rest of a difference. Empty: all.
	Match string `json:"match"`
	// Reason is why it is so.
	Reason string `json:"reason"`
	// API limits it to the cases that come through an API server.
	API bool `json:"api"`
	// Everywhere says it of all pods, once, and not in each row.
	Everywhere bool `json:"everywhere"`
	// Sometimes is of what need not be in every run; other explanations that
	// explain nothing fail a whole run.
	Sometimes bool `json:"sometimes"`

	match *regexp.Regexp
	used  int
}

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
		if len(e.Cases) == 0 || len(e.Aspects) == 0 || e.Reason == "" {
			errs = append(errs, fmt.Errorf("%s: explanation %d lacks cases, aspects or a reason", file, i+1))
			continue
		}
		if e.match, err = regexp.Compile(e.Match); err != nil {
			errs = append(errs, fmt.Errorf("%s: explanation %d: %w", file, i+1, err))
		}
	}
	return all, errors.Join(errs...)
}

// covers reports whether e explains a difference of a case.
func (e *Explanation) covers(c *Case, d Difference) bool {
	if e.API && !c.API || !slices.Contains(e.Aspects, d.Aspect) || !e.match.MatchString(d.What) {
		return false
	}
	for _, pattern := range e.Cases {
		if ok, _ := path.Match(pattern, c.Name); ok {
			return true
		}
	}
	return false
}
