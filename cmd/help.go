package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is how wide help is: a terminal of 80x24 shows the root's whole.
const helpWidth = 80

// helpText returns a command's help: what it does, how it is called, examples,
// and its commands and flags.
func helpText(cmd *cobra.Command) string {
	var b strings.Builder
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	b.WriteString(about + "\n")
	if cmd.HasParent() {
		b.WriteString("\n")
		line := cmd.UseLine()
		if cmd.HasAvailableSubCommands() {
			line = cmd.CommandPath() + " COMMAND [flags]"
		}
		b.WriteString("Usage: " + line + "\n")
	} else {
		b.WriteString("Usage: " + cmd.Use + "   ('nodectl COMMAND --help' says more)\n")
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + cmd.Example + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n")
		for _, c := range cmd.Commands() {
			if c.IsAvailableCommand() {
				fmt.Fprintf(&b, "  %-*s  %s\n", cmd.NamePadding(), c.Name(), c.Short)
			}
		}
	}
	if !cmd.HasParent() {
		b.WriteString("\nFlags of every command:\n" + flagHelp(cmd.PersistentFlags()))
		return b.String()
	}
	for _, g := range groups(cmd.LocalFlags()) {
		if flags := flagHelp(g.flags); flags != "" {
			b.WriteString("\n" + g.title + ":\n" + flags)
		}
	}
	b.WriteString("\n'nodectl --help' lists the flags of every command.\n")
	return b.String()
}

// group is a part of a command's flags: those that one thinks of together.
type group struct {
	title string
	flags *pflag.FlagSet
}

// groups parts the flags of a command: its own, then those of its sources and of
// the node, and how sources are met last. Inside a group the order is that of the
// group.
func groups(flags *pflag.FlagSet) []group {
	all := []group{{title: "Flags"}, {title: "Sources"}, {title: "This node"}, {title: "How URLs are read"}, {title: "How etcd is read"}, {title: "Another node"}}
	names := [][]string{nil, {"filename", "recursive", "kubeconfig", "etcd-endpoints", "etcd-prefix", "validate", "file-check-frequency"}, nodeSettings(), nil, nil, nil}
	flags.VisitAll(func(f *pflag.Flag) {
		switch {
		case slices.Contains(names[1], f.Name), slices.Contains(names[2], f.Name):
		case strings.HasPrefix(f.Name, "manifest-url-"), f.Name == "http-check-frequency":
			names[3] = append(names[3], f.Name)
		case strings.HasPrefix(f.Name, "etcd-"):
			names[4] = append(names[4], f.Name)
		case slices.Contains(reachFlags(), f.Name):
			names[5] = append(names[5], f.Name)
		default:
			names[0] = append(names[0], f.Name)
		}
	})
	for i := range all {
		all[i].flags = pflag.NewFlagSet(all[i].title, pflag.ContinueOnError)
		all[i].flags.SortFlags = false
		for _, name := range names[i] {
			if f := flags.Lookup(name); f != nil { // runonce has no etcd
				all[i].flags.AddFlag(f)
			}
		}
	}
	return all
}

// wordOf names what a flag's value is in help; none is no value.
const wordOf = "nodectl/word"

// word sets what a flag's value is called: --root-dir DIR.
func word(flags *pflag.FlagSet, flag, name string) {
	f := flags.Lookup(flag)
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[wordOf] = []string{name}
}

// flagHelp returns the flags of a set in its order, wrapped to helpWidth.
func flagHelp(flags *pflag.FlagSet) string {
	var left, right []string
	width := 0
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		text := "      --" + f.Name
		if f.Shorthand != "" {
			text = "  -" + f.Shorthand + ", --" + f.Name
		}
		if name := valueName(f); name != "" {
			text += " " + name
		}
		left, right = append(left, text), append(right, f.Usage+defaultText(f))
		width = max(width, len(text))
	})
	var b strings.Builder
	for i := range left {
		for j, line := range wrap(right[i], helpWidth-width-3) {
			if j > 0 {
				left[i] = ""
			}
			fmt.Fprintf(&b, "%-*s   %s\n", width, left[i], line)
		}
	}
	return b.String()
}

func valueName(f *pflag.Flag) string {
	if name := f.Annotations[wordOf]; len(name) > 0 {
		return name[0]
	}
	switch f.Value.Type() {
	case "bool":
		return ""
	case "duration":
		return "TIME"
	case "int":
		return "N"
	}
	return strings.ToUpper(f.Value.Type())
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return ""
	}
	return " (default " + f.DefValue + ")"
}

// wrap breaks text into lines of at most width characters, between words.
func wrap(text string, width int) []string {
	var all []string
	line := ""
	for w := range strings.FieldsSeq(text) {
		switch {
		case line == "":
			line = w
		case len(line)+1+len(w) > width:
			all = append(all, line)
			line = w
		default:
			line += " " + w
		}
	}
	return append(all, line)
}
