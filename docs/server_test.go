package docs_test

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// TestServerPageHasEveryRoute holds server.md to the classes that pkg/server's own test holds the
// registry to: every request stands there, with the access that it needs, and no other one does.
//
// Shows: D1
func TestServerPageHasEveryRoute(t *testing.T) {
	code, err := os.ReadFile("../pkg/server/registry_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, table, found := strings.Cut(string(code), "\nvar classes = map[string]string{")
	table, _, ended := strings.Cut(table, "\n}\n")
	if !found || !ended {
		t.Fatal("registry_test.go has no classes")
	}
	want := make(map[string]string)
	for _, m := range regexp.MustCompile(`"((?:GET|POST|PUT|PATCH|DELETE) [^"]+)": "([^"]+)"`).FindAllStringSubmatch(table, -1) {
		want[m[1]] = m[2]
	}
	if len(want) < 40 {
		t.Fatalf("registry_test.go has %d classes: they were not read", len(want))
	}
	page, err := os.ReadFile("server.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile("(?m)^\\| `([A-Z]+ /[^`]*)` \\| ([^|]*) \\| [^|]* \\| ?([^|]*)\\|$").FindAllStringSubmatch(string(page), -1) {
		is := strings.NewReplacer(":", "", ",", "").Replace(m[2])
		switch class, known := want[m[1]]; {
		case !known:
			t.Errorf("server.md has %s, which is no route, or has it twice", m[1])
		case class != is:
			t.Errorf("server.md says of %s %q, it is %q", m[1], is, class)
		case (strings.HasPrefix(class, "create ") || strings.HasPrefix(class, "update ") || strings.HasPrefix(m[1], "POST ")) != (strings.TrimSpace(m[3]) == "yes"):
			t.Errorf("server.md says of %s otherwise whether it is written down", m[1])
		}
		delete(want, m[1])
	}
	for name := range want {
		t.Errorf("server.md lacks %s", name)
	}
}
