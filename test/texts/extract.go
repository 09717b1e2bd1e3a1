// Package texts holds the texts of the kubelet that reach the API beside ours: reasons,
// messages of conditions and events, states of containers, results of probes. Tools and
// Kubernetes' own tests match them, so ours are the same, word for word.
//
// kubelet.txt is made from the kubelet's sources, and read without them. reasons.txt says
// why a text of the kubelet is not in nodectl. docs/texts.md is made from both and from
// nodectl's own sources.
package texts

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Text is one text of the kubelet's.
type Text struct {
	Kind string // event, status, probe, reason
	File string // in which it is, below pkg/
	Of   string // the event's reason, the literal's type or the constant; may be empty
	Text string // a format, as the source has it
}

// Line writes a Text as kubelet.txt has it.
func (t Text) Line() string {
	return strings.Join([]string{t.Kind, t.File, t.Of, strconv.Quote(t.Text)}, "\t")
}

// ParseLine reads a line of kubelet.txt.
func ParseLine(line string) (Text, error) {
	part := strings.Split(line, "\t")
	if len(part) != 4 {
		return Text{}, fmt.Errorf("read %q: %d columns, want 4", line, len(part))
	}
	text, err := strconv.Unquote(part[3])
	return Text{part[0], part[1], part[2], text}, err
}

// sources are the directories of k8s.io/kubernetes/pkg that are read.
var sources = []string{"kubelet", "probe", "security/apparmor"}

// elsewhere are directories below them that belong to other systems, to the kubelet's own tests, or
// whose texts reach no API server.
var elsewhere = regexp.MustCompile(`(_windows|_unsupported|_others|_darwin|_test)\.go$|/testing/|/fake|kubelet/(server|client|certificate|kubeletconfig|apis|metrics|podcertificate|util)/`)

// Extract reads the kubelet's texts from the sources of k8s.io/kubernetes.
func Extract(kubernetes string) ([]Text, error) {
	var all []Text
	for _, dir := range sources {
		root := filepath.Join(kubernetes, "pkg")
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || elsewhere.MatchString(path) {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			all = append(all, textsOf(filepath.ToSlash(name), f)...)
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", dir, err)
		}
	}
	slices.SortFunc(all, func(a, b Text) int { return cmp.Compare(a.Line(), b.Line()) })
	return slices.Compact(all), nil
}

// events are the calls that send an event; the text follows the reason.
var events = []string{"Event", "Eventf", "AnnotatedEventf", "recordContainerEvent", "recordEvent"}

// literals are the types whose texts reach the API.
var literals = []string{"ContainerStateWaiting", "ContainerStateTerminated", "PodCondition", "PodAdmitResult", "PodStatus", "NodeCondition"}

func textsOf(file string, f *ast.File) (all []Text) {
	add := func(kind, of string, e ast.Expr) {
		for _, text := range stringsOf(e) {
			if strings.TrimSpace(text) != "" && text != "%s" && text != "%v" {
				all = append(all, Text{kind, file, of, text})
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if slices.Contains(events, nameOf(n.Fun)) {
				for i, arg := range n.Args {
					if strings.HasPrefix(nameOf(arg), "EventType") && i+2 < len(n.Args) {
						add("event", reasonOf(n.Args[i+1]), n.Args[i+2])
					}
				}
			}
		case *ast.CompositeLit:
			of := nameOf(n.Type)
			if !slices.Contains(literals, of) {
				break
			}
			for _, e := range n.Elts {
				if kv, ok := e.(*ast.KeyValueExpr); ok && (nameOf(kv.Key) == "Message" || nameOf(kv.Key) == "Reason") {
					add("status", of+"."+nameOf(kv.Key), kv.Value)
				}
			}
		case *ast.ReturnStmt:
			if strings.HasPrefix(file, "probe/") && len(n.Results) == 3 {
				add("probe", nameOf(n.Results[0]), n.Results[1])
			}
			if strings.HasPrefix(file, "kubelet/lifecycle/") || strings.HasPrefix(file, "kubelet/sysctl/") || strings.HasPrefix(file, "security/") {
				for _, r := range n.Results {
					if c, ok := r.(*ast.CallExpr); ok && slices.Contains([]string{"Sprintf", "Errorf", "New"}, nameOf(c.Fun)) {
						add("status", "", r)
					}
				}
			}
		case *ast.AssignStmt:
			name := ""
			if len(n.Lhs) == 1 && len(n.Rhs) == 1 {
				name = nameOf(n.Lhs[0])
			}
			switch {
			case strings.HasPrefix(file, "kubelet/kuberuntime/") && name == "message",
				strings.HasPrefix(file, "kubelet/kuberuntime/") && name == "errs" && strings.Contains(fmt.Sprint(stringsOf(n.Rhs[0])), "memory limit"),
				strings.HasPrefix(file, "probe/") && name == "failureMsg",
				file == "kubelet/status/generate.go" && name == "unreadyMessages",
				strings.HasPrefix(file, "kubelet/lifecycle/") && name == "message",
				strings.HasPrefix(file, "kubelet/images/") && (name == "msg" || name == "message"),
				strings.HasSuffix(file, "eviction/helpers.go") && name == "message":
				add("status", name, n.Rhs[0])
			}
		case *ast.ValueSpec:
			if !reasons(file) {
				break
			}
			for i, v := range n.Values {
				add("reason", n.Names[i].Name, v)
			}
		}
		return true
	})
	return all
}

// reasons reports whether the constants of a file are reasons.
func reasons(file string) bool {
	return slices.Contains([]string{
		"kubelet/events/event.go", "kubelet/status/generate.go", "kubelet/images/types.go", "kubelet/container/sync_result.go", "kubelet/eviction/helpers.go",
	}, file)
}

// nameOf is the last name of an expression.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	case *ast.StarExpr:
		return nameOf(e.X)
	}
	return ""
}

func reasonOf(e ast.Expr) string {
	if s := stringsOf(e); len(s) == 1 {
		return s[0]
	}
	return nameOf(e)
}

// stringsOf returns the string literals of an expression, those that are added as one.
func stringsOf(e ast.Expr) []string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return []string{text}
		}
	case *ast.BinaryExpr:
		if text, has := sum(e); has && e.Op == token.ADD {
			return []string{text}
		}
	case *ast.CallExpr:
		var all []string
		for _, a := range e.Args {
			all = append(all, stringsOf(a)...)
		}
		return all
	}
	return nil
}

// sum writes an addition as one format; has says that there is a literal in it.
func sum(e ast.Expr) (text string, has bool) {
	if b, ok := e.(*ast.BinaryExpr); ok && b.Op == token.ADD {
		x, one := sum(b.X)
		y, two := sum(b.Y)
		return x + y, one || two
	}
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, err := strconv.Unquote(l.Value)
		return text, err == nil
	}
	return "%s", false
}

var verb = regexp.MustCompile(`%[-+# 0]*[0-9.]*(\[[0-9]+\])?[a-zA-Z]`)

// shape is a text without its verbs: two formats of one shape read the same.
func shape(text string) string {
	return strings.TrimSpace(verb.ReplaceAllString(strings.NewReplacer(`"%s"`, "%q", "%%", "%").Replace(text), "…"))
}

// Own returns the shapes of all string literals in nodectl's sources below root, each with
// a file that has it.
func Own(root string, dirs ...string) (map[string]string, error) {
	all := make(map[string]string)
	for _, dir := range dirs {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			src, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			f, err := parser.ParseFile(token.NewFileSet(), path, src, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(root, path)
			ast.Inspect(f, func(n ast.Node) bool {
				e, ok := n.(ast.Expr)
				if !ok {
					return true
				}
				switch e.(type) {
				case *ast.BasicLit, *ast.BinaryExpr:
					for _, text := range stringsOf(e) {
						if _, known := all[shape(text)]; !known {
							all[shape(text)] = filepath.ToSlash(name)
						}
					}
				}
				return true
			})
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}
