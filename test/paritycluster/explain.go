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
	// Cases are names of pods, or of what else is looked at; * and ? as in file names.
	Cases []string `json:"cases"`
	// Aspects are the differences'.
	Aspects []string `json:"aspects"`
	// Match is a regular expression for the rest of a difference. Empty: all.
	Match string `json:"match"`
	// Reason is why it is so.
	Reason string `json:"reason"`
	// Sometimes is of what need not be in every run; other explanations that explain
	// nothing fail.
	Sometimes bool `json:"sometimes"`

	match *regexp.Regexp
	found []Difference
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

// covers reports whether e explains a difference.
func (e *Explanation) covers(d Difference) bool {
	if !slices.Contains(e.Aspects, d.Aspect) || !e.match.MatchString(d.What) {
		return false
	}
	return slices.ContainsFunc(e.Cases, func(pattern string) bool {
		ok, _ := path.Match(pattern, d.Case)
		return ok || pattern == "*" // "/pods x" has a slash
	})
}
