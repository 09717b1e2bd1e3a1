package cmd

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/ui"
)

type watchFlags struct {
	mode      *choice
	output    *choice
	attach    bool
	tui       bool
	full      bool
	diff      bool
	max       int
	timeout   time.Duration
	kinds     []string
	namespace string
	selector  string
}

func (p *program) watchCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "watch",
		Short: "Print PodUpdates as they happen",
		Long: `Follow every source and print PodUpdates as they happen, one line per pod: time,
operation, source, pod, manifest. With -o json one line is one PodUpdate. watch
also prints problems of sources and manifests. An ADD without pods means that a
source has answered and is empty. Ctrl-C ends watch with exit code 0.

With --attach, follow the agent that serves --root-dir instead of reading
sources: first its current pods, then changes, until the agent stops.`,
		Args: noArgs,
		Example: `  nodectl watch -f manifests/ --show-diff
  nodectl watch -f manifests/ -o json --max-events 1
  nodectl watch -f manifests/ --mode snapshot -l app=web
  nodectl watch --attach --source http`,
	}
	var f watchFlags
	p.addSources(cmd)
	p.addClusterSources(cmd)
	f.mode = addChoice(cmd, "mode", "", "content of updates: incremental, snapshot, snapshot-and-updates", "incremental", "snapshot", "snapshot-and-updates")
	f.output = addOutput(cmd, "text", "json")
	cmd.Flags().BoolVar(&f.attach, "attach", false, "follow the running agent of --root-dir instead of reading sources")
	cmd.Flags().BoolVar(&f.tui, "tui", false, "show pods, sources and the latest updates on a screen")
	cmd.Flags().BoolVar(&f.full, "full", false, "with -o json, add each pod's object")
	cmd.Flags().BoolVar(&f.diff, "show-diff", false, "print differences field by field")
	cmd.Flags().IntVar(&f.max, "max-events", 0, "end after this many updates")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end after this time")
	cmd.Flags().StringSliceVar(&f.kinds, "source", nil, "only these kinds of source, such as file,http")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, such as app=web")
	for _, w := range [][2]string{{"mode", "MODE"}, {"source", "KINDS"}, {"namespace", "NAME"}, {"selector", "LABELS"}} {
		word(cmd.Flags(), w[0], w[1])
	}
	complete(cmd, "source", ui.SourceKinds()...)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.watch(cmd, f) }
	return cmd
}

// watch prints updates until --max-events, --timeout or a signal, until the reader of its output
// is gone, or until no source can change.
func (p *program) watch(cmd *cobra.Command, f watchFlags) error {
	s, err := f.selection()
	if err != nil {
		return usage(cmd, err)
	}
	if f.timeout < 0 {
		return usage(cmd, errors.New("--timeout: must not be negative"))
	}
	ctx, stop := untilClosed(cmd.Context(), p.out.file)
	defer stop()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	if f.tui {
		return p.watchScreen(ctx, cmd, f, s)
	}
	updates, err := p.updates(ctx, cmd, f, s)
	if err != nil {
		return err
	}
	printed := 0
	for d, err := range updates {
		if err == nil {
			err = p.printUpdate(d, f)
		}
		if err != nil {
			return err
		}
		if feed.IsPods(podconfig.Op(d.Op)) {
			printed++
		}
	}
	if f.attach && ctx.Err() == nil && (s.Max == 0 || printed < s.Max) {
		p.say(p.err.Notice("the agent has stopped; its pods keep running"))
	}
	return nil
}

// updates returns the updates of the agent (--attach), or those of the sources.
func (p *program) updates(ctx context.Context, cmd *cobra.Command, f watchFlags, s ui.Selection) (iter.Seq2[ui.PodUpdate, error], error) {
	if f.attach {
		for _, name := range slices.Concat(sourceSettings(), clusterSettings()) {
			if flag := cmd.Flags().Lookup(name); flag != nil && flag.Changed {
				return nil, usage(cmd, errors.New("--attach and --"+name+" exclude each other: the agent reads its own sources"))
			}
		}
		return p.followed(ctx, s), nil
	}
	updates, err := p.readOnly(slog.LevelWarn).Updates(ctx, s.Mode)
	if err != nil {
		return nil, err
	}
	return func(yield func(ui.PodUpdate, error) bool) {
		for d := range s.Documents(updates) {
			if !yield(d, nil) {
				return
			}
		}
	}, nil
}

// printUpdate prints one update: a line of JSON, or a line of text for each pod.
func (p *program) printUpdate(d ui.PodUpdate, f watchFlags) error {
	if podconfig.Op(d.Op) == feed.NOTICE {
		p.say(p.err.Notice(d.Problem.Error()))
		return nil
	}
	if f.output.value == "text" {
		return p.out.print(p.out.Update(d, f.diff))
	}
	line, err := ui.JSONLine(d)
	if err != nil {
		return err
	}
	return p.out.print(line)
}

// selection returns the selection of the flags.
func (f watchFlags) selection() (ui.Selection, error) {
	mode, err := podconfig.ParseMode(f.mode.value)
	if err != nil {
		return ui.Selection{}, err
	}
	s := ui.Selection{
		Mode: mode, Full: f.full && f.output.value == "json", Notices: true,
		Kinds: f.kinds, Namespace: f.namespace, Labels: f.selector, Max: f.max,
	}
	return s, s.Check()
}
