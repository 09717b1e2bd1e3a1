package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestKept runs the functions of hack/kept with a cache whose path has a space.
func TestKept(t *testing.T) {
	cache := filepath.Join(t.TempDir(), "a cache")
	bash := func(script string, env ...string) (string, error) {
		t.Helper()
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", ". ../kept; "+script)
		cmd.Env = append(append(os.Environ(), "XDG_CACHE_HOME="+cache), env...)
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	must := func(script string) {
		t.Helper()
		if out, err := bash(script); err != nil {
			t.Fatalf("%s: %v\n%s", script, err, out)
		}
	}
	write := func(path, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	from, to := t.TempDir(), t.TempDir()
	write(filepath.Join(from, "bin/tool"), "one")
	write(filepath.Join(to, "bin/tool"), "old")
	must("keep tool 1 '" + from + "' bin/tool && restore tool 1 '" + to + "'")
	if text, err := os.ReadFile(filepath.Join(to, "bin/tool")); err != nil || string(text) != "one" {
		t.Errorf("restored: %q, %v", text, err)
	}
	if info, err := os.Stat(to); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("the target directory has another mode: %v, %v", info.Mode(), err)
	}
	if _, err := bash("restore tool 2 '" + to + "'"); err == nil {
		t.Error("restore succeeds with a stamp of which nothing is kept")
	}
	if _, err := bash("restore tool 1 '"+to+"'", "KEEP=no"); err == nil {
		t.Error("restore succeeds with KEEP=no")
	}

	kept := filepath.Join(cache, "nodectl")
	write(filepath.Join(kept, "tool-1", "bin/tool"), "")
	if out, err := bash("restore tool 1 '" + to + "'"); err == nil || !strings.Contains(out, "bin/tool") {
		t.Errorf("restore of a damaged file: %v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(kept, "tool-1")); !os.IsNotExist(err) {
		t.Errorf("damaged files are still kept: %v", err)
	}

	for _, stamp := range []string{"1", "2", "3"} {
		must("keep tool " + stamp + " '" + from + "' bin/tool; touch -d @" + stamp + " \"$kept/tool-" + stamp + "\"")
	}
	must("keep other 1 '" + from + "' bin/tool")
	left, err := filepath.Glob(filepath.Join(kept, "*-*"))
	for i := range left {
		left[i] = filepath.Base(left[i])
	}
	if got := strings.Join(left, " "); got != "other-1 tool-2 tool-3" {
		t.Errorf("kept: %s, %v", got, err)
	}
	if out, err := bash("keep tool 4 '" + from + "' missing"); err != nil {
		t.Errorf("a failure of keep fails the build: %v\n%s", err, out)
	}
}
