package cmd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
)

// genCommand is hidden: it writes the files under completions/ and man/ that
// packages install. They are committed, and a test compares them with the commands.
func (p *program) genCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "gen DIR",
		Short:  "Write completions/ and man/ into a directory",
		Hidden: true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usage(cmd, errors.New("gen takes one directory"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return generate(cmd.Root(), args[0]) },
	}
}

// generate writes every generated file below dir.
func generate(root *cobra.Command, dir string) error {
	for _, sub := range []string{"completions", "man"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	names := map[string]string{"bash": "nodectl.bash", "zsh": "_nodectl", "fish": "nodectl.fish", "powershell": "nodectl.ps1"}
	for _, shell := range shells() {
		var b bytes.Buffer
		if err := completionScript(root, shell, &b); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "completions", names[shell]), b.Bytes(), 0o644); err != nil {
			return err
		}
	}
	// A fixed date: the pages change when the commands do, not every month.
	date := time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC)
	root.DisableAutoGenTag = true
	return doc.GenManTree(root, &doc.GenManHeader{Title: "NODECTL", Section: "1", Date: &date, Source: "nodectl", Manual: "nodectl"}, filepath.Join(dir, "man"))
}
