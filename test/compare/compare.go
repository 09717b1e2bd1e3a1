// Package compare has the common parts of the comparisons with the real kubelet, test/parity and
// test/paritycluster: their flags, the words that differ between runs, single values and their
// course over time, differences, and the explanations of intended differences.
//
// A person has explained every difference, and every explanation covers one. An explanation that
// covers none is idle, and fails the comparison.
package compare

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/program"
	"github.com/nodectl/nodectl/test/report"
)

// Options are the flags of a comparison.
type Options struct {
	Match            *regexp.Regexp // the cases' names
	Arms             []string
	Keep             string
	Kubelet, Nodectl string
	Verbose          bool
}

// Parse parses the flags, with those that f has already.
func (o *Options) Parse(f *flag.FlagSet, args []string) error {
	match := f.String("run", "", "the cases whose name matches; nothing is written then")
	arm := f.String("arm", "both", "kubelet, nodectl, both; or none, to compare what was recorded before")
	f.StringVar(&o.Keep, "keep", filepath.Join(node.Repo(), "bin", f.Name()), "directory for recordings and the agents' logs")
	f.BoolVar(&o.Verbose, "v", false, "name the cases as they end, and print explained differences too")
	f.StringVar(&o.Kubelet, "kubelet", program.Kubelet(), "the kubelet")
	f.StringVar(&o.Nodectl, "nodectl", "", "the nodectl (default: built from this tree)")
	if err := program.Flags(f, args); err != nil {
		return err
	}
	var err error
	if o.Match, err = regexp.Compile(*match); err != nil {
		return fmt.Errorf("--run: %w", err)
	}
	arms := map[string][]string{"both": {"kubelet", "nodectl"}, "kubelet": {"kubelet"}, "nodectl": {"nodectl"}, "none": nil}
	var ok bool
	if o.Arms, ok = arms[*arm]; !ok {
		return fmt.Errorf("--arm: %q is no arm", *arm)
	}
	return nil
}

// Whole reports whether every case is compared.
func (o *Options) Whole() bool { return o.Match.String() == "" }

// Record has each requested arm recorded and kept, and returns the recordings of both. It
// returns nil if one arm alone was recorded, and there is no earlier recording of the other.
func Record[R any](o *Options, record func(arm, file string) (*R, error)) (kubelet, nodectl *R, err error) {
	file := func(arm string) string { return filepath.Join(o.Keep, arm+".json") }
	if err := os.MkdirAll(o.Keep, 0o755); err != nil {
		return nil, nil, err
	}
	for _, arm := range o.Arms {
		r, err := record(arm, file(arm))
		if err == nil {
			err = report.WriteJSON(file(arm), r)
		}
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", arm, err)
		}
	}
	kubelet, nodectl = new(R), new(R)
	err = errors.Join(report.ReadJSON(file("kubelet"), kubelet), report.ReadJSON(file("nodectl"), nodectl))
	if errors.Is(err, os.ErrNotExist) && len(o.Arms) == 1 {
		return nil, nil, nil
	}
	return kubelet, nodectl, err
}

// A Difference is one thing that the two agents did, or report, differently.
type Difference struct {
	Case   string // its name, or another observed object
	API    bool   // the case came through an API server
	Aspect string // the kind of fact: order, times, exits, states, phase, conditions, env, …
	What   string // which one, and its value with each agent
}

func (d Difference) String() string { return d.Case + ": " + d.Aspect + ": " + d.What }

// Differences are those found so far.
type Differences struct {
	All   []Difference
	Quote bool // lines of lists
}

// Add adds a difference, unless it is known.
func (k *Differences) Add(of Difference, format string, args ...any) {
	of.What = fmt.Sprintf(format, args...)
	if !slices.Contains(k.All, of) {
		k.All = append(k.All, of)
	}
}

// Facts compares single values; where begins the text about them.
func (k *Differences) Facts(of Difference, where string, a, b Facts) {
	shown := func(v string, there bool) string {
		if !there {
			return "not set"
		}
		return strconv.Quote(v)
	}
	for _, key := range Keys(a, b) {
		va, inA := a[key]
		vb, inB := b[key]
		if va != vb || inA != inB {
			k.Add(of, "%s%s is %s; nodectl %s", where, key, shown(va, inA), shown(vb, inB))
		}
	}
}

// Lists compares two lists of lines.
func (k *Differences) Lists(of Difference, where string, a, b []string) {
	only := func(whose string, lines, others []string) {
		for _, l := range lines {
			if slices.Contains(others, l) {
				continue
			}
			if k.Quote {
				l = strconv.Quote(l)
			}
			k.Add(of, "%sonly %s has %s", where, whose, l)
		}
	}
	only("the kubelet's", a, b)
	only("nodectl's", b, a)
}

// Keys returns the keys of both maps, sorted.
func Keys[M ~map[string]V, V any](a, b M) []string {
	all := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(all)
	return slices.Compact(all)
}

// A Report sorts differences by their explanations.
type Report struct {
	Explanations []*Explanation
	Found        map[*Explanation][]Difference
	Open         []Difference // without an explanation
}

// NewReport gives each difference to the first explanation that covers it.
func NewReport(all []Difference, explanations []*Explanation) *Report {
	r := &Report{Explanations: explanations, Found: map[*Explanation][]Difference{}}
	for _, d := range all {
		i := slices.IndexFunc(explanations, func(e *Explanation) bool { return e.Covers(d) })
		if i < 0 {
			r.Open = append(r.Open, d)
			continue
		}
		r.Found[explanations[i]] = append(r.Found[explanations[i]], d)
	}
	return r
}

// Idle returns the explanations that explain nothing: the difference no longer exists.
func (r *Report) Idle() []*Explanation {
	return slices.DeleteFunc(slices.Clone(r.Explanations), func(e *Explanation) bool { return e.Sometimes || len(r.Found[e]) > 0 })
}

// Explained counts the differences that have an explanation.
func (r *Report) Explained() int {
	n := 0
	for _, found := range r.Found {
		n += len(found)
	}
	return n
}

// Result is the result of a case in a table.
func (r *Report) Result(name string) string {
	of := func(d Difference) bool { return d.Case == name }
	var texts []string
	for _, e := range r.Explanations {
		if !e.Everywhere() && !slices.Contains(texts, e.Reason) && slices.ContainsFunc(r.Found[e], of) {
			texts = append(texts, e.Reason)
		}
	}
	if n := len(slices.DeleteFunc(slices.Clone(r.Open), func(d Difference) bool { return !of(d) })); n > 0 {
		texts = append(texts, fmt.Sprintf("**%d differences without a reason**", n))
	}
	if len(texts) == 0 {
		return "equal"
	}
	return Cell("different: " + strings.Join(texts, "; "))
}

// Everywhere is the table of differences in every pod; counted adds a column with their number.
func (r *Report) Everywhere(counted bool) string {
	head, lines := "| difference | reason |\n|---|---|\n", []string(nil)
	if counted {
		head = "| difference | number | reason |\n|---|---|---|\n"
	}
	for _, e := range r.Explanations {
		if !e.Everywhere() || len(r.Found[e]) == 0 {
			continue
		}
		line := "| " + strings.Join(e.Aspects, ", ") + " | "
		if counted {
			line += fmt.Sprintf("%d | ", len(r.Found[e]))
		}
		if line += Cell(e.Reason) + " |\n"; !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	if len(lines) == 0 {
		return ""
	}
	return "## Differences in every pod\n\nThe tables below do not repeat these.\n\n" + head + strings.Join(lines, "") + "\n"
}

// Print writes the differences that a person must check: those without an explanation. For a whole
// comparison, it also writes unused explanations. It reports whether there are none.
func (r *Report) Print(out io.Writer, o *Options) bool {
	for _, d := range r.Open {
		fmt.Fprintln(out, d)
	}
	if o.Verbose {
		for _, e := range r.Explanations {
			fmt.Fprintf(out, "(%s)\n", e.Reason)
			for _, d := range r.Found[e] {
				fmt.Fprintln(out, "  ", d)
			}
		}
	}
	idle := 0
	for _, e := range r.Idle() {
		if o.Whole() {
			idle++
			fmt.Fprintf(out, "explains nothing: %v %v %q\n", e.Cases, e.Aspects, e.Match)
		}
	}
	fmt.Fprintf(out, "%d differences explained, %d unexplained\n", r.Explained(), len(r.Open))
	return len(r.Open) == 0 && idle == 0
}

// Cell is a text as a cell of a table.
func Cell(s string) string {
	return strings.ReplaceAll(strings.ReplaceAll(s, "|", `\|`), "\n", " ")
}

// Facts are single values, each by its path.
type Facts map[string]string

// words matches the lists of words whose order does not matter.
var words = regexp.MustCompile(`(masked_paths|readonly_paths|_capabilities|supplemental_groups)$`)

// Flatten splits a value into facts by its JSON paths. An element of a list has the name that
// one of the fields called keys has; "" and other elements have their number.
func Flatten(path string, v any, keys ...string) Facts {
	f := Facts{}
	text, err := json.Marshal(v)
	var tree any
	if err == nil {
		err = json.Unmarshal(text, &tree)
	}
	if err != nil {
		f[path] = err.Error()
		return f
	}
	f.add(path, tree, keys)
	return f
}

func (f Facts) add(path string, v any, keys []string) {
	switch v := v.(type) {
	case nil:
	case map[string]any:
		for k, e := range v {
			f.add(strings.TrimPrefix(path+"."+k, "."), e, keys)
		}
	case []any:
		for i, e := range v {
			if words.MatchString(path) {
				f[path+"["+fmt.Sprint(e)+"]"] = "there"
				continue
			}
			f.add(path+"["+element(i, e, keys)+"]", e, keys)
		}
	case float64:
		f[path] = strconv.FormatFloat(v, 'f', -1, 64)
	default:
		f[path] = fmt.Sprint(v)
	}
}

func element(i int, v any, keys []string) string {
	m, _ := v.(map[string]any)
	for _, k := range keys {
		switch s := m[k].(type) {
		case string:
			if s != "" {
				return s
			}
		case []any: // the names of an image
			if len(s) > 0 {
				return fmt.Sprint(s[len(s)-1])
			}
		}
	}
	return strconv.Itoa(i)
}
