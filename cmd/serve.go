package cmd

import (
	"context"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/podconfig"
)

func (p *program) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Keep pods the way their sources want them",
		Long: `Keep the pods of this machine the way their sources want them, until told to
stop. Pods outlive it: the next serve adopts them, untouched. What its sources do
not want any more is stopped, but only pods that nodectl started on this node,
and only when the source they came from was read.`,
		Args: noArgs,
		Example: `  nodectl serve -f /etc/nodectl/manifests
  nodectl serve -f base/ -f https://config.example/pods.yaml`,
	}
	p.addSources(cmd)
	p.addSettings(cmd.Flags(), agentSettings())
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return p.serve(cmd.Context()) }
	return cmd
}

// serve runs the engine, and beside it what looks after the runtime, until ctx
// ends. A signal is how it is told to stop, and no failure.
func (p *program) serve(ctx context.Context) error {
	log := p.logger(slog.LevelInfo)
	n, err := p.openNode(ctx, log)
	if err != nil {
		return err
	}
	defer n.close()
	p.absolute()
	config, err := p.podConfig(podconfig.Incremental, p.keptSpecs(n.kept), log)
	if err != nil {
		return err
	}
	log.Info("Serving", "node", p.cfg.NodeName, "root", p.cfg.RootDir, "runtime", n.runtime.Endpoint(), "version", readVersion().Version)
	n.importFirst(ctx)
	beside, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { n.lookAfter(beside) })
	if err := n.engine(config).Run(ctx); err != nil {
		return failed(exitFailure, err)
	}
	log.Info("Leaving; pods stay")
	return nil
}
