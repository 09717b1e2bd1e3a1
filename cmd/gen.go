package cmd

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"
	"github.com/spf13/pflag"
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
	escapeFlags(root)
	return doc.GenManTree(root, &doc.GenManHeader{Title: "NODECTL", Section: "1", Date: &date, Source: "nodectl", Manual: "nodectl"}, filepath.Join(dir, "man"))
}

// escapeFlags escapes the angle brackets in the descriptions and defaults of all flags. The generator
// of man pages reads both as Markdown: it drops <100Mi as an HTML tag.
func escapeFlags(c *cobra.Command) {
	seen := map[*pflag.Flag]bool{} // commands share flags
	var escape func(c *cobra.Command)
	escape = func(c *cobra.Command) {
		for _, set := range []*pflag.FlagSet{c.Flags(), c.PersistentFlags()} {
			set.VisitAll(func(f *pflag.Flag) {
				if !seen[f] {
					seen[f] = true
					f.Usage, f.DefValue = strings.ReplaceAll(f.Usage, "<", `\<`), strings.ReplaceAll(f.DefValue, "<", `\<`)
				}
			})
		}
		for _, sub := range c.Commands() {
			escape(sub)
		}
	}
	escape(c)
}
