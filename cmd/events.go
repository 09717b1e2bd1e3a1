package cmd

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

// eventFlags are the flags of events and of get events.
type eventFlags struct {
	*listing
	endpoint  *endpoint
	namespace *string
	watch     bool
	about     string
	types     []string
}

func (p *program) eventsCommand() *cobra.Command { return p.eventsOf("events", nil) }

func (p *program) getEventsCommand() *cobra.Command {
	return p.eventsOf("events", []string{"event", "ev"})
}

func (p *program) eventsOf(name string, aliases []string) *cobra.Command {
	cmd := &cobra.Command{
		Use:     name,
		Aliases: aliases,
		Short:   "Show events of the node and its pods",
		Long: `Show the events that the agent keeps of the node, its pods, workloads and
Services, the newest last. This works with and without an API server.`,
		Args: noArgs,
		Example: `  nodectl events
  nodectl events --for pod/web --types Warning
  nodectl events -w`,
	}
	f := eventFlags{listing: addListing(cmd)}
	f.namespace = addNamespace(cmd, "only events of this namespace")
	addAll(cmd)
	cmd.Flags().BoolVarP(&f.watch, "watch", "w", false, "then follow new events")
	cmd.Flags().StringVar(&f.about, "for", "", "only events of this pod or node, such as pod/web")
	cmd.Flags().StringSliceVar(&f.types, "types", nil, "only these types: Normal, Warning")
	word(cmd.Flags(), "for", "KIND/NAME")
	word(cmd.Flags(), "types", "TYPES")
	complete(cmd, "types", v1.EventTypeNormal, v1.EventTypeWarning)
	_ = cmd.RegisterFlagCompletionFunc("for", p.completeKinds())
	f.endpoint = p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.events(cmd, f) }
	return cmd
}

func (p *program) events(cmd *cobra.Command, f eventFlags) error {
	selects, err := f.filter()
	if err != nil {
		return usage(cmd, err)
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	ctx, stop := untilClosed(cmd.Context(), p.out.file)
	defer stop()
	all, err := c.Events(ctx)
	if err != nil {
		return clientError(err)
	}
	seen := map[string]string{} // the last text of each event, by eventKey
	all = slices.DeleteFunc(all, func(e v1.Event) bool {
		seen[eventKey(&e)] = eventText(&e)
		return !selects(&e)
	})
	slices.SortStableFunc(all, func(a, b v1.Event) int { return ui.EventTime(a).Compare(ui.EventTime(b)) })
	if f.sortBy != "" {
		if err := ui.Sort(all, f.sortBy); err != nil {
			return failed(exitFailure, err)
		}
	}
	if !f.watch {
		if len(all) == 0 && f.format.Table() {
			p.say(p.err.Notice("no events"))
		}
		return p.showEvents(f, all)
	}
	flow := p.out.Flow(f.columns)
	if err := p.followEvents(f, flow, all); err != nil {
		return err
	}
	for change, err := range c.WatchEvents(ctx) {
		if err != nil {
			return clientError(err)
		}
		e := change.Object
		key, text := eventKey(e), eventText(e)
		if change.Type == "DELETED" || seen[key] == text || !selects(e) {
			continue
		}
		seen[key] = text
		if err := p.followEvents(f, flow, []v1.Event{*e}); err != nil {
			return err
		}
	}
	if ctx.Err() == nil {
		p.say(p.err.Notice("the agent has stopped; its pods keep running"))
	}
	return nil
}

func eventKey(e *v1.Event) string { return e.Namespace + "/" + e.Name + "/" + string(e.UID) }

// eventText returns the fields of an event whose change is printed as a new line.
func eventText(e *v1.Event) string {
	return e.Reason + "\x00" + e.Message + "\x00" + ui.EventTime(*e).String()
}

// showEvents prints a complete list of events.
func (p *program) showEvents(f eventFlags, all []v1.Event) error {
	var names strings.Builder
	for i := range all {
		all[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		names.WriteString("event/" + ui.Clean(all[i].Name) + "\n")
	}
	now := time.Now()
	return show(p, f.listing, all, false, names.String(), func(all []v1.Event) any { return ui.ListOf(all) },
		func(all []v1.Event) ui.Grid { return ui.EventGrid(all, f.columns, now) })
}

// followEvents prints events of a stream, in the order of their arrival.
func (p *program) followEvents(f eventFlags, flow *ui.Flow, all []v1.Event) error {
	if f.format.Table() {
		return p.out.print(flow.Rows(ui.EventGrid(all, f.columns, time.Now())))
	}
	for i := range all {
		all[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Event"}
		text, err := streamed(f.format, all[i], "event/"+ui.Clean(all[i].Name)+"\n")
		if err != nil {
			return failed(exitFailure, err)
		}
		if err := p.out.print(text); err != nil {
			return err
		}
	}
	return nil
}

// filter returns a function that reports whether the flags select an event.
func (f eventFlags) filter() (func(*v1.Event) bool, error) {
	for _, t := range f.types {
		if !strings.EqualFold(t, v1.EventTypeNormal) && !strings.EqualFold(t, v1.EventTypeWarning) {
			return nil, errors.New("--types: " + t + " is neither Normal nor Warning")
		}
	}
	kind, name, ok := strings.Cut(f.about, "/")
	switch {
	case f.about == "":
	case !ok || name == "":
		return nil, errors.New("--for needs a kind and a name, such as pod/web")
	case slices.Contains(client.PodPrefixes(), kind):
		kind = "Pod"
	case slices.Contains([]string{"node", "nodes", "no"}, kind):
		kind = "Node"
	default:
		return nil, errors.New("--for " + f.about + ": must be a pod or the node")
	}
	suffix := "-" + strings.ToLower(f.endpoint.p.cfg.NodeName)
	return func(e *v1.Event) bool {
		o := e.InvolvedObject
		switch {
		case *f.namespace != "" && e.Namespace != *f.namespace:
			return false
		case len(f.types) > 0 && !slices.ContainsFunc(f.types, func(t string) bool { return strings.EqualFold(t, e.Type) }):
			return false
		}
		return f.about == "" || o.Kind == kind && (o.Name == name || o.Name == name+suffix || e.Source.Host != "" && o.Name == name+"-"+e.Source.Host)
	}, nil
}

// eventsAbout returns the events of one object, the oldest first. A UID of "" matches any.
func eventsAbout(ctx context.Context, c *client.Client, kind, namespace, name, uid string) ([]v1.Event, error) {
	all, err := c.Events(ctx)
	all = slices.DeleteFunc(all, func(e v1.Event) bool {
		o := e.InvolvedObject
		return o.Kind != kind || o.Name != name || kind != "Node" && (o.Namespace != namespace || uid != "" && o.UID != "" && string(o.UID) != uid)
	})
	slices.SortStableFunc(all, func(a, b v1.Event) int { return ui.EventTime(a).Compare(ui.EventTime(b)) })
	return all, err
}
