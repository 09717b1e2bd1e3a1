package cpusettest

import (
	"embed"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

//go:embed recorded
var recorded embed.FS

// Case is a sequence of pods on a described machine, with the allocations of the kubelet's
// managers.
type Case struct {
	Name    string
	Machine string
	Policy  map[string]string // the settings, as Words of test/managers writes them
	Steps   []Step
}

// Step is a change of a node.
type Step struct {
	Action     string   // add, remove or restart
	UID        string   // of the pod that is added or removed
	Containers []string // of a pod that is added
	Want       string   // for a pod that is added: its refusal, or what Show returns
}

// Recorded returns the recorded cases.
func Recorded(t testing.TB) []Case {
	t.Helper()
	list, err := recorded.ReadDir("recorded")
	if err != nil {
		t.Fatal(err)
	}
	var all []Case
	for _, entry := range list {
		text, err := recorded.ReadFile("recorded/" + entry.Name())
		if err != nil {
			t.Fatal(err)
		}
		c, err := parse(string(text))
		if err != nil {
			t.Fatalf("%s: %v", entry.Name(), err)
		}
		c.Name = strings.TrimSuffix(entry.Name(), ".txt")
		all = append(all, c)
	}
	return all
}

func parse(text string) (c Case, err error) {
	for line := range strings.Lines(text) {
		first, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		words := strings.Fields(rest)
		switch {
		case first == "#" || first == "":
		case first == "machine":
			c.Machine = rest
		case first == "policy":
			c.Policy = map[string]string{}
			for _, w := range words {
				key, value, _ := strings.Cut(w, "=")
				c.Policy[key] = value
			}
		case first == "=" && len(c.Steps) > 0:
			c.Steps[len(c.Steps)-1].Want = rest
		case first == "add" && len(words) > 1:
			c.Steps = append(c.Steps, Step{Action: first, UID: words[0], Containers: words[1:]})
		case first == "remove" && len(words) == 1, first == "restart":
			c.Steps = append(c.Steps, Step{Action: first, UID: rest})
		default:
			return c, fmt.Errorf("unknown line %q", line)
		}
	}
	return c, nil
}

// Text returns the text of a case that Recorded reads.
func (c *Case) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Recorded from the kubelet by test/managers. See docs/testing.md.\nmachine %s\npolicy", c.Machine)
	for _, key := range slices.Sorted(maps.Keys(c.Policy)) {
		fmt.Fprintf(&b, " %s=%s", key, c.Policy[key])
	}
	b.WriteString("\n")
	for _, s := range c.Steps {
		b.WriteString(strings.TrimSpace(s.Action+" "+s.UID+" "+strings.Join(s.Containers, " ")) + "\n")
		if s.Action == "add" {
			b.WriteString("= " + s.Want + "\n")
		}
	}
	return b.String()
}

// Show returns the CPUs and the memory of a pod's containers as text, and the shared CPUs.
func Show(has map[string]pod.Placement, shared string) string {
	var words []string
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if has[name].CPUs == "" && len(has[name].Memory) == 0 {
			continue // it has devices alone
		}
		word := name + "=" + has[name].CPUs
		blocks := slices.Clone(has[name].Memory)
		slices.SortFunc(blocks, func(a, b pod.Block) int { return strings.Compare(string(a.Type), string(b.Type)) })
		for _, b := range blocks {
			word += fmt.Sprintf("@%s:%s:%dMi", strings.Trim(strings.ReplaceAll(fmt.Sprint(b.NUMAAffinity), " ", ","), "[]"), b.Type, b.Size>>20)
		}
		words = append(words, word)
	}
	return strings.TrimSpace(strings.Join(words, " ") + " shared=" + shared)
}
