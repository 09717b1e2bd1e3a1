package cmd

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) whyCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "why POD",
		Short: "Show what a pod waits for",
		Long: `Show what a pod waits for, and since when: the step of its plan, and its calls
that have not ended (to the runtime, a registry, an API server, a volume, a hook
or a probe). why also shows possible causes: mounts that do not answer, and
processes that are stopped or in an uninterruptible wait, with their kernel
stacks. If the pod waits for nothing, why reports that.`,
		Example: `  nodectl why web
  nodectl why web -n prod
  nodectl why web -o json`,
		Args: cobra.ArbitraryArgs,
	}
	namespace := addNamespace(cmd, "the namespace of the pod")
	output := addOutput(cmd, "text", "json", "yaml")
	cmd.ValidArgsFunction = p.completePods(false)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usage(cmd, errors.New("why needs one pod"))
		}
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		names, missing := p.whyNames(cmd.Context(), c, *namespace, args[0])
		for _, name := range names {
			report, err := c.Why(cmd.Context(), name.Namespace, name.Name)
			switch {
			case client.IsRefused(err, http.StatusNotFound):
				continue
			case client.IsRefused(err, http.StatusServiceUnavailable): // the agent may not know the pod yet
				missing = clientError(err)
				continue
			case err != nil:
				return clientError(err)
			case output.value == "text":
				return p.out.print(p.out.Why(report))
			}
			return p.document(output.value, ui.NewWhyReport(report))
		}
		return missing
	}
	return cmd
}

// whyNames returns the pods that the name may mean, and the error to return if none of them
// exists. An agent whose runtime does not answer has no list of pods, but it knows why each waits.
func (p *program) whyNames(ctx context.Context, c *client.Client, namespace, text string) (names []client.Name, missing error) {
	name, err := client.ParseName(text, namespace)
	if err != nil {
		return nil, failed(exitUsage, err)
	}
	within, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	all, err := c.Pods(within)
	if err != nil && (client.IsAbsent(err) || ctx.Err() != nil) {
		return nil, clientError(err)
	}
	it, missing := onePod(name, all)
	switch {
	case it != nil:
		return []client.Name{{Namespace: it.Namespace, Name: it.Name}}, missing
	case name.Name == "" || len(name.Find(all)) > 1:
		return nil, missing
	case name.Namespace == "":
		name.Namespace = "default"
	}
	suffixed := client.Name{Namespace: name.Namespace, Name: name.Name + "-" + strings.ToLower(p.cfg.NodeName)}
	return []client.Name{name, suffixed}, missing
}
