package main

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/test/node"
)

// document is the page for readers.
const document = "docs/conformance.md"

// scope is scope.yaml: the features that nodectl does not claim, and why claimed cases do not pass.
type scope struct {
	Unclaimed []rule
	Causes    []rule
}

// A rule speaks of the cases whose name matches.
type rule struct {
	Feature string // of nodectl, that is missing
	Match   string // expression
	Why     string

	expression *regexp.Regexp
}

func readScope(file string) (*scope, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	s := &scope{}
	if err := yaml.UnmarshalStrict(text, s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	for _, rules := range [][]rule{s.Unclaimed, s.Causes} {
		for i := range rules {
			if rules[i].expression, err = regexp.Compile(rules[i].Match); err != nil {
				return nil, fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return s, nil
}

// find returns the first rule for a case, or nil.
func find(rules []rule, name string) *rule {
	for i := range rules {
		if rules[i].expression.MatchString(name) {
			return &rules[i]
		}
	}
	return nil
}

// A comparison has the results of the suite with both agents.
type comparison struct {
	scope    *scope
	names    []string // of all cases, sorted
	of       map[string]Results
	features map[string]*rule // of the cases that nodectl does not claim
}

// compare reads the results of both agents, and the names of all cases.
func compare(dir string) (*comparison, error) {
	s, err := readScope(here("scope.yaml"))
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(dir, "cases.txt"))
	if err != nil {
		return nil, err
	}
	c := &comparison{scope: s, names: strings.Split(strings.TrimSpace(string(text)), "\n"), of: map[string]Results{}, features: map[string]*rule{}}
	for _, agent := range []string{kubelet, nodectl} {
		if c.of[agent], err = readResults(filepath.Join(dir, agent+".json")); err != nil {
			return nil, err
		}
	}
	for _, n := range c.names {
		if r := find(s.Unclaimed, n); r != nil {
			c.features[n] = r
		}
	}
	return c, nil
}

// outcome is that of one case: "" was not run yet.
func (c *comparison) outcome(agent, name string) string { return c.of[agent][name].Outcome }

// claimed reports whether a case tests what nodectl claims.
func (c *comparison) claimed(name string) bool { return c.features[name] == nil }

// count counts the cases of an outcome among those that belong.
func (c *comparison) count(agent, outcome string, belongs func(name string) bool) int {
	n := 0
	for _, name := range c.names {
		if belongs(name) && c.outcome(agent, name) == outcome {
			n++
		}
	}
	return n
}

// worse returns the claimed cases that the kubelet passes and nodectl does not.
func (c *comparison) worse() []string {
	return c.those(func(n string) bool {
		with := c.outcome(nodectl, n)
		return c.features[n] == nil && c.outcome(kubelet, n) == passed && with != passed && with != ""
	})
}

func (c *comparison) those(belongs func(string) bool) []string {
	return slices.DeleteFunc(slices.Clone(c.names), func(n string) bool { return !belongs(n) })
}

// writePage writes the page of the results.
func writePage(dir string) error {
	c, err := compare(dir)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(node.Repo(), document), []byte(c.markdown()), 0o644)
}

const preamble = `# Conformance with Kubernetes' node suite

Kubernetes tests its kubelet with the suite ` + "`test/e2e_node`" + `. ` + "`make e2e-node`" + ` runs the suite of
Kubernetes 1.36.3, unmodified, once with the kubelet and once with nodectl in its place,
and writes this page. [Decision 0037](decisions/0037-kubernetes-node-suite.md) describes how.

The goal: among the features that nodectl claims, no case fails that the kubelet passes.
A case that runs with the kubelet and is skipped with nodectl counts as a failure.
`

func (c *comparison) markdown() string {
	var b strings.Builder
	b.WriteString(preamble)
	c.totals(&b)
	c.differences(&b)
	c.both(&b)
	c.skips(&b)
	c.outside(&b)
	c.left(&b)
	c.trees(&b)
	return b.String()
}

func (c *comparison) totals(b *strings.Builder) {
	fmt.Fprintf(b, "\n## Totals\n\nThe suite has %d cases; %d of them test what nodectl claims.\n\n", len(c.names), len(c.those(c.claimed)))
	b.WriteString("| claimed cases | kubelet | nodectl |\n|---|---|---|\n")
	for _, o := range []string{passed, failed, skipped, ""} {
		fmt.Fprintf(b, "| %s | %d | %d |\n", cmp.Or(o, "not run yet"), c.count(kubelet, o, c.claimed), c.count(nodectl, o, c.claimed))
	}
	ran := func(n string) bool {
		return c.claimed(n) && c.outcome(kubelet, n) == passed && c.outcome(nodectl, n) != ""
	}
	fmt.Fprintf(b, "\nOf the claimed cases that both ran and the kubelet passes, %d, nodectl passes %d.\n", len(c.those(ran)), c.count(nodectl, passed, ran))
}

func (c *comparison) differences(b *strings.Builder) {
	b.WriteString("\n## The kubelet passes, nodectl does not\n\n")
	worse := c.worse()
	if len(worse) == 0 {
		b.WriteString("None.\n")
		return
	}
	b.WriteString("| case | with nodectl | cause |\n|---|---|---|\n")
	for _, n := range worse {
		cause := "not found yet: " + code(c.of[nodectl][n].Reason)
		if r := find(c.scope.Causes, n); r != nil {
			cause = r.Why
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", code(n), c.outcome(nodectl, n), cause)
	}
}

// both lists the cases that the kubelet fails: they say nothing about nodectl.
func (c *comparison) both(b *strings.Builder) {
	b.WriteString("\n## The kubelet fails\n\nThese cases cannot pass on the machine of the run.\n\n| case | with nodectl | cause |\n|---|---|---|\n")
	for _, n := range c.those(func(n string) bool { return c.features[n] == nil && c.outcome(kubelet, n) == failed }) {
		cause := code(c.of[kubelet][n].Reason)
		if r := find(c.scope.Causes, n); r != nil {
			cause = r.Why
		}
		fmt.Fprintf(b, "| %s | %s | %s |\n", code(n), cmp.Or(c.outcome(nodectl, n), "not run yet"), cause)
	}
}

func (c *comparison) skips(b *strings.Builder) {
	b.WriteString("\n## Skipped with both\n\n| reason of the suite | cases |\n|---|---|\n")
	reasons := map[string]int{}
	for _, n := range c.those(func(n string) bool {
		return c.features[n] == nil && c.outcome(kubelet, n) == skipped && c.outcome(nodectl, n) == skipped
	}) {
		reasons[c.of[kubelet][n].Reason]++
	}
	for _, r := range slices.Sorted(maps.Keys(reasons)) {
		fmt.Fprintf(b, "| %s | %d |\n", code(r), reasons[r])
	}
}

func (c *comparison) outside(b *strings.Builder) {
	b.WriteString("\n## Outside of what nodectl claims\n\n| feature | cases | why |\n|---|---|---|\n")
	for i := range c.scope.Unclaimed {
		r := &c.scope.Unclaimed[i]
		n := len(c.those(func(n string) bool { return c.features[n] == r }))
		fmt.Fprintf(b, "| %s | %d | %s |\n", r.Feature, n, r.Why)
	}
}

// The estimate of the cases that have not run.
const (
	usualLanes = 3 // of the option -parallel
	// usualSerial is the time of a Serial case while none is recorded. They fill disks, evict pods and
	// restart the agent.
	usualSerial = 90 * time.Second
)

// left estimates how long the claimed cases take that have not run.
func (c *comparison) left(b *strings.Builder) {
	var rows strings.Builder
	for _, class := range []struct {
		name, how string
		has       func(string) bool
		lanes     int
		usual     time.Duration
	}{
		{"beside others", fmt.Sprintf("%d at once", usualLanes), func(n string) bool { return !isSerial(n) }, usualLanes, usualTime},
		{"Serial", "one by one", isSerial, 1, usualSerial},
	} {
		fmt.Fprintf(&rows, "| %s | %s |", class.name, class.how)
		for _, agent := range []string{kubelet, nodectl} {
			n := c.count(agent, "", func(n string) bool { return c.claimed(n) && class.has(n) })
			mean, recorded := c.mean(agent, class.has)
			if !recorded {
				mean = class.usual
			}
			text := (time.Duration(n) * mean / time.Duration(class.lanes)).Round(time.Minute).String()
			if !recorded {
				text += ", a guess"
			}
			fmt.Fprintf(&rows, " %d | %s |", n, strings.Replace(text, "m0s", "m", 1))
		}
		rows.WriteString("\n")
	}
	if c.count(kubelet, "", c.claimed)+c.count(nodectl, "", c.claimed) == 0 {
		return
	}
	fmt.Fprintf(b, `
## Not run yet

The time is the mean of the recorded cases of the class, times those that have not run. Without a
recorded case it is a guess: %s for a case. `+"`make e2e-node`"+` continues with these cases; see
[testing.md](testing.md#kubernetes-node-suite) for runs of limited time.

| claimed cases | | with the kubelet | time | with nodectl | time |
|---|---|---|---|---|---|
%s`, usualSerial, &rows)
}

// mean is the mean time of the recorded cases of a class with an agent.
func (c *comparison) mean(agent string, has func(string) bool) (mean time.Duration, recorded bool) {
	var all, n time.Duration
	for name, r := range c.of[agent] {
		if has(name) {
			all, n = all+time.Duration(r.Seconds)*time.Second, n+1
		}
	}
	if n == 0 {
		return 0, false
	}
	return all / n, true
}

func (c *comparison) trees(b *strings.Builder) {
	b.WriteString("\n## Of which trees\n\n| agent | tree | date | cases |\n|---|---|---|---|\n")
	for _, agent := range []string{kubelet, nodectl} {
		count := map[[2]string]int{}
		for _, r := range c.of[agent] {
			count[[2]string{r.Date, r.Tree}]++
		}
		for _, k := range slices.SortedFunc(maps.Keys(count), func(x, y [2]string) int { return cmp.Or(cmp.Compare(x[0], y[0]), cmp.Compare(x[1], y[1])) }) {
			fmt.Fprintf(b, "| %s | %s | %s | %d |\n", agent, code(k[1]), k[0], count[k])
		}
	}
}

// code is text as Markdown shows it word for word in a table.
func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + strings.NewReplacer("`", "'", "|", "\\|", "\n", " ").Replace(s) + "`"
}
