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

// serviceWords returns the names of the kind Service on command lines.
func serviceWords() []string { return []string{"service", "services", "svc"} }

func (p *program) getServicesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "services [NAME...]",
		Aliases: []string{"service", "svc"},
		Short:   "Show the Services of this node, of every namespace",
		Long: `Show the Services that the agent serves, with their addresses and ports. A
node of a cluster has none: the cluster's proxy serves them there.`,
		Example: `  nodectl get services
  nodectl get svc web -o wide
  nodectl get services -w`,
	}
	l := addListing(cmd)
	l.addLabels(cmd)
	namespace := addNamespace(cmd, "only Services of this namespace")
	addAll(cmd)
	var follow followFlags
	follow.add(cmd)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		grid := func(all []v1.Service) ui.Grid { return ui.ServiceGrid(all, l.columns, time.Now()) }
		if follow.follows() {
			return objectWatch[v1.Service]{
				listing: l, followFlags: follow, grid: grid, names: ui.ServiceNames, object: func(s v1.Service) metav1.Object { return &s },
				list: func(ctx context.Context) ([]v1.Service, []error, error) {
					items, missing, err := readServices(ctx, c, *namespace, names)
					var errs []error
					for _, name := range missing {
						errs = append(errs, failed(exitFailure, errors.New("service "+name+" not found")))
					}
					return servicesIn(items), errs, err
				},
			}.follow(cmd.Context(), p)
		}
		items, missing, err := servicesNamed(cmd.Context(), c, *namespace, names)
		if err != nil {
			return err
		}
		all := servicesIn(items)
		if l.sortBy != "" {
			if err := ui.Sort(all, l.sortBy); err != nil {
				return failed(exitFailure, err)
			}
		}
		if len(all) == 0 && len(names) == 0 && l.format.Table() {
			p.say(p.err.Notice("no Services on this node"))
		}
		err = show(p, l, all, len(names) == 1 && len(missing) == 0, ui.ServiceNames(all),
			func(all []v1.Service) any { return ui.ListOf(all) }, grid)
		return p.missingServices(missing, err)
	}
	return cmd
}

// missingServices reports names that no Service has.
func (p *program) missingServices(missing []string, err error) error {
	for _, name := range missing {
		p.say(p.err.Error("service " + name + " not found"))
	}
	if err == nil && len(missing) > 0 {
		return ended(exitFailure)
	}
	return err
}

// servicesIn returns the objects of items, with their kind.
func servicesIn(items []ui.ServiceItem) []v1.Service {
	all := make([]v1.Service, len(items))
	for i := range items {
		all[i] = items[i].Service
		all[i].TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Service"}
	}
	return all
}

// servicesNamed returns the Services of a namespace with these names. Without a namespace, or
// without names, it returns all.
func servicesNamed(ctx context.Context, c *client.Client, namespace string, names []string) (found []ui.ServiceItem, missing []string, err error) {
	found, missing, err = readServices(ctx, c, namespace, names)
	return found, missing, clientError(err)
}

// readServices does the same as servicesNamed, and returns errors of the client unchanged.
func readServices(ctx context.Context, c *client.Client, namespace string, names []string) (found []ui.ServiceItem, missing []string, err error) {
	var d ui.ServiceList
	if err := c.Document(ctx, "/v1/services", nil, &d); err != nil {
		return nil, nil, err
	}
	has := map[string]bool{}
	for _, it := range d.Items {
		if namespace != "" && it.Service.Namespace != namespace || len(names) > 0 && !slices.Contains(names, it.Service.Name) {
			continue
		}
		found, has[it.Service.Name] = append(found, it), true
	}
	for _, name := range names {
		if !has[name] {
			missing = append(missing, name)
		}
	}
	return found, missing, nil
}

// describeServices shows Services with their endpoints.
func (p *program) describeServices(cmd *cobra.Command, c *client.Client, namespace string, names []string, events bool) error {
	items, missing, err := servicesNamed(cmd.Context(), c, namespace, names)
	if err != nil {
		return err
	}
	var parts []string
	for _, it := range items {
		h := ui.ObjectEvents{Requested: events}
		if events {
			h.Events, err = eventsAbout(cmd.Context(), c, "Service", it.Service.Namespace, it.Service.Name, "")
			h.Available = err == nil
		}
		parts = append(parts, ui.DescribeService(it, h, time.Now()))
	}
	return p.missingServices(missing, p.out.print(strings.Join(parts, "\n\n")))
}
