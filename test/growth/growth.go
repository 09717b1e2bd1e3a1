// Package growth has the table of everything that grows on a node, with its bound and the part
// that prunes it, and compares the directories of a node with it. docs/growth.md is the table for
// people.
//
// The comparison fails on a file that no row explains, and on a row whose files exceed its
// bound. Both are a mistake of the table or a leak.
package growth

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Node is the node that is compared with the table.
type Node struct {
	// Dirs are the directories of the places. A place without a directory is not compared.
	Dirs map[Place]string
	// Pods are the UIDs of the pods that the node has.
	Pods map[string]bool
	// Objects are the objects of the runtime, named as in the table.
	Objects []string
}

// entry is a file, a directory or an object of the runtime.
type entry struct {
	name string // below its place, with slashes
	dir  bool
	size int64
}

// rule is a row with its name as an expression.
type rule struct {
	Row
	match *regexp.Regexp
	above []*regexp.Regexp // of the directories above it
	tree  bool
}

var rules = func() []rule {
	var all []rule
	for _, row := range Table {
		name, tree := strings.CutSuffix(row.Name, "/...")
		r := rule{Row: row, tree: tree}
		for i := range name {
			if name[i] == '/' {
				r.above = append(r.above, regexp.MustCompile("^"+expression(name[:i])+"$"))
			}
		}
		// A killed writer leaves at most one incomplete file beside the file.
		r.match = regexp.MustCompile("^" + expression(name) + `(?:\.tmp|\.new)?$`)
		all = append(all, r)
	}
	return all
}()

// expression returns the regular expression of a name of the table.
func expression(name string) string {
	var b strings.Builder
	for _, part := range regexp.MustCompile(`<[a-z]+>|[^<]+`).FindAllString(name, -1) {
		switch {
		case part == "<uid>":
			b.WriteString(`(?P<uid>[^/_]+)`)
		case part == "<n>", part == "<attempt>", part == "<instance>":
			b.WriteString(`[0-9]+`)
		case strings.HasPrefix(part, "<"):
			b.WriteString(`[^/]+`)
		default:
			b.WriteString(regexp.QuoteMeta(part))
		}
	}
	return b.String()
}

// Check returns the files that no row explains, that are over a bound, or that belong to no pod of
// the node.
func (n Node) Check() []string {
	var wrong []string
	for _, place := range slices.Sorted(maps.Keys(n.Dirs)) {
		entries, err := below(n.Dirs[place], place)
		if err != nil {
			wrong = append(wrong, err.Error())
		}
		wrong = append(wrong, n.compare(place, entries)...)
	}
	var objects []entry
	for _, name := range n.Objects {
		objects = append(objects, entry{name: name})
	}
	return append(wrong, n.compare(Runtime, objects)...)
}

// below lists a directory, without the files in the trees of the table.
func below(dir string, place Place) (all []entry, err error) {
	err = filepath.WalkDir(dir, func(file string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist): // removed meanwhile, or not made yet
			return nil
		case err != nil:
			return err
		case file == dir:
			return nil
		}
		rel, err := filepath.Rel(dir, file)
		if err != nil {
			return err
		}
		e := entry{name: filepath.ToSlash(rel), dir: d.IsDir()}
		r := find(place, e.name)
		if r != nil && r.tree && e.dir {
			if r.Bytes > 0 {
				e.size = sizeOf(file)
			}
			all = append(all, e)
			return fs.SkipDir
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			e.size = info.Size()
		}
		all = append(all, e)
		return nil
	})
	return all, err
}

// sizeOf is the size of all files below a directory.
func sizeOf(dir string) (all int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil // removed meanwhile
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			all += info.Size()
		}
		return nil
	})
	return all
}

// find returns the row of a name, nil for none.
func find(place Place, name string) *rule {
	for i := range rules {
		if rules[i].In == place && rules[i].match.MatchString(name) {
			return &rules[i]
		}
	}
	return nil
}

// leads reports whether a directory is one above a row.
func leads(place Place, name string) bool {
	return slices.ContainsFunc(rules, func(r rule) bool {
		return r.In == place && slices.ContainsFunc(r.above, func(above *regexp.Regexp) bool { return above.MatchString(name) })
	})
}

func (n Node) compare(place Place, entries []entry) (wrong []string) {
	type beside struct {
		row *rule
		dir string
	}
	count := map[beside]int{}
	for _, e := range entries {
		at := fmt.Sprintf("%s/%s", place, e.name)
		r := find(place, e.name)
		if r == nil {
			if !e.dir || !leads(place, e.name) {
				wrong = append(wrong, at+": no row of the table explains it")
			}
			continue
		}
		if i := r.match.SubexpIndex("uid"); i > 0 && n.Pods != nil {
			if uid := r.match.FindStringSubmatch(e.name)[i]; !n.Pods[uid] {
				wrong = append(wrong, at+": the node has no such pod")
			}
		}
		if r.Bytes > 0 && e.size > r.Bytes {
			wrong = append(wrong, fmt.Sprintf("%s: %d bytes, the bound is %d", at, e.size, r.Bytes))
		}
		if !strings.HasSuffix(e.name, ".tmp") && !strings.HasSuffix(e.name, ".new") {
			count[beside{r, path.Dir(e.name)}]++
		}
	}
	for b, is := range count {
		if b.row.Count > 0 && is > b.row.Count {
			wrong = append(wrong, fmt.Sprintf("%s/%s: %d of %s, the bound is %d", place, b.dir, is, b.row.Name, b.row.Count))
		}
	}
	slices.Sort(wrong)
	return wrong
}

// Page is docs/growth.md.
func Page() string {
	var b strings.Builder
	b.WriteString(head)
	for _, place := range []struct {
		Place
		title string
	}{
		{Runtime, "In the container runtime"}, {Root, "Below `--root-dir`"}, {Kubelet, "Below `--kubelet-dir`"}, {Logs, "Below `--pod-logs-dir`"},
		{Links, "In `containers`, beside `--pod-logs-dir`"}, {Run, "Below `--run-dir` and `/run/nodectl`, in memory"},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n| name | holds | bound | pruned by |\n|---|---|---|---|\n", place.title)
		for _, r := range Table {
			if r.In == place.Place {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.Name, r.Holds, r.Bound, r.Prunes)
			}
		}
	}
	return b.String()
}

const head = `# What grows, and its bound

Everything that nodectl writes and that could fill a disk, with its bound and what prunes it.
` + "`go test ./test/growth -update`" + ` writes this page from the table in ` + "`test/growth`" + `. Tests compare that
table with the directories of a node after many restarts, edits and faults, as ` + "`make soak`" + ` does.

Beside a file there may be one with the suffix ` + "`.tmp` or `.new`" + `, which the next write of the file
replaces. A name that ends in ` + "`/...`" + ` stands for all below it. cgroups, mounts and the addresses of
pods go with their pods.
`

// Objects returns the exited containers and the sandboxes that are not ready of a pod, named as in
// the table.
func Objects(p pod.Actual) (all []string) {
	containers := slices.AppendSeq(slices.Clone(p.Dead), maps.Values(p.Containers))
	for _, c := range containers {
		if c.State == pod.StateExited {
			all = append(all, path.Join("exited", p.UID, c.Name, c.ID))
		}
	}
	sandboxes := p.Older
	if p.Sandbox != nil {
		sandboxes = append(slices.Clone(p.Older), *p.Sandbox)
	}
	for _, s := range sandboxes {
		if !s.Ready {
			all = append(all, path.Join("sandboxes", p.UID, s.ID))
		}
	}
	return all
}
