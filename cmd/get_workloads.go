package cmd

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodectl/nodectl/pkg/ui"
)

// getWorkloadCommands returns get deployments, get statefulsets and so on.
func (p *program) getWorkloadCommands() []*cobra.Command {
	var all []*cobra.Command
	for _, k := range workloadKinds() {
		all = append(all, p.getWorkloadsCommand(k))
	}
	return all
}

// workloadFlags are the flags of get for a kind of workload.
type workloadFlags struct {
	*listing
	followFlags
	endpoint  *endpoint
	namespace *string
	selector  string
}

func (p *program) getWorkloadsCommand(k workloadKind) *cobra.Command {
	cmd := &cobra.Command{
		Use:     k.plural + " [NAME...]",
		Aliases: k.words()[1:],
		Short:   "Show the " + k.plural + " of this node",
		Long: `Show the ` + k.plural + ` of this node, of every namespace. -o wide adds the
source, and the fields that a command or a rollback has changed.`,
		Example: `  nodectl get ` + k.plural + `
  nodectl get ` + k.singular() + `/web -o yaml
  nodectl get ` + k.plural + ` -n shop -l app=web
  nodectl get ` + k.plural + ` -w`,
	}
	f := workloadFlags{listing: addListing(cmd)}
	f.addLabels(cmd)
	f.namespace = addNamespace(cmd, "only "+k.plural+" of this namespace")
	addAll(cmd)
	cmd.Flags().StringVarP(&f.selector, "selector", "l", "", "only "+k.plural+" with these labels, such as app=web")
	word(cmd.Flags(), "selector", "LABELS")
	f.followFlags.add(cmd)
	f.endpoint = p.addEndpoint(cmd)
	cmd.ValidArgsFunction = func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return p.workloadNames(cmd, k, ""), cobra.ShellCompDirectiveNoFileComp
	}
	cmd.RunE = func(cmd *cobra.Command, names []string) error { return p.getWorkloads(cmd, k, f, names) }
	return cmd
}

func (p *program) getWorkloads(cmd *cobra.Command, k workloadKind, f workloadFlags, names []string) error {
	selector, err := labels.Parse(f.selector)
	switch {
	case err != nil:
		return usage(cmd, errors.New("--selector: "+err.Error()))
	case len(names) > 0 && f.selector != "":
		return usage(cmd, errors.New("either names or a selector"))
	}
	c, err := f.endpoint.client()
	if err != nil {
		return err
	}
	list := func(ctx context.Context) ([]ui.Workload, []error, error) {
		all, err := readWorkloads(ctx, c, k.kind, false)
		some, missing := chosenWorkloads(all, k, *f.namespace, selector, names)
		return some, missing, err
	}
	grid := func(some []ui.Workload) ui.Grid { return ui.WorkloadGrid(k.kind, some, f.columns, time.Now()) }
	if f.follows() {
		return objectWatch[ui.Workload]{
			listing: f.listing, followFlags: f.followFlags, list: list, grid: grid, names: ui.WorkloadNames,
			object: func(w ui.Workload) metav1.Object { return w.Object },
		}.follow(cmd.Context(), p)
	}
	some, missing, err := list(cmd.Context())
	if err != nil {
		return clientError(err)
	}
	if f.sortBy != "" {
		objects := ui.WorkloadObjects(some)
		if err := ui.Sort(objects, f.sortBy); err != nil {
			return failed(exitFailure, err)
		}
		some = ui.InOrder(some, objects)
	}
	if f.format.Table() {
		if len(some) == 0 && len(names) == 0 {
			p.say(p.err.Notice("no " + k.plural + " on this node"))
		}
		for _, text := range ui.OverrideNotices(some) {
			p.say(p.err.Notice(text))
		}
	}
	err = show(p, f.listing, ui.WorkloadObjects(some), len(names) == 1 && len(missing) == 0, ui.WorkloadNames(some),
		func(all []any) any { return ui.ListOf(all) }, func([]any) ui.Grid { return grid(some) })
	if err != nil || len(missing) == 0 {
		return err
	}
	for _, err := range missing[:len(missing)-1] {
		p.say(p.err.Error(err.Error()))
	}
	return missing[len(missing)-1]
}

// chosenWorkloads returns the workloads of a kind with these names, and an error for each name
// without a workload. Without names, it returns those that the selector matches.
func chosenWorkloads(all []ui.Workload, k workloadKind, namespace string, selector labels.Selector, names []string) (some []ui.Workload, missing []error) {
	if len(names) == 0 {
		return ui.SelectWorkloads(all, namespace, selector), nil
	}
	for _, name := range names {
		one, err := oneWorkload(all, k, namespace, name)
		if err != nil {
			missing = append(missing, err)
			continue
		}
		some = append(some, *one)
	}
	return some, missing
}
