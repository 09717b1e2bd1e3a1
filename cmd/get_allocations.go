package cmd

import (
	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getAllocationsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "allocations",
		Aliases: []string{"allocation"},
		Short:   "Show containers with devices, exclusive CPUs or NUMA memory",
		Long: `Show the containers that have devices of plugins or ResourceClaims, exclusive
CPUs or memory of NUMA nodes, as the container runtime shows them now.
Monitoring agents read the same from pod-resources/kubelet.sock in the directory
of --kubelet-dir.`,
		Args: noArgs,
		Example: `  nodectl get allocations
  nodectl get allocations -o json`,
	}
	output := addOutput(cmd, "text", "json", "yaml")
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		d := ui.AllocationList{Document: ui.Document{APIVersion: ui.APIVersion, Kind: "AllocationList"}}
		if err := c.Document(cmd.Context(), "/v1/allocations", nil, &d); err != nil {
			return clientError(err)
		}
		if output.value != "text" {
			return p.document(output.value, d)
		}
		if len(d.Items) == 0 {
			p.say(p.err.Notice("no container has devices, exclusive CPUs or NUMA memory"))
		}
		return p.out.print(p.out.Allocations(d))
	}
	return cmd
}
