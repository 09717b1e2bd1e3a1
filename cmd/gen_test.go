package cmd

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
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

// TestManPages_AngleBrackets_AreKept: the generator reads descriptions as Markdown, in which
// <100Mi is an HTML tag.
func TestManPages_AngleBrackets_AreKept(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../man/nodectl-serve.1")
	if err != nil {
		t.Fatal(err)
	}
	text, kept := strings.ReplaceAll(string(page), `\-`, "-"), 0
	settingFlags().VisitAll(func(f *pflag.Flag) {
		if strings.Contains(f.Usage, "<") {
			kept++
			if !strings.Contains(text, f.Usage) {
				t.Errorf("nodectl-serve.1 lacks %q", f.Usage)
			}
		}
		if strings.Contains(f.DefValue, "<") && !strings.Contains(text, f.DefValue) {
			t.Errorf("nodectl-serve.1 lacks the default %s", f.DefValue)
		}
	})
	if kept < 4 {
		t.Errorf("%d descriptions have an angle bracket", kept)
	}
}

// TestCommandLinePage_FlagWithADefault_HasTheWordsOfItsHelp: in the tables of docs/cli.md that have
// defaults, the description of a setting begins with the words of its help, without the default.
// Its value has the same name.
func TestCommandLinePage_FlagWithADefault_HasTheWordsOfItsHelp(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../docs/cli.md")
	if err != nil {
		t.Fatal(err)
	}
	row := regexp.MustCompile("^\\| `--([a-z0-9-]+) ?([^`]*)` \\| (.+) \\| (.+) \\|$")
	inHelp := regexp.MustCompile(` \(default[^)]*\)$`)
	settings, rows := settingFlags(), 0
	for line := range strings.Lines(string(page)) {
		m := row.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || settings.Lookup(m[1]) == nil {
			continue
		}
		rows++
		f := settings.Lookup(m[1])
		if help, text := inHelp.ReplaceAllString(f.Usage, ""), strings.ReplaceAll(m[4], "`", ""); !strings.HasPrefix(text, help) {
			t.Errorf("--%s is %q in docs/cli.md, and %q in the help", m[1], text, help)
		}
		if name := valueName(f); m[2] != name {
			t.Errorf("the value of --%s is %q in docs/cli.md, and %q in the help", m[1], m[2], name)
		}
	}
	if rows < 45 {
		t.Errorf("docs/cli.md has %d settings with a default: the tables were not read", rows)
	}
}
