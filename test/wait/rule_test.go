package wait

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// allowed lists the waits that exist in spite of the rule, one a line:
//
//	FILE FUNCTION COUNT REASON
//
// The list may only shrink: a line whose count is too high fails the test, and so does a
// list whose counts do not add up to total. Lower total with the list; never raise it.
const (
	allowed = "testdata/allowed.txt"
	total   = 27
)

// exempt directories hold programs that measure or record with real time. They are not
// tests: nothing in the first tier or the full tier waits for them to pass.
var exempt = map[string]bool{
	"test/arm": true, "test/bench": true, "test/benchcluster": true, "test/benchdns": true, "test/benchkubelet": true, "test/benchrollout": true,
	"test/benchservices": true, "test/soak": true, "test/soakagents": true,
	"test/parity": true, "test/paritycluster": true, "test/parityworkloads": true,
	"test/images": true, // the programs inside the tests' containers
	"test/wait":   true, // the one package that waits for time
}

// scripts are the directories whose scripts tests run.
var scripts = []string{"cmd/testdata", "hack", "test"}

// TestRule_WaitOnlyForTime_IsForbidden finds every wait whose only event is time, and
// every event that comes after a time (testdata/kinds has one of each kind). In fake time
// all of them are allowed: a testing/synctest bubble waits for nothing. A time that
// mentions wait.Limit is a safety net, and no wait.
func TestRule_WaitOnlyForTime_IsForbidden(t *testing.T) {
	found := make(map[string][]string) // by "FILE FUNCTION": line and kind
	for _, dir := range testDirs(t) {
		for _, w := range waitsOf(t, root, dir) {
			found[w.file+" "+w.function] = append(found[w.file+" "+w.function], fmt.Sprintf("%s:%d: %s", w.file, w.line, w.kind))
		}
	}
	for _, w := range scriptWaits(t) {
		found[w.file+" script"] = append(found[w.file+" script"], fmt.Sprintf("%s:%d: %s", w.file, w.line, w.kind))
	}
	limits, sum := readAllowed(t), 0
	for _, n := range limits {
		sum += n
	}
	if sum != total {
		t.Errorf("%s allows %d waits, want %d: lower the constant total with the list, and never raise it", allowed, sum, total)
	}
	for _, place := range slices.Sorted(maps.Keys(found)) {
		switch n := len(found[place]); {
		case n > limits[place]:
			t.Errorf("%s: %d waits for time, allowed are %d. Wait for the event (package test/wait), or use testing/synctest:\n\t%s",
				place, n, limits[place], strings.Join(found[place], "\n\t"))
		case n < limits[place]:
			t.Errorf("%s: %d waits for time are left: lower the count in test/wait/%s", place, n, allowed)
		}
	}
	for _, place := range slices.Sorted(maps.Keys(limits)) {
		if len(found[place]) == 0 {
			t.Errorf("%s: no wait for time is left: remove the line from test/wait/%s", place, allowed)
		}
	}
}

// TestRule_EveryKind_IsFound keeps the rule from passing because it finds nothing.
func TestRule_EveryKind_IsFound(t *testing.T) {
	var want, got []string
	for _, file := range []string{"kinds/dot_test.go", "kinds/kinds_test.go"} {
		text, err := os.ReadFile(filepath.Join("testdata", file))
		if err != nil {
			t.Fatal(err)
		}
		for i, line := range strings.Split(string(text), "\n") {
			if strings.HasSuffix(line, "// WAIT") {
				want = append(want, fmt.Sprintf("%s:%d", file, i+1))
			}
		}
	}
	for _, w := range waitsOf(t, "testdata", "kinds") {
		got = append(got, fmt.Sprintf("%s:%d", w.file, w.line))
	}
	if !slices.Equal(got, want) || len(want) == 0 {
		t.Errorf("waits found in\n%v, want\n%v", got, want)
	}
}

func readAllowed(t *testing.T) map[string]int {
	text, err := os.ReadFile(allowed)
	if err != nil {
		t.Fatal(err)
	}
	limits := make(map[string]int)
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "#") || strings.TrimSpace(line) == "" {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 4 {
			t.Fatalf("%s: want FILE FUNCTION COUNT REASON: %s", allowed, line)
		}
		n, err := strconv.Atoi(f[2])
		if err != nil || n < 1 || limits[f[0]+" "+f[1]] > 0 {
			t.Fatalf("%s: no count, or the function stands twice: %s", allowed, line)
		}
		limits[f[0]+" "+f[1]] = n
	}
	return limits
}

// testDirs returns the directories, relative to the root, whose files are tests or run
// in tests.
func testDirs(t *testing.T) (dirs []string) {
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		dir, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		if d.Name() == "testdata" || exempt[dir] || dir == "bin" || dir != "." && strings.HasPrefix(d.Name(), ".") {
			return fs.SkipDir
		}
		dirs = append(dirs, dir)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

// isTestFile reports whether a file is part of tests only: it is named so, or it is in a
// package that exists for tests (below test, and pkg/cri/critest and its like).
func isTestFile(path string) bool {
	return strings.HasSuffix(path, "_test.go") || strings.HasPrefix(path, "test/") || strings.HasSuffix(filepath.Dir(path), "test")
}

// A wait is one place that waits for time alone.
type wait struct {
	file     string
	line     int
	function string
	kind     string
}

// waitsOf returns the waits in the test files of one directory that real time can reach.
//
// Real time reaches the functions that go test calls, the exported functions of a package for
// tests, and everything that these refer to. It does not enter a bubble: a function literal that is
// handed to synctest.Test, or to a function of the package that calls it only in there, or a block
// with a call of synctest.Wait. References are resolved by name, so the answer errs on the side of
// real time.
func waitsOf(t *testing.T, root, dir string) (waits []wait) {
	fset := token.NewFileSet()
	entries, err := os.ReadDir(filepath.Join(root, dir))
	if err != nil {
		t.Fatal(err)
	}
	p := &pkg{decls: make(map[string][]ast.Node), methods: make(map[string][]*ast.FuncDecl), bubbled: make(map[string]map[int]bool)}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() || !strings.HasSuffix(path, ".go") || !isTestFile(path) {
			continue
		}
		f, err := parser.ParseFile(fset, filepath.Join(root, path), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		resolveImports(f)
		p.add(f)
	}
	p.findBubbled()
	p.findWaiters()
	for _, n := range p.inRealTime(fset) {
		decl, ok := n.(*ast.FuncDecl)
		name := "var"
		if ok {
			name = decl.Name.Name
			if decl.Recv != nil {
				name = receiver(decl) + "." + name
			}
		}
		for pos, kind := range p.findWaits(n) {
			at := fset.Position(pos)
			file, _ := filepath.Rel(root, at.Filename)
			waits = append(waits, wait{file, at.Line, name, kind})
		}
	}
	slices.SortFunc(waits, func(a, b wait) int {
		if c := strings.Compare(a.file, b.file); c != 0 {
			return c
		}
		return a.line - b.line
	})
	return waits
}

// pkg is the syntax of one directory's test files.
type pkg struct {
	decls   map[string][]ast.Node      // functions, types and variables, by name
	methods map[string][]*ast.FuncDecl // by the name of their type
	bubbled map[string]map[int]bool    // functions that run these parameters in bubbles only
	waiters map[string]bool            // functions and methods that hand a parameter to package wait
}

// packages are those whose names the rule knows, by their path.
var packages = map[string]string{
	"time": "time", "context": "context", "os/exec": "exec", "syscall": "syscall",
	"golang.org/x/sys/unix": "unix", "testing/synctest": "synctest", "github.com/nodectl/nodectl/test/wait": "wait",
}

// resolveImports renames packages that a file imports under another name. After a dot import the
// functions of the package are no selectors: they become ones.
func resolveImports(f *ast.File) {
	names, dots := make(map[string]string), []string(nil)
	for _, spec := range f.Imports {
		path, _ := strconv.Unquote(spec.Path.Value)
		switch {
		case spec.Name == nil:
		case spec.Name.Name == ".":
			dots = append(dots, packages[path])
		case packages[path] != "":
			names[spec.Name.Name] = packages[path]
		case slices.Contains(slices.Collect(maps.Values(packages)), spec.Name.Name):
			names[spec.Name.Name] = path // another package that is called so
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok && names[x.Name] != "" {
				x.Name = names[x.Name]
			}
		case *ast.CallExpr:
			if id, ok := n.Fun.(*ast.Ident); ok && slices.Contains(dots, "time") && slices.Contains([]string{"Sleep", "After", "Tick", "AfterFunc", "Since", "Now"}, id.Name) {
				n.Fun = &ast.SelectorExpr{X: &ast.Ident{NamePos: id.NamePos, Name: "time"}, Sel: id}
			}
		}
		return true
	})
}

func (p *pkg) add(f *ast.File) {
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Recv != nil {
				p.methods[receiver(d)] = append(p.methods[receiver(d)], d)
				continue
			}
			p.decls[d.Name.Name] = append(p.decls[d.Name.Name], d)
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.TypeSpec:
					p.decls[s.Name.Name] = append(p.decls[s.Name.Name], s)
				case *ast.ValueSpec:
					for _, name := range s.Names {
						p.decls[name.Name] = append(p.decls[name.Name], s)
					}
				}
			}
		}
	}
}

func receiver(d *ast.FuncDecl) string {
	x := d.Recv.List[0].Type
	for {
		switch e := x.(type) {
		case *ast.StarExpr:
			x = e.X
		case *ast.IndexExpr:
			x = e.X
		case *ast.IndexListExpr:
			x = e.X
		case *ast.Ident:
			return e.Name
		default:
			return "?"
		}
	}
}

// called matches the functions that go test calls. Benchmarks are left out: they measure
// real time.
var called = regexp.MustCompile(`^(Test|Fuzz|Example)|^(main|init)$`)

// inRealTime returns the declarations that real time reaches.
func (p *pkg) inRealTime(fset *token.FileSet) (reached []ast.Node) {
	var next []ast.Node
	for name, nodes := range p.decls {
		for _, n := range nodes {
			exported := ast.IsExported(name) && !strings.HasSuffix(fset.Position(n.Pos()).Filename, "_test.go")
			if called.MatchString(name) || exported {
				next = append(next, n)
			}
		}
	}
	seen := make(map[ast.Node]bool)
	for len(next) > 0 {
		n := next[len(next)-1]
		next = next[:len(next)-1]
		if seen[n] {
			continue
		}
		seen[n] = true
		reached = append(reached, n)
		if s, ok := n.(*ast.TypeSpec); ok {
			for _, m := range p.methods[s.Name.Name] {
				next = append(next, m)
			}
		}
		p.walkRealTime(n, func(n ast.Node) {
			if id, ok := n.(*ast.Ident); ok {
				next = append(next, p.decls[id.Name]...)
			}
		})
	}
	return reached
}

// walkRealTime visits the nodes below n that are not in a bubble. Names of fields and
// methods are left out: they are no references to declarations of the package.
func (p *pkg) walkRealTime(n ast.Node, visit func(ast.Node)) {
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case nil:
			return false
		case *ast.SelectorExpr:
			visit(n)
			p.walkRealTime(n.X, visit)
			if x, ok := n.X.(*ast.Ident); ok && ast.IsExported(n.Sel.Name) && len(p.decls[x.Name]) == 0 {
				visit(n.Sel) // perhaps the package that this is the external test of
			}
			return false
		case *ast.BlockStmt:
			if slices.ContainsFunc(n.List, isBubbleWait) {
				return false // outside of a bubble it panics
			}
		case *ast.FuncType:
			// A parameter's type makes no value: the caller has it, in a bubble or outside.
			if n.Results != nil {
				p.walkRealTime(n.Results, visit)
			}
			return false
		case *ast.KeyValueExpr:
			if _, ok := n.Key.(*ast.Ident); !ok {
				p.walkRealTime(n.Key, visit)
			}
			p.walkRealTime(n.Value, visit)
			return false
		case *ast.CallExpr:
			visit(n)
			p.walkRealTime(n.Fun, visit)
			for i, arg := range n.Args {
				if !p.runsInBubble(n, i) {
					p.walkRealTime(arg, visit)
				}
			}
			return false
		}
		visit(n)
		return true
	})
}

// isBubbleWait reports whether s is a call of synctest.Wait.
func isBubbleWait(s ast.Stmt) bool {
	x, ok := s.(*ast.ExprStmt)
	if !ok {
		return false
	}
	call, ok := x.X.(*ast.CallExpr)
	if !ok {
		return false
	}
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || f.Sel.Name != "Wait" {
		return false
	}
	id, ok := f.X.(*ast.Ident)
	return ok && id.Name == "synctest"
}

// runsInBubble reports whether the argument i of a call is a function that is called in a
// bubble only.
func (p *pkg) runsInBubble(call *ast.CallExpr, i int) bool {
	switch f := call.Fun.(type) {
	case *ast.SelectorExpr:
		x, ok := f.X.(*ast.Ident)
		return ok && x.Name == "synctest" && f.Sel.Name == "Test"
	case *ast.Ident:
		return p.bubbled[f.Name][i]
	}
	return false
}

// findBubbled finds the functions that call a parameter in bubbles only, until there is
// no other.
func (p *pkg) findBubbled() {
	for again := true; again; {
		again = false
		for name, nodes := range p.decls {
			decl, ok := nodes[0].(*ast.FuncDecl)
			if len(nodes) > 1 || !ok || decl.Body == nil {
				continue
			}
			i := 0
			for _, field := range decl.Type.Params.List {
				for _, param := range field.Names {
					i++
					_, isFunc := field.Type.(*ast.FuncType)
					if !isFunc || p.bubbled[name][i-1] || p.usedInRealTime(decl.Body, param.Name) || !mentions(decl.Body, param.Name) {
						continue
					}
					if p.bubbled[name] == nil {
						p.bubbled[name] = make(map[int]bool)
					}
					p.bubbled[name][i-1], again = true, true
				}
			}
		}
	}
}

func (p *pkg) usedInRealTime(n ast.Node, name string) (used bool) {
	p.walkRealTime(n, func(n ast.Node) {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			used = true
		}
	})
	return used
}

func mentions(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && id.Name == name {
			found = true
		}
		return true
	})
	return found
}

// findWaiters finds the functions and methods that hand a function to package wait, until
// there is no other.
func (p *pkg) findWaiters() {
	p.waiters = make(map[string]bool)
	var all []*ast.FuncDecl
	for _, nodes := range p.decls {
		for _, n := range nodes {
			if d, ok := n.(*ast.FuncDecl); ok {
				all = append(all, d)
			}
		}
	}
	for _, methods := range p.methods {
		all = append(all, methods...)
	}
	for again := true; again; {
		again = false
		for _, d := range all {
			if p.waiters[d.Name.Name] || d.Body == nil {
				continue
			}
			for _, field := range d.Type.Params.List {
				_, isFunc := field.Type.(*ast.FuncType)
				for _, param := range field.Names {
					ast.Inspect(d.Body, func(n ast.Node) bool {
						if call, ok := n.(*ast.CallExpr); ok && isFunc && p.isWait(call) && mentions(call, param.Name) {
							p.waiters[d.Name.Name], again = true, true
						}
						return true
					})
				}
			}
		}
	}
}

// isWait reports whether a call hands its functions to package wait.
func (p *pkg) isWait(call *ast.CallExpr) bool {
	f := call.Fun
	if x, ok := f.(*ast.IndexExpr); ok {
		f = x.X
	}
	switch f := f.(type) {
	case *ast.SelectorExpr:
		return is(f.X, "wait") || p.waiters[f.Sel.Name]
	case *ast.Ident:
		return p.waiters[f.Name]
	}
	return false
}

// findWaits returns the waits below n that are not in a bubble.
func (p *pkg) findWaits(n ast.Node) map[token.Pos]string {
	waits := make(map[token.Pos]string)
	c := clocksOf(n)
	polled := make(map[*ast.UnaryExpr]bool) // receives that are cases of a select
	p.walkRealTime(n, func(n ast.Node) {
		switch n := n.(type) {
		case *ast.SelectorExpr:
			switch {
			case isTime(n, "Sleep"):
				waits[n.Pos()] = "time.Sleep"
			case (is(n.X, "unix") || is(n.X, "syscall")) && (n.Sel.Name == "Nanosleep" || n.Sel.Name == "ClockNanosleep"):
				waits[n.Pos()] = "nanosleep"
			}
		case *ast.CallExpr:
			if kind := p.waitOfCall(n, c); kind != "" {
				waits[n.Pos()] = kind
			}
		case *ast.SelectStmt:
			for _, s := range n.Body.List {
				if receive := received(s.(*ast.CommClause).Comm); receive != nil {
					polled[receive] = true
				}
			}
			if kind := c.waitOfSelect(n); kind != "" {
				waits[n.Pos()] = kind
			}
		case *ast.UnaryExpr:
			if n.Op == token.ARROW && !polled[n] && c.isClock(n.X) {
				waits[n.Pos()] = "a receive from a timer"
			}
		case *ast.RangeStmt:
			if c.isClock(n.X) {
				waits[n.Pos()] = "a range over a timer"
			}
		case *ast.ForStmt:
			if n.Cond != nil && readsClock(n.Cond) {
				waits[n.Pos()] = "a loop until a time has come"
			}
		}
	})
	return waits
}

// waitOfCall returns which wait a call is, "" if it is none.
func (p *pkg) waitOfCall(call *ast.CallExpr, c *clocks) string {
	f, _ := call.Fun.(*ast.SelectorExpr)
	switch {
	case p.isWait(call):
		for _, arg := range call.Args {
			reads := false
			if _, ok := arg.(*ast.FuncLit); ok {
				p.walkRealTime(arg, func(n ast.Node) { reads = reads || isTime(n, "Now", "Since", "Until") })
			}
			if reads {
				return "a condition on the time"
			}
		}
	case f == nil:
	case isTime(f, "AfterFunc") && !isLimit(call.Args[0]):
		return "an event that comes after a time"
	case strings.HasPrefix(f.Sel.Name, "Set") && strings.HasSuffix(f.Sel.Name, "Deadline") && len(call.Args) == 1:
		if at, ok := call.Args[0].(*ast.CallExpr); ok && readsClock(at) && !isTime(at.Fun, "Now") && !isLimit(at) {
			return "a deadline that is no safety net"
		}
	case slices.Contains([]string{"Run", "Output", "CombinedOutput"}, f.Sel.Name) && c.isSleep(f.X), f.Sel.Name == "Wait" && !c.kills && c.isSleep(f.X):
		return "a process that sleeps"
	}
	return ""
}

// waitOfSelect returns which wait a select is, "" if it is none: of its cases one is a
// clock, and no other is an event that may come, or all that may come fail the test.
func (c *clocks) waitOfSelect(s *ast.SelectStmt) string {
	clock, events, failures, late := false, 0, 0, false
	for _, clause := range s.Body.List {
		clause := clause.(*ast.CommClause)
		receive := received(clause.Comm)
		switch {
		case clause.Comm == nil: // default
		case receive != nil && c.isClock(receive.X):
			clock, late = true, late || fails(clause.Body)
		case receive != nil && (isDone(receive.X) || c.isNever(receive.X)):
		case receive == nil && c.isNever(clause.Comm.(*ast.SendStmt).Chan):
		default:
			events++
			if fails(clause.Body) {
				failures++
			}
		}
	}
	switch {
	case clock && events == 0:
		return "a select of nothing but a timer and what never comes"
	case clock && events == failures && !late:
		return "a select that watches for a time that nothing comes"
	}
	return ""
}

// fails reports whether a statement of a list fails the test.
func fails(list []ast.Stmt) bool {
	return slices.ContainsFunc(list, func(s ast.Stmt) bool {
		x, ok := s.(*ast.ExprStmt)
		if !ok {
			return false
		}
		call, ok := x.X.(*ast.CallExpr)
		if !ok {
			return false
		}
		f, ok := call.Fun.(*ast.SelectorExpr)
		return ok && slices.Contains([]string{"Error", "Errorf", "Fatal", "Fatalf", "Fail", "FailNow"}, f.Sel.Name)
	})
}

// received returns the receive of a select's case, nil if it is none.
func received(s ast.Stmt) *ast.UnaryExpr {
	var x ast.Expr
	switch s := s.(type) {
	case *ast.ExprStmt:
		x = s.X
	case *ast.AssignStmt:
		x = s.Rhs[0]
	}
	u, _ := x.(*ast.UnaryExpr)
	return u
}

func is(x ast.Expr, name string) bool {
	id, ok := x.(*ast.Ident)
	return ok && id.Name == name
}

func isTime(n ast.Node, names ...string) bool {
	s, ok := n.(*ast.SelectorExpr)
	return ok && is(s.X, "time") && slices.Contains(names, s.Sel.Name)
}

// isLimit reports whether a time mentions wait.Limit, or Limit in the package itself.
func isLimit(x ast.Expr) bool { return mentions(x, "Limit") }

// readsClock reports whether a value depends on the time of day.
func readsClock(x ast.Expr) (reads bool) {
	ast.Inspect(x, func(n ast.Node) bool {
		reads = reads || isTime(n, "Now", "Since", "Until")
		return true
	})
	return reads
}

func isDone(x ast.Expr) bool {
	call, ok := x.(*ast.CallExpr)
	if !ok {
		return false
	}
	s, ok := call.Fun.(*ast.SelectorExpr)
	return ok && s.Sel.Name == "Done"
}

// clocks are the variables of a declaration that have to do with time.
type clocks struct {
	timers   map[string]bool // channels of timers
	contexts map[string]bool // contexts that end after a time
	sleeps   map[string]bool // commands that sleep
	kills    bool            // it ends processes itself
	never    map[string]bool // channels that nothing sends to and nothing receives from
}

// isClock reports whether x is a channel that is ready after a time: time.After(…), a
// field C, a context with a timeout, or one of the variables that hold one.
func (c *clocks) isClock(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.CallExpr:
		if isDone(x) {
			return c.isTimeout(x.Fun.(*ast.SelectorExpr).X)
		}
		return isTime(x.Fun, "After", "Tick")
	case *ast.SelectorExpr:
		return x.Sel.Name == "C"
	case *ast.Ident:
		return c.timers[x.Name]
	}
	return false
}

// isTimeout reports whether x is a context with a timeout.
func (c *clocks) isTimeout(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return c.contexts[x.Name]
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		return ok && is(f.X, "context") && (strings.HasPrefix(f.Sel.Name, "WithTimeout") || strings.HasPrefix(f.Sel.Name, "WithDeadline")) &&
			!slices.ContainsFunc(x.Args, isLimit)
	}
	return false
}

// isNever reports whether x is a channel that is never ready.
func (c *clocks) isNever(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return x.Name == "nil" || c.never[x.Name]
	case *ast.ParenExpr:
		return c.isNever(x.X)
	case *ast.CallExpr: // make(chan T), or nil converted
		return is(x.Fun, "make") || len(x.Args) == 1 && is(x.Args[0], "nil")
	}
	return false
}

// sleepy matches the commands of a shell that sleep.
var sleepy = regexp.MustCompile(`(^|[;&|({]|\b(?:do|then|else|exec)\b)\s*sleep(\s|$)`)

// isSleep reports whether x is a command that sleeps.
func (c *clocks) isSleep(x ast.Expr) bool {
	switch x := x.(type) {
	case *ast.Ident:
		return c.sleeps[x.Name]
	case *ast.CallExpr:
		f, ok := x.Fun.(*ast.SelectorExpr)
		if !ok || !is(f.X, "exec") {
			return false
		}
		var words []string // without the context, and without arguments that are not literals
		for _, arg := range x.Args {
			if text, ok := arg.(*ast.BasicLit); ok && text.Kind == token.STRING {
				word, _ := strconv.Unquote(text.Value)
				words = append(words, word)
			}
		}
		return len(words) > 0 && (filepath.Base(words[0]) == "sleep" || len(words) > 1 && strings.HasSuffix(words[0], "sh") && slices.ContainsFunc(words[1:], sleepy.MatchString))
	}
	return false
}

func clocksOf(n ast.Node) *clocks {
	c := &clocks{timers: make(map[string]bool), contexts: make(map[string]bool), sleeps: make(map[string]bool), never: make(map[string]bool)}
	mentioned, channels := make(map[string]int), make(map[string]bool)
	define := func(x ast.Expr, value ast.Expr) {
		id, ok := x.(*ast.Ident)
		if !ok {
			return
		}
		call, isCall := value.(*ast.CallExpr)
		switch {
		case value == nil, isCall && is(call.Fun, "make"):
			channels[id.Name] = true
		case c.isClock(value):
			c.timers[id.Name] = true
		case c.isTimeout(value):
			c.contexts[id.Name] = true
		case c.isSleep(value):
			c.sleeps[id.Name] = true
		}
	}
	ast.Inspect(n, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			for i, x := range n.Rhs {
				define(n.Lhs[i], x)
			}
		case *ast.ValueSpec:
			for i, x := range n.Values {
				define(n.Names[i], x)
			}
			if _, ok := n.Type.(*ast.ChanType); ok && len(n.Values) == 0 {
				for _, name := range n.Names {
					define(name, nil)
				}
			}
		case *ast.Field:
			if c2, ok := n.Type.(*ast.ChanType); ok && isTime(c2.Value, "Time") {
				for _, name := range n.Names {
					c.timers[name.Name] = true
				}
			}
		case *ast.Ident:
			mentioned[n.Name]++
		}
		return true
	})
	c.kills = mentioned["Kill"] > 0
	for name := range channels {
		if mentioned[name] == 2 { // where it is defined, and in one select
			c.never[name] = true
		}
	}
	return c
}

// scriptWaits returns the lines of scripts that run sleep, or poll without a pause. The files of a
// txtar archive are input: a container may run sleep.
func scriptWaits(t *testing.T) (waits []wait) {
	spins := regexp.MustCompile(`\bdo\s+(:|true)\s*;?\s*done\b`)
	for _, dir := range scripts {
		err := filepath.WalkDir(filepath.Join(root, dir), func(path string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, err := filepath.Rel(root, path)
			if err != nil || d.IsDir() {
				if exempt[name] {
					return fs.SkipDir
				}
				return err
			}
			if !d.Type().IsRegular() || filepath.Ext(path) == ".go" {
				return nil
			}
			text, err := os.ReadFile(path)
			first, _, _ := strings.Cut(string(text), "\n")
			shell := strings.HasPrefix(first, "#!") && strings.HasSuffix(strings.Fields(first)[len(strings.Fields(first))-1], "sh")
			if archive := filepath.Ext(path) == ".txtar"; err != nil || !archive && !shell && filepath.Ext(path) != ".sh" {
				return err
			}
			n := 0
			for line := range strings.Lines(string(text)) {
				n++
				switch {
				case filepath.Ext(path) == ".txtar" && strings.HasPrefix(line, "-- "):
					return nil
				case strings.HasPrefix(strings.TrimSpace(line), "#"):
				case sleepy.MatchString(line):
					waits = append(waits, wait{file: name, line: n, kind: "sleep in a script"})
				case spins.MatchString(line):
					waits = append(waits, wait{file: name, line: n, kind: "a loop without a pause in a script"})
				}
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return waits
}
