//go:build linux

package cmd

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/pod"
)

func (p *program) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Keep pods the way their sources want them",
		Long: `Keep the pods of this machine the way their sources want them, until told to
stop. Pods outlive it: the next serve adopts them, untouched. What its sources
do not want any more is stopped, but only pods that nodectl started on this
node, and only when the source they came from was read.

A pod that is to start after another one says so in its metadata, as annotation
nodectl.dev/depends-on: NAME[:started|ready|done], with commas between several.

With --kubeconfig, this machine is a node of that API server's cluster: it
registers, takes the pods that are bound to it, tells how they are, and answers
kubectl on port 10250. With --bootstrap-kubeconfig beside it, it asks for its
own certificate first. Pods of other sources do not wait for the API server.

Under systemd (Type=notify), it says when it serves, and feeds the watchdog
while it lives.`,
		Args: noArgs,
		Example: `  nodectl serve -f /etc/nodectl/manifests
  nodectl serve -f base/ -f https://config.example/pods.yaml
  nodectl serve --kubeconfig node.conf --bootstrap-kubeconfig bootstrap.conf`,
	}
	p.addSources(cmd)
	p.addClusterSources(cmd)
	p.addSettings(cmd.Flags(), agentSettings())
	p.addSettings(cmd.Flags(), serveSettings())
	p.addKubeletFlags(cmd)
	complete(cmd, "offline-start", "none", pod.SourceAPI)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) }
	return cmd
}

// serve serves until a signal stops it, which is no failure.
func (p *program) serve(ctx context.Context) error {
	p.cfg, p.given = look.Absolute(p.cfg)
	cfg := p.agentConfig(slog.LevelInfo)
	cfg.Pulls = newServeLines(p)
	a, err := agent.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.Run(ctx)
}

// agentConfig returns the configuration of an agent; own is the command's level of logging.
func (p *program) agentConfig(own slog.Level) agent.Config {
	v := readVersion()
	return agent.Config{
		Config: p.look(own), Build: agent.Build{Version: v.Version, Commit: v.Commit, Date: v.Date, Dirty: v.Dirty},
		ExternalCloud: p.externalCloud(), Configz: p.configz,
	}
}

// configz returns the settings as /configz shows them.
func (p *program) configz() ([]byte, error) {
	return json.Marshal(map[string]any{"kubeletconfig": p.cfg.Kubelet(), "nodectl": p.view()})
}
