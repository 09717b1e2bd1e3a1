package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Calls is how often each CRI method was called.
type Calls map[string]int

// Since returns the calls made after before was counted.
func (c Calls) Since(before Calls) Calls {
	made := make(Calls)
	for method, n := range c {
		if d := n - before[method]; d > 0 {
			made[method] = d
		}
	}
	return made
}

// Total returns the number of calls.
func (c Calls) Total() int {
	n := 0
	for _, k := range c {
		n += k
	}
	return n
}

// String names the methods, in alphabetical order.
func (c Calls) String() string {
	if len(c) == 0 {
		return "none"
	}
	var words []string
	for _, name := range slices.Sorted(maps.Keys(c)) {
		words = append(words, fmt.Sprintf("%s %d", name, c[name]))
	}
	return strings.Join(words, ", ")
}
