//go:build linux

package cmd

import (
	"context"
	"encoding/json"
	"log/slog"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/pod"
)

func (p *program) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run the pods of sources, and keep them in sync",
		Long: `Run the pods of all sources on this machine and keep them in sync, until a
signal stops serve. The pods keep running then, and the next serve adopts them
unchanged. serve stops a pod that is no longer in a source, but only if nodectl
started it on this node and serve has read the pod's source.

To start a pod after another one, give it the annotation
nodectl.dev/depends-on: NAME[:started|ready|done], with commas between several.

With --kubeconfig, this machine is a node of that API server's cluster: serve
registers the node, runs the pods bound to it, reports their status, and answers
kubectl on port 10250. With --bootstrap-kubeconfig too, it requests its own
certificate first. Pods of other sources do not wait for the API server.
Workloads of files, such as Deployments, do not run then: see --workloads.

Under systemd (Type=notify), serve reports when it is ready, and resets the
watchdog while it works.`,
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
	complete(cmd, "workloads", "refuse", "stop")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) }
	return cmd
}

// serve runs the agent until a signal. It then returns nil.
func (p *program) serve(ctx context.Context) error {
	p.cfg, p.given = readonly.Absolute(p.cfg)
	cfg := p.agentConfig(slog.LevelInfo)
	cfg.Pulls = newServeLines(p)
	a, err := agent.Open(ctx, cfg)
	if err != nil {
		return err
	}
	defer a.Close()
	return a.Run(ctx)
}

// agentConfig returns the configuration of an agent; own is the command's log level without
// --log-level.
func (p *program) agentConfig(own slog.Level) agent.Config {
	v := readVersion()
	return agent.Config{
		Config: p.readOnly(own), Build: agent.Build{Version: v.Version, Commit: v.Commit, Date: v.Date, Dirty: v.Dirty},
		ExternalCloud: p.externalCloud(), Configz: p.configz, SetVerbosity: p.setVerbosity,
	}
}

// configz returns the settings as /configz shows them.
func (p *program) configz() ([]byte, error) {
	return json.Marshal(map[string]any{"kubeletconfig": p.cfg.Kubelet(), "nodectl": p.view()})
}
