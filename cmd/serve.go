//go:build linux

package cmd

import (
	"context"
	"log/slog"
	"sync"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/source/file"
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

// serve runs the engine, and supervises the runtime, until ctx ends. A signal stops it
// and is no failure.
func (p *program) serve(ctx context.Context) error {
	log := p.logger(slog.LevelInfo)
	n, err := p.openNode(ctx, log)
	if err != nil {
		return err
	}
	defer n.close()
	p.absolute()
	m, err := n.join()
	if err != nil {
		return err
	}
	r := reading{kept: p.keptSpecs(n.kept), restored: n.lastGood(), lasting: true, acts: true, log: log}
	if p.cfg.InsecureManifestPermissions {
		r.permissions = file.Ignore
	}
	config, err := p.podConfig(r)
	if err != nil {
		return err
	}
	log.Info("Serving", "node", p.cfg.NodeName, "root", p.cfg.RootDir, "runtime", n.runtime.Endpoint(), "version", readVersion().Version)
	tellCgroups(log)
	n.importFirst(ctx)
	beside, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	wg.Go(func() { n.lookAfter(beside) })
	defer n.pulls(beside, newServeLines(p))()
	e := n.engine(config, n.told(m))
	answers, serving, err := n.serverConfig(e, m)
	if err != nil {
		return err
	}
	if err := p.openRun(); err != nil {
		log.Warn("Directory of the local socket not made", "error", err)
	}
	wg.Go(func() { n.events.Run(beside) })
	if m != nil {
		wg.Go(func() { m.run(beside, log) })
	}
	if serving != nil {
		wg.Go(func() {
			if err := serving.Run(beside); err != nil {
				log.Error("Certificate of the server not kept", "error", err)
			}
		})
	}
	answering := make(chan struct{}) // closed once the socket answers, or will not
	said := sync.OnceFunc(func() { close(answering) })
	answers.Answering = said
	wg.Go(func() {
		defer said()
		if err := server.New(answers).Serve(beside); err != nil {
			log.Error("Local socket not served; pods go on without", "error", err)
		}
	})
	wg.Go(func() { n.supervise(e, answering).run(beside) })
	wg.Go(func() { settle(beside) })
	wg.Go(func() { tellDescriptors(beside, log) })
	if err := e.Run(ctx); err != nil {
		return failed(exitFailure, err)
	}
	log.Info("Leaving; pods stay")
	return nil
}
