package pkg

import (
	"go/ast"
	"go/token"
	"slices"
	"strings"
	"testing"
)

// facts names the one package that defines each fact that several once defined. All others
// call it.
var facts = []struct {
	fact   string
	owner  string   // the package
	names  []string // its functions, constants and methods ("Type.Method") that state the fact
	except []string // packages that write the fact, or read it from another party
	// states reports whether a node defines the fact by itself; nil: the syntax does not
	// show it.
	states func(n ast.Node) bool
}{
	{
		"which pods are an API server's", "pkg/pod", []string{"SourceAPI", "Origin.FromAPI", "IsAPILayer", "SourceOf"},
		[]string{"pkg/manifest", "pkg/podstatic"}, // write the annotation
		func(n ast.Node) bool { return isText(n, "api") || isIndex(n, "", "AnnotationConfigSource") },
	},
	{
		"which conditions the node computes", "pkg/pod", []string{"ConditionByKubelet", "ConditionSharedByKubelet"}, nil,
		func(n ast.Node) bool { // a list of them
			list, ok := n.(*ast.CaseClause)
			return ok && len(list.List) > 2 && isSelector(list.List[0], "v1", "PodReadyToStartContainers") || isListOf(n, "v1", "PodConditionType")
		},
	},
	{
		"what a new instance begins with", "pkg/pod", []string{"Record.Begin", "Record.AdoptNewerInstance", "Spec.Acknowledged"},
		[]string{"pkg/record"}, // stores it
		func(n ast.Node) bool { // the start of the previous stop is cleared
			set, ok := n.(*ast.AssignStmt)
			return ok && slices.ContainsFunc(set.Lhs, func(e ast.Expr) bool { return isSelector(e, "", "StopAsked") }) &&
				slices.ContainsFunc(set.Rhs, func(e ast.Expr) bool { return isName(e, "false") })
		},
	},
	{
		"what a forecast and an agent plan by", "pkg/plan", []string{"NewView"},
		[]string{"pkg/service"}, // its View is of a Service
		func(n ast.Node) bool {
			lit, ok := n.(*ast.CompositeLit)
			return ok && (isSelector(lit.Type, "plan", "View") || isName(lit.Type, "View") && len(lit.Elts) > 2)
		},
	},
	{
		"the grace of a stop", "pkg/podview", []string{"Grace", "StopGrace", "MinGrace"},
		nil,
		func(n ast.Node) bool { // by the spec
			of, ok := n.(*ast.StarExpr)
			return ok && isSelector(of.X, "", "TerminationGracePeriodSeconds") && isSelector(of.X.(*ast.SelectorExpr).X, "", "Spec")
		},
	},
	{
		"how a failed pull is shown and tried again", "pkg/podview", []string{"PullDelay", "PullBackOffFrom", "InPullBackOff", "IsPullError", "IsNeverPulled"},
		[]string{"pkg/server"}, // reads a status
		func(n ast.Node) bool { return isText(n, "ImagePullBackOff") },
	},
	{
		"which containers count for an instance", "pkg/podview", []string{
			"ToPlan", "ToReport", "State.Container", "State.InSandbox", "State.CurrentInit", "State.HasStarted", "State.RestartsAll", "State.Changed",
			"State.MayHaveChanged", "State.HadSandbox", "State.HasNewestSandbox", "State.AnyLeft", "MayRun", "ContainersRunning", "Running", "DuplicatesOf",
		}, nil,
		func(n ast.Node) bool { // c.SandboxID == sandbox.ID
			is, ok := n.(*ast.BinaryExpr)
			return ok && isSelector(is.X, "", "SandboxID") && isSelector(is.Y, "", "ID") && isSelector(is.Y.(*ast.SelectorExpr).X, "", "sandbox", "Sandbox")
		},
	},
	{
		"which containers may run", "pkg/pod", []string{"Container.MayRun"}, nil,
		func(n ast.Node) bool {
			or, ok := n.(*ast.BinaryExpr)
			return ok && or.Op == token.LOR && isCompared(or.X, "StateRunning") && isCompared(or.Y, "StateUnknown")
		},
	},
	{
		"which boot of the machine this is", "pkg/bootid", []string{"Read"}, nil,
		func(n ast.Node) bool { return isText(n, "/proc/sys/kernel/random/boot_id") },
	},
	{
		"which phases are final", "pkg/pod", []string{"IsPhaseTerminal", "Spec.EndedAtServer"}, nil,
		func(n ast.Node) bool {
			is, ok := n.(*ast.BinaryExpr)
			return ok && (is.Op == token.LOR || is.Op == token.LAND) &&
				(isCompared(is.X, "PodSucceeded") && isCompared(is.Y, "PodFailed") || isCompared(is.X, "PodFailed") && isCompared(is.Y, "PodSucceeded"))
		},
	},
	{
		"how a goroutine that waits for work is woken", "pkg/wakeup", []string{"New", "Signal.Send"}, nil,
		isSendOrNothing,
	},
}

// isSendOrNothing reports whether a node sends an empty struct unless it would wait, and does nothing
// else.
func isSendOrNothing(n ast.Node) bool {
	s, ok := n.(*ast.SelectStmt)
	if !ok || len(s.Body.List) != 2 {
		return false
	}
	sends, others := 0, 0
	for _, c := range s.Body.List {
		c := c.(*ast.CommClause)
		if len(c.Body) > 0 {
			return false
		}
		if c.Comm == nil {
			others++
			continue
		}
		if send, ok := c.Comm.(*ast.SendStmt); ok {
			if of, ok := send.Value.(*ast.CompositeLit); ok && len(of.Elts) == 0 {
				sends++
			}
		}
	}
	return sends == 1 && others == 1
}

// TestFacts_HaveOneOwner: the owners exist, and no other package has syntax that defines a
// fact.
func TestFacts_HaveOneOwner(t *testing.T) {
	t.Parallel()
	all := files(t)
	declared := map[string]bool{}
	for _, f := range all {
		for _, name := range declarations(f.ast) {
			declared[f.dir+"."+name] = true
		}
	}
	for _, fact := range facts {
		for _, name := range fact.names {
			if !declared[fact.owner+"."+name] {
				t.Errorf("%s: %s does not declare %s", fact.fact, fact.owner, name)
			}
		}
		if fact.states == nil {
			continue
		}
		known := false
		for _, f := range all {
			if !f.below("pkg/...", "cmd", "") || f.below(fact.except...) {
				continue
			}
			paths := apiPaths(f.ast)
			ast.Inspect(f.ast, func(n ast.Node) bool {
				switch {
				case n == nil || paths[n] || !fact.states(n):
				case f.dir == fact.owner:
					known = true
				default:
					t.Errorf("%s: %s is for %s to say (%s)", f.at(n), fact.fact, fact.owner, strings.Join(fact.names, ", "))
				}
				return true
			})
		}
		if !known {
			t.Errorf("%s: nothing in %s states it: its row is out of date", fact.fact, fact.owner)
		}
	}
}

// declarations returns the functions, methods, constants and types that a file
// declares.
func declarations(f *ast.File) (names []string) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			name := d.Name.Name
			if d.Recv != nil {
				of := d.Recv.List[0].Type
				if star, ok := of.(*ast.StarExpr); ok {
					of = star.X
				}
				if id, ok := of.(*ast.Ident); ok {
					name = id.Name + "." + name
				}
			}
			names = append(names, name)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					for _, name := range s.Names {
						names = append(names, name.Name)
					}
				case *ast.TypeSpec:
					names = append(names, s.Name.Name)
				}
			}
		}
	}
	return names
}

// apiPaths returns the literals that begin a path of the API, "api" before "v1".
func apiPaths(f *ast.File) map[ast.Node]bool {
	paths := map[ast.Node]bool{}
	ast.Inspect(f, func(n ast.Node) bool {
		if list, ok := n.(*ast.CompositeLit); ok && len(list.Elts) > 1 && isText(list.Elts[0], "api") && isText(list.Elts[1], "v1") {
			paths[list.Elts[0]] = true
		}
		return true
	})
	return paths
}

// isText reports whether a node is one of these string literals.
func isText(n ast.Node, texts ...string) bool {
	lit, ok := n.(*ast.BasicLit)
	return ok && lit.Kind == token.STRING && slices.Contains(texts, strings.Trim(lit.Value, "`\""))
}

// isSelector reports whether a node is x.name, for one of the names; x "" matches any.
func isSelector(n ast.Node, x string, names ...string) bool {
	s, ok := n.(*ast.SelectorExpr)
	if !ok || !slices.Contains(names, s.Sel.Name) {
		return false
	}
	return x == "" || isName(s.X, x)
}

// isIndex reports whether a node is of[index], index with or without its package; of ""
// matches any.
func isIndex(n ast.Node, of, index string) bool {
	i, ok := n.(*ast.IndexExpr)
	if !ok || of != "" && !isSelector(i.X, "", of) {
		return false
	}
	return isSelector(i.Index, "", index) || isName(i.Index, index)
}

// isName reports whether a node is only this name.
func isName(n ast.Node, name string) bool {
	id, ok := n.(*ast.Ident)
	return ok && id.Name == name
}

// isCompared reports whether a node is a comparison with a constant of this name.
func isCompared(n ast.Node, name string) bool {
	is, ok := n.(*ast.BinaryExpr)
	return ok && (isSelector(is.Y, "", name) || isName(is.Y, name))
}

// isListOf reports whether a node is an array or slice literal of a type x.name.
func isListOf(n ast.Node, x, name string) bool {
	lit, ok := n.(*ast.CompositeLit)
	if !ok {
		return false
	}
	list, ok := lit.Type.(*ast.ArrayType)
	return ok && isSelector(list.Elt, x, name)
}
