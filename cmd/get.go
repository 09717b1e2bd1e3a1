//go:build linux

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/engine"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Show what is on this node",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(p.getPodsCommand(), p.getSourcesCommand(), p.getVolumesCommand())
	return cmd
}

func (p *program) getPodsCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "pods [NAME...]",
		Aliases: []string{"pod", "po"},
		Short:   "Show the pods of this node, of every namespace",
		Long: `Show the pods of this node: what the runtime shows now, and what the agent last
reported. It works beside a running serve and without one. A name may be given
with or without the node's suffix.`,
		Example: `  nodectl get pods
  nodectl get pods web -o yaml
  nodectl get pods -n kube-system -o wide`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml", "name")
	namespace := cmd.Flags().StringP("namespace", "n", "", "only pods of this namespace")
	word(cmd.Flags(), "namespace", "NAME")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		pods, err := p.pods(cmd.Context())
		if err != nil {
			return err
		}
		pods, missing := p.selectPods(pods, *namespace, names)
		switch output.value {
		case "text", "wide":
			if len(pods) == 0 && len(names) == 0 {
				p.say(p.err.Notice("no pods on this node"))
			}
			err = p.out.print(p.out.Pods(pods, output.value == "wide", time.Now()))
		case "name":
			err = p.out.print(ui.PodNames(pods))
		default:
			err = p.document(output.value, ui.PodList(pods))
		}
		if err != nil {
			return err
		}
		for _, name := range missing {
			p.say(p.err.Error("pod " + name + " not found"))
		}
		if len(missing) > 0 {
			return ended(exitFailure)
		}
		return nil
	}
	return cmd
}

// pods returns every pod of this node with its status, sorted. The journal says
// what was last reported; where the runtime answers, it says how things are
// now.
func (p *program) pods(ctx context.Context) ([]v1.Pod, error) {
	entries, err := journal.Read(filepath.Join(p.cfg.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failed(exitFailure, err, asRoot(err))
	}
	reported := make(map[pod.Key]*v1.Pod, len(entries))
	for key, e := range entries {
		reported[key] = e.Pod
	}
	kept, err := p.kept()
	if err != nil {
		p.say(p.err.Notice(fmt.Sprintf("what the agent kept cannot be read: %v", err)))
	}
	runtime, err := p.observe(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.say(p.err.Notice("the runtime does not answer, so this is what was last reported: " + err.Error()))
		return engine.Pods(nil, reported, kept, hostIPs(), time.Now()), nil
	}
	defer runtime.Close()
	have, err := runtime.Pods(ctx)
	if err != nil {
		if len(have) == 0 {
			return nil, failed(exitRuntime, err)
		}
		p.logger(slog.LevelWarn).Warn("Some pods were not read", "error", err)
	}
	return engine.Pods(&have, reported, kept, hostIPs(), time.Now()), nil
}

// selectPods returns the pods asked for, and the names that none has.
func (p *program) selectPods(all []v1.Pod, namespace string, names []string) (pods []v1.Pod, missing []string) {
	found := make(map[string]bool, len(names))
	suffix := "-" + strings.ToLower(p.cfg.NodeName)
	for _, it := range all {
		if namespace != "" && it.Namespace != namespace {
			continue
		}
		match := len(names) == 0
		for _, name := range names {
			if it.Name == name || it.Name == name+suffix {
				match, found[name] = true, true
			}
		}
		if match {
			pods = append(pods, it)
		}
	}
	missing = slices.DeleteFunc(slices.Clone(names), func(n string) bool { return found[n] })
	return pods, missing
}
