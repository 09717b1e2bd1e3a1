package cmd

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestGeneratedFilesAreCurrent compares completions/ and man/ with the commands:
// after a change of a command, run "nodectl gen .".
func TestGeneratedFilesAreCurrent(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProgram(os.Stdin, os.Stdout, os.Stderr, func(string) string { return "" })
	root := p.root()
	if err := generate(root, dir); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"completions", "man"} {
		want, have := readDir(t, filepath.Join(dir, sub)), readDir(t, filepath.Join("..", sub))
		if len(want) == 0 {
			t.Errorf("nothing is generated for %s/", sub)
		}
		for _, name := range slices.Sorted(maps.Keys(want)) {
			if have[name] != want[name] {
				t.Errorf("%s/%s differs from the commands: run 'go run . gen .'", sub, name)
			}
			delete(have, name)
		}
		for name := range have {
			t.Errorf("%s/%s is not generated from any command", sub, name)
		}
	}
}

func readDir(t *testing.T, dir string) map[string]string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		files[e.Name()] = string(data)
	}
	return files
}

// TestHelpFitsATerminal: no line of any command's help is wider than 80 cells.
func TestHelpFitsATerminal(t *testing.T) {
	t.Parallel()
	var look func(c *cobra.Command)
	look = func(c *cobra.Command) {
		for line := range strings.Lines(helpText(c)) {
			if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > helpWidth {
				t.Errorf("%s --help has a line of %d cells: %s", c.CommandPath(), n, line)
			}
		}
		for _, sub := range c.Commands() {
			look(sub)
		}
	}
	look(newProgram(os.Stdin, os.Stdout, os.Stderr, func(string) string { return "" }).root())
}
