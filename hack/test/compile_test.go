package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestTests_ChooseByTier(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a_test.go":      "package a\n\nfunc TestA(t *testing.T) {}\n",
		"helper_test.go": "package a\n\nfunc help() {}\n",
		"main_test.go":   "package a\n\nfunc TestMain(m *testing.M) {}\n",
		"a_full_test.go": "//go:build full\n\npackage a\n\nfunc TestB(t *testing.T) {}\nfunc FuzzC(f *testing.F) {}\nfunc ExampleD() {}\n",
		"linux_test.go":  "//go:build linux && full\n\npackage a\n\nfunc TestE(t *testing.T) {}\n",
		"slim_test.go":   "//go:build fullness || linux\n\npackage a\n\nfunc TestF(t *testing.T) {}\n",
		"bare_full.go":   "//go:build full\n\npackage a\n\nfunc TestMain(m *testing.M) {}\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		name, tier string
		again      bool
		files      []string
		want       string
	}{
		{"tests", "first", false, []string{"a_test.go"}, "."},
		{"tests of the first tier alone", "full", false, []string{"a_test.go"}, ""},
		{"tests of both tiers", "full", false, []string{"a_test.go", "a_full_test.go"}, "^(TestB|FuzzC|ExampleD)$"},
		{"tests of both tiers, with the race detector", "full", true, []string{"a_test.go", "a_full_test.go"}, "^(TestA)$"},
		{"tests of the full tier alone, with the race detector", "full", true, []string{"a_full_test.go"}, ""},
		{"another constraint with full", "full", false, []string{"linux_test.go"}, "^(TestE)$"},
		{"a constraint without full", "first", false, []string{"slim_test.go"}, "."},
		{"a constraint without full", "full", false, []string{"slim_test.go"}, ""},
		{"no test function", "first", false, []string{"helper_test.go", "main_test.go"}, ""},
		{"TestMain alone", "full", false, []string{"bare_full.go"}, ""},
	} {
		if got, err := (pkg{dir: dir, files: c.files}).tests(c.tier, c.again); err != nil || got != c.want {
			t.Errorf("%s, %s tier: %q, want %q: %v", c.name, c.tier, got, c.want, err)
		}
	}
}

func TestRounds_SameLastElement_NeverMeets(t *testing.T) {
	var all []pkg
	for _, p := range []string{"cmd", "pkg/file", "source/file", "pkg/http", "sink/file"} {
		all = append(all, pkg{path: p})
	}
	var got [][]string
	for _, round := range rounds(all) {
		var paths []string
		for _, p := range round {
			paths = append(paths, p.path)
		}
		got = append(got, paths)
	}
	want := [][]string{{"cmd", "pkg/file", "pkg/http"}, {"source/file"}, {"sink/file"}}
	if len(got) != len(want) {
		t.Fatalf("rounds %v, want %v", got, want)
	}
	for i := range want {
		if !slices.Equal(got[i], want[i]) {
			t.Errorf("round %d is %v, want %v", i, got[i], want[i])
		}
	}
}

func TestStartsGoroutines(t *testing.T) {
	dir := t.TempDir()
	for name, c := range map[string]struct {
		body string
		want bool
	}{
		"statement.go": {"go f()", true},
		"group.go":     {"var wg sync.WaitGroup; wg.Go(f)", true},
		"after.go":     {"time.AfterFunc(0, f)", true},
		"none.go":      {"f() // go f()", false},
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("package a\n\nfunc f() {\n\t"+c.body+"\n}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if got, err := startsGoroutines(dir, []string{name}); err != nil || got != c.want {
			t.Errorf("%s: %t, %v", c.body, got, err)
		}
	}
}
