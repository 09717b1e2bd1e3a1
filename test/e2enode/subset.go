package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// The times of a subset, for a run of at most 20 minutes: the cases that it has by their recorded
// times, and when no further ones begin on a slow machine. The rest is for the control plane and
// the last cases.
const (
	subsetTime  = 11 * time.Minute
	subsetLimit = 14 * time.Minute
	// usualTime is that of a case without a recorded time.
	usualTime = 35 * time.Second
)

// runSubset runs a subset with nodectl, and reports whether all its cases passed.
func runSubset(ctx context.Context, o *options) (fine bool, err error) {
	c, err := compare(here("results"))
	if err != nil {
		return false, err
	}
	names := c.subset(subsetTime * time.Duration(o.parallel))
	if len(names) == 0 {
		return false, errors.New("the kubelet has passed no fast case yet: run make e2e-node first")
	}
	own := *o
	own.agent, own.again, own.results, own.limit = nodectl, "all", bin("subset"), subsetLimit
	own.focus, own.skip, own.shard, own.cases = "", "", "1/1", filepath.Join(own.results, "subset.txt")
	err = errors.Join(os.RemoveAll(own.results), os.MkdirAll(own.results, 0o755))
	if err == nil {
		err = os.WriteFile(own.cases, []byte(strings.Join(names, "\n")+"\n"), 0o644)
	}
	if err == nil {
		err = enter(ctx, nodectl, &own)
	}
	if err != nil {
		return false, err
	}
	results, err := readResults(filepath.Join(own.results, nodectl+".json"))
	if err != nil {
		return false, err
	}
	text, fine := reportOf(names, results)
	fmt.Print(text)
	err = record(here("results"), results)
	if err == nil {
		err = writePage(here("results"))
	}
	return fine, err
}

// record adds results of nodectl to the recorded ones, which they replace. A result of a tree with
// changes names no tree that can be found again: it replaces only such results.
func record(dir string, results Results) error {
	file := filepath.Join(dir, nodectl+".json")
	all, err := readResults(file)
	if err != nil {
		return err
	}
	for name, r := range results {
		if before, known := all[name]; known && r.isDirty() && !before.isDirty() {
			continue
		}
		all[name] = r
	}
	return all.write(file)
}

// reportOf says which cases of a subset did not pass. Cases that did not begin in time are reported
// as not checked; a subset of which none ran has failed.
func reportOf(names []string, results Results) (text string, fine bool) {
	var b strings.Builder
	passes, late := 0, 0
	for _, n := range names {
		switch r, ran := results[n]; {
		case !ran:
			late++
		case r.Outcome == passed:
			passes++
		default:
			fmt.Fprintf(&b, "%s: %s: %s\n", r.Outcome, n, r.Reason)
		}
	}
	fmt.Fprintf(&b, "%d of %d cases passed\n", passes, len(names))
	if late > 0 {
		fmt.Fprintf(&b, "not checked: %d cases of Kubernetes' node suite, which did not begin within %s\n", late, subsetLimit)
	}
	return b.String(), passes > 0 && passes+late == len(names)
}

// subset returns fast cases that the kubelet passes and whose results have no known cause, which
// together took no longer than the budget. It takes one case of each kind, then a second one of
// each, and so on: the first cases are of as many features as possible. Within a kind, those that
// nodectl has never run come first, then those with the oldest results: later runs have other cases.
func (c *comparison) subset(budget time.Duration) (names []string) {
	kinds := map[string][]string{}
	for _, n := range c.names {
		if classes["fast"](n) && c.features[n] == nil && find(c.scope.Causes, n) == nil && c.outcome(kubelet, n) == passed {
			kinds[kindOf(n)] = append(kinds[kindOf(n)], n)
		}
	}
	for _, list := range kinds {
		slices.SortStableFunc(list, func(a, b string) int { return strings.Compare(c.of[nodectl][a].Date, c.of[nodectl][b].Date) })
	}
	for left := len(kinds); left > 0; {
		left = 0
		for _, kind := range slices.Sorted(maps.Keys(kinds)) {
			if len(kinds[kind]) == 0 {
				continue
			}
			n := kinds[kind][0]
			kinds[kind] = kinds[kind][1:]
			left++
			if took := c.took(n); took <= budget {
				budget -= took
				names = append(names, n)
			}
		}
	}
	slices.Sort(names)
	return names
}

// took is how long a case took with nodectl, or with the kubelet.
func (c *comparison) took(name string) time.Duration {
	for _, agent := range []string{nodectl, kubelet} {
		if r, ok := c.of[agent][name]; ok {
			return max(time.Duration(r.Seconds)*time.Second, time.Second)
		}
	}
	return usualTime
}

var tagOfName = regexp.MustCompile(`\[[^]]*\]`)

// kindOf is the beginning of a case's name, without its tags: the cases of a kind test one feature.
func kindOf(name string) string {
	words := strings.Fields(tagOfName.ReplaceAllString(name, ""))
	return strings.Join(words[:min(len(words), 3)], " ")
}
