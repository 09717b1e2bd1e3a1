package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestVerbsPage_Commands_HavePagesAndFlags: every command in the table of verbs.md has a man page,
// and every flag beside it stands there.
func TestVerbsPage_Commands_HavePagesAndFlags(t *testing.T) {
	commands := 0
	flag := regexp.MustCompile("`(--?[a-z0-9-]+)")
	for i, line := range strings.Split(read(t, "verbs.md"), "\n") {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, "| `nodectl ") || len(cells) != 3 {
			continue
		}
		commands++
		names := regexp.MustCompile("`(?:nodectl )?([a-z-]+(?: (?:pods|pod|nodes|node|images|sources|volumes|devices|allocations|events|services|service|deployments|status|history|undo|pause|resume|restart|job)\\b)?)").FindAllStringSubmatch(cells[0], -1)
		for _, name := range names {
			page := strings.NewReplacer(" ", "-", "describe pod", "describe", "describe node", "describe", "describe service", "describe").Replace(name[1])
			if strings.HasPrefix(page, "-") {
				continue
			}
			text, err := os.ReadFile("../man/nodectl-" + page + ".1")
			if err != nil {
				t.Errorf("verbs.md:%d names %s, which has no man page", i+1, name[1])
				continue
			}
			if name[1] == names[0][1] {
				for _, f := range flag.FindAllStringSubmatch(cells[2], -1) {
					if !hasFlag(string(text), f[1]) {
						t.Errorf("verbs.md:%d: %s has no %s", i+1, name[1], f[1])
					}
				}
			}
		}
	}
	if commands < 14 {
		t.Errorf("verbs.md has %d commands: the table was not read", commands)
	}
}

// TestCommandLinePageNamesServesFlags: the flags of the tables of cli.md that are about
// a cluster, TCP and the kubelet's place are serve's.
func TestCommandLinePageNamesServesFlags(t *testing.T) {
	_, part, found := strings.Cut(read(t, "cli.md"), "\n**In a cluster**")
	part, _, ended := strings.Cut(part, "\n## ")
	if !found || !ended {
		t.Fatal("cli.md has no part about clusters")
	}
	page := read(t, "../man/nodectl-serve.1") + read(t, "../man/nodectl.1")
	flags := regexp.MustCompile("`(--[a-z0-9-]+)").FindAllStringSubmatch(part, -1)
	for _, f := range flags {
		if !hasFlag(page, f[1]) {
			t.Errorf("cli.md names %s, which is none of serve's flags", f[1])
		}
	}
	if len(flags) < 25 {
		t.Errorf("cli.md names %d flags there: they were not read", len(flags))
	}
}

// hasFlag reports whether a man page has a flag among its options.
func hasFlag(page, flag string) bool {
	return strings.Contains(page, `\fB`+flag+`\fP`)
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
