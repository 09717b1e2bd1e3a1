package compare

import (
	"regexp"
	"slices"
	"strings"
)

// A Normaliser replaces texts that differ between two runs of the same agent by a fixed word.
type Normaliser struct {
	names *strings.Replacer
	rules []Rule
}

// A Rule is one replacement.
type Rule struct {
	What *regexp.Regexp
	By   string // as of ReplaceAllString
}

// The replacements of every comparison: identifiers and addresses before its own, moments
// after.
var (
	identifiers = []Rule{
		{regexp.MustCompile(`[0-9a-f]{64}`), "$$ID"},
		{regexp.MustCompile(`/pod([0-9a-f]{32}|[0-9a-f-]{36})\b`), "/pod$$UID"}, // cgroups
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|[0-9a-f]{32}`), "$$UID"},
		{regexp.MustCompile(`\$SUBNET\.\d+`), "$$IP"},
	}
	moments = []Rule{
		{regexp.MustCompile(`\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?( ?(Z|[+-]\d\d:?\d\d))?( UTC)?( m=\S+)?`), "$$TIME"},
		{regexp.MustCompile(`\b1\d{18}\b`), "$$NS"},
	}
)

// NewNormaliser returns one for a run with these names, each with its replacement, and rules of its
// own.
func NewNormaliser(names map[string]string, own ...Rule) *Normaliser {
	var from, pairs []string
	for n := range names {
		from = append(from, n)
	}
	slices.SortFunc(from, func(a, b string) int { return len(b) - len(a) }) // the longest first
	for _, n := range from {
		pairs = append(pairs, n, names[n])
	}
	return &Normaliser{strings.NewReplacer(pairs...), slices.Concat(identifiers, own, moments)}
}

// Text normalises any text.
func (n *Normaliser) Text(s string) string {
	s = n.names.Replace(s)
	for _, r := range n.rules {
		s = r.What.ReplaceAllString(s, r.By)
	}
	return s
}

// Facts normalises paths and values; of those that moment matches, only that they are set
// remains.
func (n *Normaliser) Facts(f Facts, moment *regexp.Regexp) Facts {
	out := Facts{}
	for k, v := range f {
		k = n.Text(k)
		if out[k] = n.Text(v); moment != nil && moment.MatchString(k) {
			out[k] = "set"
		}
	}
	return out
}
