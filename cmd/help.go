package cmd

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// helpWidth is the width of help texts: that of a terminal of 80x24.
const helpWidth = 80

// helpText returns a command's help: description, usage, examples, subcommands and
// flags.
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
		if cmd.HasAvailableSubCommands() && !strings.Contains(cmd.Use, " ") {
			line = cmd.CommandPath() + " COMMAND [flags]"
		}
		b.WriteString("Usage: " + line + "\n")
	} else {
		b.WriteString("Usage: " + cmd.Use + "   ('nodectl COMMAND --help' shows more)\n")
	}
	if cmd.Example != "" {
		b.WriteString("\nExamples:\n" + cmd.Example + "\n")
	}
	if cmd.HasAvailableSubCommands() {
		b.WriteString("\n" + commandHelp(cmd))
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

// The root's help lists the commands of each of these groups on one line, without a description:
// users know them from kubectl, or rarely need them.
const (
	likeKubectl = "kubectl's"
	other       = "Other"
)

// commandHelp lists the subcommands of a command: one per line, or the names of a whole group.
func commandHelp(cmd *cobra.Command) string {
	var b strings.Builder
	groups := map[string][]string{}
	for _, c := range cmd.Commands() {
		switch {
		case !c.IsAvailableCommand():
		case c.GroupID != "":
			groups[c.GroupID] = append(groups[c.GroupID], c.Name())
		default:
			fmt.Fprintf(&b, "  %-11s  %s\n", c.Name(), c.Short)
		}
	}
	for _, g := range cmd.Groups() {
		for i, line := range wrap(strings.Join(groups[g.ID], " "), helpWidth-len(likeKubectl)-6) {
			title := g.Title + ":"
			if i > 0 {
				title = ""
			}
			fmt.Fprintf(&b, "  %-*s  %s\n", len(likeKubectl)+1, title, line)
		}
	}
	return b.String()
}

// group is a group of a command's flags.
type group struct {
	title string
	flags *pflag.FlagSet
}

// groups splits the flags of a command into groups. The command's own flags come first.
func groups(flags *pflag.FlagSet) []group {
	tcp := tcpSettings()
	if flags.Lookup("port") == nil { // port-forward has an address too, and no server
		tcp = nil
	}
	parts := []struct {
		title string
		names []string
		more  func(name string) bool // reports other flags of the group
	}{
		{title: "Flags"}, // the first one gets all other flags
		{title: "Sources", names: []string{"filename", "recursive", "kubeconfig", "etcd-endpoints", "etcd-prefix", "validate", "file-check-frequency"}},
		{title: "This node", names: nodeSettings()},
		{title: "In a cluster", names: clusterNodeSettings()},
		{title: "Server on TCP", names: tcp},
		{title: "As a kubelet", names: kubeletSettings()},
		{title: "How URLs are read", more: func(n string) bool { return strings.HasPrefix(n, "manifest-url-") || n == "http-check-frequency" }},
		{title: "How etcd is read", more: func(n string) bool { return strings.HasPrefix(n, "etcd-") }},
		{title: "Another node", names: endpointFlags()},
	}
	flags.VisitAll(func(f *pflag.Flag) {
		for _, part := range parts {
			if slices.Contains(part.names, f.Name) {
				return
			}
		}
		at := 0
		for i, part := range parts {
			if part.more != nil && part.more(f.Name) {
				at = i
			}
		}
		parts[at].names = append(parts[at].names, f.Name)
	})
	var all []group
	for _, part := range parts {
		set := pflag.NewFlagSet(part.title, pflag.ContinueOnError)
		set.SortFlags = false
		for _, name := range part.names {
			if f := flags.Lookup(name); f != nil { // runonce has no etcd
				set.AddFlag(f)
			}
		}
		all = append(all, group{part.title, set})
	}
	return all
}

// wordOf is the key of a flag's annotation that holds the placeholder of its value.
const wordOf = "nodectl/word"

// word sets the placeholder of a flag's value in help, such as DIR in --root-dir DIR.
func word(flags *pflag.FlagSet, flag, name string) {
	f := flags.Lookup(flag)
	if f.Annotations == nil {
		f.Annotations = map[string][]string{}
	}
	f.Annotations[wordOf] = []string{name}
}

// flagWidth is the maximum width of a flag whose description begins on the same line.
const flagWidth = 36

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
		if len(text) <= flagWidth {
			width = max(width, len(text))
		}
	})
	var b strings.Builder
	for i := range left {
		if len(left[i]) > width { // the description starts on the next line
			b.WriteString(left[i] + "\n")
			left[i] = ""
		}
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
	value := f.DefValue
	if list, ok := strings.CutPrefix(value, "["); ok {
		value = strings.ReplaceAll(strings.TrimSuffix(list, "]"), ",", ", ")
	}
	return " (default " + value + ")"
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
