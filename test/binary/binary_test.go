// Package binary checks the program that make has built: its size, and why it is as
// small as it is.
package binary

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/test/node"
)

// maxSlim is the largest bin/nodectl-slim that may be built (docs/decisions/0031).
const maxSlim = 50_000_000

// TestSlim_Size_IsBounded limits the size of downloads and of mapped memory.
func TestSlim_Size_IsBounded(t *testing.T) {
	t.Parallel()
	program, err := node.Slim()
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(program)
	if err != nil {
		t.Fatal(err)
	}
	if info.Size() > maxSlim {
		t.Errorf("%s has %d bytes, more than %d", program, info.Size(), maxSlim)
	}
}

// TestSlim_MethodLookupByName_IsUnreachable: while a function that looks up methods by a
// non-constant name is reachable, the linker keeps every exported method of every type: 20
// MB. The linker marks such functions ReflectMethod. The test detects this by a method that
// is linked only then: reflect.Value's, on the pointer, which no code calls.
func TestSlim_MethodLookupByName_IsUnreachable(t *testing.T) {
	t.Parallel()
	path, err := node.Slim()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The table of functions has their names, also without a symbol table.
	has := func(function string) bool { return bytes.Contains(program, []byte("\x00"+function+"\x00")) }
	if !has("fmt.(*pp).printValue") {
		t.Fatalf("%s does not name its functions as this test expects", path)
	}
	if !has("reflect.(*Value).MethodByName") {
		return
	}
	t.Error("A method lookup by name is reachable:")
	link := exec.CommandContext(t.Context(), "go", "build", "-tags", "grpcnotrace", "-trimpath", "-ldflags", "-s -w -dumpdep",
		"-o", filepath.Join(t.TempDir(), "nodectl"), ".")
	link.Dir, link.Env = node.Repo(), append(os.Environ(), "CGO_ENABLED=0")
	var dump, said bytes.Buffer
	link.Stdout, link.Stderr = &said, &dump
	if err := link.Run(); err != nil {
		t.Fatalf("go build -ldflags=-dumpdep: %v\n%s", err, said.String())
	}
	chain, err := reflectMethod(&dump)
	if err != nil {
		t.Fatal(err)
	}
	if chain == nil {
		t.Fatal("not in this tree: run make slim")
	}
	t.Errorf("%s", strings.Join(chain, "\n\t→ "))
}

const mark = " <ReflectMethod>"

// reflectMethod returns the path to the first function that is marked ReflectMethod, from the
// linker's -dumpdep output: a line "from -> to" for each symbol, when it is first reached.
// nil means that there is no such function.
func reflectMethod(dump io.Reader) ([]string, error) {
	reachedFrom := map[string]string{}
	lines := bufio.NewScanner(dump)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		from, to, ok := strings.Cut(lines.Text(), " -> ")
		if !ok {
			continue
		}
		_, marked := strings.CutSuffix(to, mark)
		from, to = unmarked(from), unmarked(to)
		if _, known := reachedFrom[to]; !known {
			reachedFrom[to] = from
		}
		if !marked {
			continue
		}
		var chain []string
		for symbol := to; symbol != "" && len(chain) < 100; symbol = reachedFrom[symbol] {
			chain = append([]string{symbol}, chain...)
			if symbol == "main.main" {
				break
			}
		}
		return chain, nil
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the linker's dependencies: %w", err)
	}
	return nil, nil
}

func unmarked(symbol string) string {
	return strings.TrimSuffix(strings.TrimSuffix(symbol, mark), " <UsedInIface>")
}

// TestReflectMethod_Chain_StartsAtMain: the failure above names a path to follow.
func TestReflectMethod_Chain_StartsAtMain(t *testing.T) {
	t.Parallel()
	chain, err := reflectMethod(strings.NewReader(`_ -> _rt0_amd64_linux
_rt0_amd64_linux -> main.main
main.main -> cmd.Main
cmd.Main -> type:cmd.T <UsedInIface>
cmd.Main -> fmt.Print
type:cmd.T <UsedInIface> -> cmd.(*T).Call
cmd.(*T).Call -> text/template.(*state).evalField <ReflectMethod>
text/template.(*state).evalField <ReflectMethod> -> reflect.Value.MethodByName
`))
	const want = "main.main cmd.Main type:cmd.T cmd.(*T).Call text/template.(*state).evalField"
	if got := strings.Join(chain, " "); err != nil || got != want {
		t.Errorf("%s (%v), want %s", got, err, want)
	}
	if chain, err := reflectMethod(strings.NewReader("main.main -> fmt.Print\n")); chain != nil || err != nil {
		t.Errorf("%v (%v) of a program without a mark", chain, err)
	}
}
