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
		Short:   "Show the sources of a running agent and their state",
		Long: `Show the sources of the agent that serves --root-dir, by priority: the first one
wins. REASON shows why a source is not ok, and since when. LAST READ shows when
the current content was read (unchanged content is not read again). STATE:
  ok        the last content read is in use
  silent    it has not answered yet
  restored  it has not answered yet; its last known good set is in use
  stale     it cannot be read; its last known good set is in use
  failing   it could never be read`,
		Args: noArgs,
		Example: `  nodectl get sources
  nodectl get sources -o json`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml", "name")
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		var d ui.SourceList
		if err := c.Document(cmd.Context(), "/v1/sources", nil, &d); err != nil {
			return clientError(err)
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
