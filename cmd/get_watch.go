package cmd

import (
	"context"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

// followFlags are the flags of get that follow changes.
type followFlags struct {
	watch      bool
	watchOnly  bool
	watchTypes bool
}

func (f *followFlags) add(cmd *cobra.Command) {
	fl := cmd.Flags()
	fl.BoolVarP(&f.watch, "watch", "w", false, "then follow changes")
	fl.BoolVar(&f.watchOnly, "watch-only", false, "only follow changes")
	fl.BoolVar(&f.watchTypes, "output-watch-events", false, "with -w, print the type of each change: ADDED, MODIFIED, DELETED")
}

// follows reports whether get follows changes.
func (f *followFlags) follows() bool { return f.watch || f.watchOnly }

// watchInterval is the time between two lists of objects that the agent does not stream.
const watchInterval = 500 * time.Millisecond

// objectWatch follows a list of objects.
type objectWatch[T any] struct {
	*listing
	followFlags
	// list returns the selected objects, and an error for each name without an object.
	list func(context.Context) (items []T, missing []error, err error)
	// object returns the object of an item, with its kind.
	object func(T) metav1.Object
	grid   func([]T) ui.Grid
	names  func([]T) string
}

// lastState is the state of an object in the last list.
type lastState[T any] struct {
	item T
	text string // of the object as JSON
}

// follow prints the current objects, then each change, until ctx ends or the agent stops.
func (w objectWatch[T]) follow(ctx context.Context, p *program) error {
	ctx, stop := untilClosed(ctx, p.out.file)
	defer stop()
	tick := time.NewTicker(watchInterval)
	defer tick.Stop()
	flow, known := p.out.Flow(w.columns), map[pod.Key]lastState[T]{}
	for first := true; ; first = false {
		items, missing, err := w.list(ctx)
		switch {
		case ctx.Err() != nil:
			return nil
		case !first && (client.IsAbsent(err) || client.IsRefused(err, http.StatusServiceUnavailable)):
			p.say(p.err.Notice("the agent has stopped; its pods keep running"))
			return nil
		case err != nil:
			return clientError(err)
		case first && len(missing) > 0:
			return missing[0]
		}
		if err := w.show(p, flow, known, items, first && w.watchOnly); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

// show prints the differences between known and items, unless quiet, and updates known.
func (w objectWatch[T]) show(p *program, flow *ui.Flow, known map[pod.Key]lastState[T], items []T, quiet bool) error {
	printed := func(item T, kind string) error {
		if quiet {
			return nil
		}
		return w.print(p, flow, item, kind)
	}
	here := make(map[pod.Key]bool, len(items))
	for _, item := range items {
		o := w.object(item)
		key := pod.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
		text, err := ui.JSONLine(o)
		if err != nil {
			return failed(exitFailure, err)
		}
		before, was := known[key]
		here[key], known[key] = true, lastState[T]{item, text}
		switch {
		case !was:
			err = printed(item, "ADDED")
		case before.text != text:
			err = printed(item, "MODIFIED")
		}
		if err != nil {
			return err
		}
	}
	for key, before := range known {
		if here[key] {
			continue
		}
		delete(known, key)
		if err := printed(before.item, "DELETED"); err != nil {
			return err
		}
	}
	return nil
}

// print prints one change: a row of a table, or a document.
func (w objectWatch[T]) print(p *program, flow *ui.Flow, item T, kind string) error {
	if w.format.Table() {
		g := w.grid([]T{item})
		if w.watchTypes {
			g.Lead("EVENT", kind)
		}
		return p.out.print(flow.Rows(g))
	}
	var d any = w.object(item)
	if w.watchTypes {
		d = map[string]any{"type": kind, "object": d}
	}
	text, err := streamed(w.format, d, w.names([]T{item}))
	if err != nil {
		return failed(exitFailure, err)
	}
	return p.out.print(text)
}
