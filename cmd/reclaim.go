package cmd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) reclaimCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reclaim --dry-run",
		Short: "Show what the node would remove when it runs short",
		Long: `Show how much disk, memory and process IDs the node has left, and what the agent
would remove now because a threshold (--eviction-hard, --eviction-soft) is met:
exited containers and unused images first, then pods, in this order. --assume
replaces a measured level. reclaim changes nothing: the agent removes data
by itself. If no agent runs, reclaim shows the removals of an agent with these
settings.`,
		Args: noArgs,
		Example: `  nodectl reclaim --dry-run
  nodectl reclaim --dry-run --assume memory.available=50Mi
  nodectl reclaim --dry-run --assume nodefs.available=5% -o json`,
	}
	output := addOutput(cmd, "text", "json", "yaml")
	dry := cmd.Flags().Bool("dry-run", false, "only show what would be removed; required")
	assume := cmd.Flags().StringSlice("assume", nil, "assume that this much of a signal is left: SIGNAL=QUANTITY or SIGNAL=PERCENT")
	word(cmd.Flags(), "assume", "LEVEL")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if !*dry {
			return failed(exitUsage, errors.New("--dry-run is required: the agent removes data by itself when a threshold is met"), "nodectl image prune removes unused images now")
		}
		for _, text := range *assume {
			if _, err := pod.ParseAmount(text); err != nil {
				return failed(exitUsage, fmt.Errorf("--assume: %w", err))
			}
		}
		d, err := p.reclaim(cmd.Context(), *assume)
		if err != nil {
			return err
		}
		d.Document = ui.Document{APIVersion: ui.APIVersion, Kind: "Reclaim"}
		if output.value == "text" {
			return p.out.print(p.out.Reclaim(d))
		}
		return p.document(output.value, d)
	}
	return cmd
}

// reclaim returns the removals that the agent would make, or if none answers, an agent with these
// settings.
func (p *program) reclaim(ctx context.Context, assume []string) (d ui.Reclaim, err error) {
	// The agent measures disks before it answers, so the request has no timeout.
	body, err := p.agent().Get(ctx, "/v1/reclaim", url.Values{"assume": assume})
	if client.IsAbsent(err) {
		found, err := p.forecastReclaim(ctx, assume)
		if err != nil {
			return d, err
		}
		p.say(p.err.Notice("no agent answers: showing the removals of an agent with these settings"))
		data, err := json.Marshal(found)
		if err != nil {
			return d, err
		}
		return d, json.Unmarshal(data, &d)
	}
	if err != nil {
		return d, clientError(err)
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&d); err != nil {
		return d, failed(exitFailure, fmt.Errorf("read the answer of the agent: %w", err))
	}
	return d, nil
}
