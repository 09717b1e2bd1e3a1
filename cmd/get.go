package cmd

import (
	"errors"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show what is on this node",
		Args:  cobra.ArbitraryArgs,
		Example: `  nodectl get pods
  nodectl get pod/web -o yaml
  nodectl get deployments
  nodectl get events -w`,
	}
	cmd.AddCommand(p.getPodsCommand(), p.getNodesCommand(), p.getSourcesCommand(), p.getEventsCommand(), p.getImagesCommand(), p.getVolumesCommand(), p.getServicesCommand(), p.getDevicesCommand(), p.getAllocationsCommand())
	cmd.AddCommand(p.getWorkloadCommands()...)
	// get itself runs for arguments such as pod/web, so it takes the flags of all subcommands.
	for _, sub := range cmd.Commands() {
		sub.LocalFlags().VisitAll(func(f *pflag.Flag) {
			if cmd.Flags().Lookup(f.Name) == nil {
				passed := *f
				passed.Hidden = true
				passed.Value = &passedFlag{kind: f.Value.Type(), value: f.DefValue}
				cmd.Flags().AddFlag(&passed)
			}
		})
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { return p.getByKind(cmd, args) }
	return cmd
}

// passedFlag is the value of a flag that get passes to a subcommand.
type passedFlag struct{ kind, value string }

func (f *passedFlag) String() string     { return f.value }
func (f *passedFlag) Type() string       { return f.kind }
func (f *passedFlag) Set(s string) error { f.value = s; return nil }

// getByKind runs the subcommand for arguments like pod/web pod/db.
func (p *program) getByKind(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		var first string
		cmd.Flags().Visit(func(f *pflag.Flag) {
			if _, ours := f.Value.(*passedFlag); ours && first == "" {
				first = f.Name
			}
		})
		if first != "" {
			return usage(cmd, errors.New("--"+first+": get needs a kind, such as pods"))
		}
	}
	if len(args) == 0 || !strings.Contains(args[0], "/") {
		return needsSubcommand(cmd, args)
	}
	var sub *cobra.Command
	var names []string
	for _, a := range args {
		kind, name, ok := strings.Cut(a, "/")
		one := subcommand(cmd, kind)
		switch {
		case !ok:
			return usage(cmd, errors.New(a+" has no kind: give every name a kind, such as pod/"+a+", or none"))
		case one == nil:
			return unknownCommand(cmd, kind)
		case sub != nil && sub != one:
			return usage(cmd, errors.New("get takes one kind at a time: "+args[0]+" and "+a+" differ"))
		}
		sub, names = one, append(names, name)
	}
	var wrong error
	cmd.Flags().Visit(func(f *pflag.Flag) {
		there := sub.Flags().Lookup(f.Name)
		_, ours := f.Value.(*passedFlag)
		switch {
		case !ours || wrong != nil:
		case there == nil:
			wrong = usage(sub, errors.New("unknown flag --"+f.Name))
		default:
			if err := sub.Flags().Set(f.Name, f.Value.String()); err != nil {
				wrong = flagError(sub, err)
			}
		}
	})
	if wrong != nil {
		return wrong
	}
	sub.SetContext(cmd.Context())
	if sub.Args != nil {
		if err := sub.Args(sub, names); err != nil {
			return err
		}
	}
	return sub.RunE(sub, names)
}

// subcommand returns the subcommand with this name or alias.
func subcommand(cmd *cobra.Command, name string) *cobra.Command {
	for _, c := range cmd.Commands() {
		if c.Name() == name || slices.Contains(c.Aliases, name) {
			return c
		}
	}
	return nil
}

// listing is the output format of get.
type listing struct {
	format  ui.Format
	columns ui.Columns
	sortBy  string
}

// formatFlag is the flag -o with kubectl's formats.
type formatFlag struct{ to *listing }

func (f *formatFlag) String() string { return f.to.format.Kind }
func (f *formatFlag) Type() string   { return "string" }

// Set implements pflag.Value.
func (f *formatFlag) Set(text string) error {
	format, err := ui.ParseFormat(text)
	if err == nil {
		f.to.format, f.to.columns.Wide = format, format.Kind == "wide"
	}
	return err
}

// addListing adds the flags of a listing to a command.
func addListing(cmd *cobra.Command) *listing {
	l := &listing{format: ui.Format{Kind: "text"}}
	f := cmd.Flags()
	f.VarP(&formatFlag{l}, "output", "o", "text, wide, json, yaml, name, jsonpath=…, custom-columns=…")
	f.BoolVar(&l.columns.NoHeaders, "no-headers", false, "print no column headers")
	f.StringVar(&l.sortBy, "sort-by", "", "sort by this field, such as .metadata.name")
	word(f, "output", "FORMAT")
	word(f, "sort-by", "PATH")
	complete(cmd, "output", "text", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns=")
	return l
}

// addLabels adds the flags for objects that have labels.
func (l *listing) addLabels(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&l.columns.Labels, "show-labels", false, "show a column of labels")
}

// show prints items as the table of grid, as names, or as the document. If the user named one
// object, single is set, and a template gets that object instead of a List.
func show[T any](p *program, l *listing, items []T, single bool, names string, document func([]T) any, grid func([]T) ui.Grid) error {
	switch {
	case l.format.Table():
		return p.out.print(p.out.Grid(grid(items), l.columns))
	case l.format.Kind == "name":
		return p.out.print(names)
	case l.format.Template():
		var d any
		if single && len(items) == 1 {
			d = items[0]
		} else {
			d = document(items)
		}
		text, err := l.format.Render(d)
		if err != nil {
			return failed(exitFailure, err)
		}
		return p.out.print(text)
	}
	return p.document(l.format.Kind, document(items))
}

// addNamespace adds -n. The default is all namespaces: a node has few pods.
func addNamespace(cmd *cobra.Command, usage string) *string {
	namespace := cmd.Flags().StringP("namespace", "n", "", usage)
	word(cmd.Flags(), "namespace", "NAME")
	return namespace
}

// addAll adds -A, which is the default.
func addAll(cmd *cobra.Command) {
	cmd.Flags().BoolP("all-namespaces", "A", false, "every namespace, the default")
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if cmd.Flags().Changed("namespace") && cmd.Flags().Changed("all-namespaces") {
			return usage(cmd, errors.New("-n and -A exclude each other"))
		}
		return nil
	}
}
