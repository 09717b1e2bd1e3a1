//go:build linux

package cmd

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestF7_UnitFile checks that the unit file fits the agent.
//
// Shows: F7
func TestF7_UnitFile(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "packaging", "nodectl.service"))
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(text), "\n")
	for line, why := range map[string]string{
		"Type=notify":                "serve reports when it is ready",
		"NotifyAccess=main":          "processes of the bundled runtime cannot report for serve",
		"WatchdogSec=30s":            "F7",
		"KillMode=process":           "F4: pods keep running",
		"Delegate=yes":               "systemd does not manage the cgroups of pods",
		"Restart=always":             "crash-only",
		"StartLimitIntervalSec=0":    "systemd never stops restarting it",
		"OOMScoreAdjust=-999":        "F9",
		"WantedBy=multi-user.target": "it starts at boot",
	} {
		if !slices.Contains(lines, line) {
			t.Errorf("the unit lacks %s: %s", line, why)
		}
	}
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "ExecStart=") })
	if i < 0 {
		t.Fatal("the unit has no ExecStart")
	}
	words := strings.Fields(strings.TrimPrefix(lines[i], "ExecStart="))
	root := newProgram(os.Stdin, os.Stdout, os.Stderr, func(string) string { return "" }).root()
	cmd, rest, err := root.Find(words[1:])
	if err != nil || cmd.Name() != "serve" || cmd.ParseFlags(rest) != nil {
		t.Errorf("the unit starts %q: %v", lines[i], err)
	}
}
