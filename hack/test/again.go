package main

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
)

// failures are the failed tests of a run, by package. A step, and a package that failed outside of
// its tests or was interrupted, have none.
type failures map[string][]string

var (
	failureLine     = regexp.MustCompile(`(?m)^- fail: ([^ :]+)(?: (\w+)|: )`)
	interruptedLine = regexp.MustCompile(`(?m)^- interrupted: ([^ :]+): `)
)

// failuresOf returns the failures of the newest run on a page that this program wrote.
func failuresOf(page string) failures {
	if i := strings.LastIndex(page, "\n## "); i >= 0 {
		page = page[i:]
	}
	all := make(failures)
	for _, m := range failureLine.FindAllStringSubmatch(page, -1) {
		in, test := m[1], m[2]
		tests := all[in]
		if test != "" && !slices.Contains(tests, test) { // the name of a subtest begins with that of its test
			tests = append(tests, test)
		}
		all[in] = tests
	}
	for _, m := range interruptedLine.FindAllStringSubmatch(page, -1) {
		all[m[1]] = nil // the whole package
	}
	return all
}

// readFailures returns the failures on the page in file. An error says that there are none.
func readFailures(file string) (failures, error) {
	page, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("-again needs the page of a run: %w", err)
	}
	all := failuresOf(string(page))
	if len(all) == 0 {
		return nil, fmt.Errorf("nothing failed or was interrupted in the newest run on %s", file)
	}
	return all, nil
}

// restrict lets the jobs run only the tests that failed.
func (f failures) restrict(jobs []job) {
	for i, j := range jobs {
		if tests := f[j.name]; len(tests) > 0 {
			jobs[i].command = append(slices.Clone(j.command), "-test.run=^("+strings.Join(tests, "|")+")$") // the last one counts
		}
	}
}
