package cmd

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getSourcesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "sources",
		Aliases: []string{"source", "src"},
		Short:   "Show the sources of a running agent, and how they are",
		Long: `Show the sources of the agent that serves --root-dir, in their order: the first
one wins. REASON says since when and why a source is not ok; LAST READ is when
what stands was read (a source that says nothing new is not read anew). STATE:
  ok        what was read last stands
  silent    it has not answered yet
  restored  it has not answered yet; its pods are those of the agent before
  stale     it cannot be read; its pods stand on the last good reading
  failing   it could never be read`,
		Args: noArgs,
		Example: `  nodectl get sources
  nodectl get sources -o json`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml", "name")
	reach := p.addReach(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := reach.client()
		if err != nil {
			return err
		}
		var d ui.SourceList
		if err := c.Document(cmd.Context(), "/v1/sources", nil, &d); err != nil {
			return unanswered(err)
		}
		switch output.value {
		case "text", "wide":
			return p.out.print(p.out.Sources(d, output.value == "wide", time.Now()))
		case "name":
			return p.out.print(ui.SourceNames(d))
		}
		return p.document(output.value, d)
	}
	return cmd
}
