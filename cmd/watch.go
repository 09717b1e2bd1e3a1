package cmd

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/ui"
)

// watchFlags are watch's own.
type watchFlags struct {
	mode      *choice
	output    *choice
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
		Long: `Follow every source and print PodUpdates as they happen, one line a pod: time,
operation, source, pod, place. With -o json one line is one PodUpdate. What is
wrong with a source or a manifest is a line of the same stream. An ADD without
pods says that a source was heard and is empty. Ctrl-C ends it with exit 0.`,
		Args: noArgs,
		Example: `  nodectl watch -f manifests/ --show-diff
  nodectl watch -f manifests/ -o json --max-events 1
  nodectl watch -f manifests/ --mode snapshot -l app=web`,
	}
	var f watchFlags
	p.addSources(cmd)
	f.mode = addChoice(cmd, "mode", "", "how much updates tell: incremental, snapshot, snapshot-and-updates", "incremental", "snapshot", "snapshot-and-updates")
	f.output = addOutput(cmd, "text", "json")
	cmd.Flags().BoolVar(&f.full, "full", false, "with -o json, add each pod's object")
	cmd.Flags().BoolVar(&f.diff, "show-diff", false, "print what differs, field by field")
	cmd.Flags().IntVar(&f.max, "max-events", 0, "end after so many updates")
	cmd.Flags().DurationVar(&f.timeout, "timeout", 0, "end after this long")
	cmd.Flags().StringSliceVar(&f.kinds, "source", nil, "only these kinds of source, as file,http")
	cmd.Flags().StringVarP(&f.namespace, "namespace", "n", "", "only pods of this namespace")
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only pods with these labels, as app=web")
	for _, w := range [][2]string{{"mode", "MODE"}, {"source", "KINDS"}, {"namespace", "NAME"}, {"selector", "LABELS"}} {
		word(cmd.Flags(), w[0], w[1])
	}
	complete(cmd, "source", "file", "http", "stdin")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.watch(cmd, f) }
	return cmd
}

// watch prints updates until there are enough, the time is up, a signal comes,
// nobody reads, or no source can change any more.
func (p *program) watch(cmd *cobra.Command, f watchFlags) error {
	keep, err := f.filter(cmd)
	if err != nil {
		return err
	}
	mode, err := podconfig.ParseMode(f.mode.value)
	if err != nil {
		return usage(cmd, err)
	}
	sources, err := p.podConfig(mode, nil, p.logger(slog.LevelWarn))
	if err != nil {
		return err
	}
	ctx, stop := untilClosed(cmd.Context(), p.out.file)
	defer stop()
	if f.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, f.timeout)
		defer cancel()
	}
	s := stream{program: p, flags: f}
	for u := range engine.Watch(ctx, engine.Look{Config: sources}) {
		shown, ok := keep(u)
		switch {
		case u.Op == engine.NOTICE:
			p.say(p.err.Notice(u.Problem.Error()))
		case !ok, s.full() && u.IsPods(): // once there are enough updates, only their problems follow
		default:
			if err := s.print(shown); err != nil {
				return err
			}
		}
		if s.full() && u.Last {
			break
		}
	}
	return nil
}

// stream writes updates and counts them.
type stream struct {
	*program
	flags   watchFlags
	seq     int // lines written
	updates int // PodUpdates among them
}

// full reports whether there have been enough updates.
func (s *stream) full() bool { return s.flags.max > 0 && s.updates >= s.flags.max }

func (s *stream) print(u engine.Update) error {
	s.seq++
	if u.IsPods() {
		s.updates++
	}
	doc := ui.NewPodUpdate(u, s.seq, s.flags.full)
	if s.flags.output.value == "text" {
		return s.out.print(s.out.Update(doc, s.flags.diff))
	}
	line, err := ui.JSONLine(doc)
	if err != nil {
		return err
	}
	return s.out.print(line)
}

// filter returns what --source, -n and -l leave of an update, and whether that
// is worth a line. The first update of a source always is: it says that the
// source was heard.
func (f watchFlags) filter(cmd *cobra.Command) (func(engine.Update) (engine.Update, bool), error) {
	if f.max < 0 {
		return nil, usage(cmd, errors.New("--max-events: a number below 0 has no meaning"))
	}
	if f.timeout < 0 {
		return nil, usage(cmd, errors.New("--timeout: a time below 0 has no meaning"))
	}
	for _, kind := range f.kinds {
		if !slices.Contains(sourceKinds(), kind) {
			return nil, usage(cmd, errors.New(`--source: "`+kind+`" is not one of `+strings.Join(sourceKinds(), ", ")))
		}
	}
	selector, err := labels.Parse(f.selector)
	if err != nil {
		return nil, usage(cmd, errors.New("--selector: "+err.Error()))
	}
	wanted := func(s *pod.Spec) bool {
		return (f.namespace == "" || s.Namespace == f.namespace) && selector.Matches(labels.Set(s.Pod.Labels))
	}
	return func(u engine.Update) (engine.Update, bool) {
		switch {
		case u.Op == engine.DROPPED:
			return u, true
		case len(f.kinds) > 0 && !slices.Contains(f.kinds, u.Source):
			return u, false
		case u.Op == engine.CONFLICT:
			return u, f.namespace == "" || u.Key.Namespace == f.namespace
		case !u.IsPods() || f.namespace == "" && selector.Empty():
			return u, true
		}
		all, before := u.Pods, u.Old
		u.Pods, u.Old = nil, nil
		for i, s := range all {
			var old *pod.Spec
			if i < len(before) {
				old = before[i]
			}
			// A pod whose labels stop matching is still news to whoever asked for them.
			if !wanted(s) && (old == nil || !wanted(old)) {
				continue
			}
			u.Pods, u.Old = append(u.Pods, s), append(u.Old, old)
		}
		return u, len(u.Pods) > 0 || u.First || u.Op == podconfig.SET
	}, nil
}

// sourceKinds are the kinds of source there are.
func sourceKinds() []string { return []string{"file", "http", "stdin"} }
