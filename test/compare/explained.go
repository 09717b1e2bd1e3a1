package compare

import (
	"errors"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"

	"sigs.k8s.io/yaml"
)

// An Explanation says why some differences are intended.
type Explanation struct {
	// Cases are names of cases, * and ? as in file names; "*" alone is every case.
	Cases []string `json:"cases"`
	// Aspects are the aspects of the differences.
	Aspects []string `json:"aspects"`
	// Match is a regular expression for the rest of a difference. Empty: all.
	Match string `json:"match"`
	// Reason is why nodectl differs.
	Reason string `json:"reason"`
	// API limits it to the cases that come through an API server.
	API bool `json:"api"`
	// Sometimes is set for differences that do not occur in every run.
	Sometimes bool `json:"sometimes"`

	match *regexp.Regexp
}

// Read reads explanations; the error names the file and each invalid explanation.
func Read(file string) ([]*Explanation, error) {
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
		}
		if e.match, err = regexp.Compile(e.Match); err != nil {
			errs = append(errs, fmt.Errorf("%s: explanation %d: %w", file, i+1, err))
		}
	}
	return all, errors.Join(errs...)
}

// Covers reports whether e explains a difference of a case.
func (e *Explanation) Covers(d Difference) bool {
	if e.API && !d.API || !slices.Contains(e.Aspects, d.Aspect) || e.match != nil && !e.match.MatchString(d.What) {
		return false
	}
	return e.Everywhere() || slices.ContainsFunc(e.Cases, func(pattern string) bool {
		ok, _ := path.Match(pattern, d.Case)
		return ok
	})
}

// Everywhere reports whether e covers every case: a report prints it once, not for each case.
func (e *Explanation) Everywhere() bool { return slices.Contains(e.Cases, "*") }
