// Package doctor says what is wrong with a machine that is to run pods, and what
// to do about it.
//
// Look reads the machine into Facts; Examine is a table of checks over them, each
// with a code that stays, a sentence and a remedy, and CIS another one, of the CIS
// Kubernetes Benchmark's checks of worker nodes. cmd asks the runtime, and prints.
//
// The one rule: it reads only. Nothing is made, changed or started.
package doctor

import "slices"

// Severity says what a finding is worth.
type Severity string

const (
	// Blocks says that pods do not start, or that the agent does not.
	Blocks Severity = "blocks"
	// Warns says that something will go wrong one day, or is not safe.
	Warns Severity = "warns"
)

// Finding is one thing that is wrong.
type Finding struct {
	Code     string   `json:"code"` // ND001; a code never changes its meaning
	Severity Severity `json:"severity"`
	Message  string   `json:"message"`
	Remedy   string   `json:"remedy"`
}

// check is one thing that may be wrong. find returns what is, a sentence each.
type check struct {
	code     string
	title    string
	severity Severity
	remedy   string
	find     func(Facts) []string
}

// Examine returns what is wrong: what blocks first, then by code.
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

// Checked returns how many checks there are.
func Checked() int { return len(checks()) }

// Healthy reports that nothing blocks.
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
