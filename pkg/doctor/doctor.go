// Package doctor finds problems of a machine that runs pods, and their remedies.
//
// ReadFacts reads the machine into Facts. Examine applies a table of checks, each with a
// permanent code, a sentence and a remedy. CIS applies the CIS Kubernetes Benchmark's
// checks of worker nodes. cmd asks the runtime, and prints.
//
// The package only reads the machine. It makes and changes nothing, and runs no program but
// runc --version.
package doctor

import "slices"

// Severity is the severity of a finding.
type Severity string

const (
	// Blocks means that pods or the agent do not start.
	Blocks Severity = "blocks"
	// Warns means a later failure, or a risk.
	Warns Severity = "warns"
)

// Finding is one problem.
type Finding struct {
	Code     string   `json:"code"` // ND001; a code never changes its meaning
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
}

// check is one check. find returns a sentence for each problem.
type check struct {
	code     string
	title    string
	severity Severity
	remedy   string
	find     func(Facts) []string
}

// Examine returns the problems: those that block first, then by code.
func Examine(f Facts) []Finding {
	all := []Finding{}
	for _, c := range checks() {
		for _, message := range c.find(f) {
			all = append(all, Finding{c.code, c.severity, message, c.remedy})
		}
	}
	slices.SortStableFunc(all, func(a, b Finding) int {
		switch a.Severity {
		case b.Severity:
			return 0
		case Blocks:
			return -1
		}
		return 1
	})
	return all
}

// CheckCount returns the number of checks.
func CheckCount() int { return len(checks()) }

// Healthy reports whether no finding blocks.
func Healthy(all []Finding) bool {
	return !slices.ContainsFunc(all, func(f Finding) bool { return f.Severity == Blocks })
}

func checks() []check {
	return slices.Concat(rightsChecks(), cgroupChecks(), runtimeChecks(), fileChecks(), kernelChecks(), resourceChecks(), networkChecks(), leftoverChecks())
}

// one returns a sentence where a condition holds.
func one(wrong bool, sentence string) []string {
	if wrong {
		return []string{sentence}
	}
	return nil
}
