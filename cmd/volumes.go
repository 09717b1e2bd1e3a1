//go:build linux

package cmd

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/ui"
	"github.com/nodectl/nodectl/pkg/volume"
)

func (p *program) getVolumesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "volumes",
		Aliases: []string{"volume", "pvc"},
		Short:   "Show the volumes that claims are bound to",
		Long: `Show the directories of this node that PersistentVolumeClaims are bound to.
nodectl creates one when the first pod uses the claim, and keeps it when pods
and manifests are removed: only "nodectl delete volume" removes it.`,
		Args: noArgs,
		Example: `  nodectl get volumes
  nodectl get volumes -n shop -o wide`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml", "name")
	namespace := cmd.Flags().StringP("namespace", "n", "", "only volumes of this namespace")
	word(cmd.Flags(), "namespace", "NAME")
	cmd.RunE = func(*cobra.Command, []string) error {
		claims, users, err := p.claims()
		if err != nil {
			return err
		}
		var items []ui.VolumeItem
		for _, c := range claims {
			if *namespace != "" && c.Namespace != *namespace {
				continue
			}
			it := ui.VolumeItem{Namespace: c.Namespace, Name: c.Name, Path: c.Dir, UsedBy: append([]string{}, users[pod.Key{Namespace: c.Namespace, Name: c.Name}]...)}
			if !c.Created.IsZero() {
				it.Created = c.Created.UTC().Format(time.RFC3339)
			}
			items = append(items, it)
		}
		d := ui.NewVolumeList(items)
		switch output.value {
		case "text", "wide":
			if len(d.Items) == 0 {
				p.say(p.err.Notice("no volumes on this node"))
			}
			return p.out.print(p.out.Volumes(d, output.value == "wide", time.Now()))
		case "name":
			return p.out.print(ui.VolumeNames(d))
		}
		return p.document(output.value, d)
	}
	return cmd
}

// claims returns the claims of this node, and the names of the pods that use each.
func (p *program) claims() ([]volume.Claim, map[pod.Key][]string, error) {
	claims, err := volume.Claims(p.cfg.RootDir)
	if err != nil {
		return nil, nil, failed(exitFailure, err, readonly.AsRoot(err))
	}
	kept, err := p.readOnly(slog.LevelWarn).Records()
	if err != nil {
		return nil, nil, failed(exitFailure, fmt.Errorf("read which pods use them: %w", err), readonly.AsRoot(err))
	}
	users := make(map[pod.Key][]string)
	for _, r := range kept {
		if r.Want == nil {
			continue
		}
		for _, ref := range pod.Refs(r.Want.Pod) {
			key := pod.Key{Namespace: r.Namespace, Name: ref.Name}
			if ref.Kind == pod.KindClaim && !slices.Contains(users[key], r.Name) {
				users[key] = append(users[key], r.Name)
			}
		}
	}
	for _, names := range users {
		slices.Sort(names)
	}
	return claims, users, nil
}

func (p *program) deleteVolumeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "volume NAME...",
		Aliases: []string{"volumes", "pvc"},
		Short:   "Remove volumes that claims are bound to, with their content",
		Long: `Remove the directory of this node that a PersistentVolumeClaim is bound to, with
its content. This fails while a pod of this node uses it. A pod that uses the
claim afterwards gets an empty directory.`,
		Args: cobra.MinimumNArgs(1),
		Example: `  nodectl delete volume shop-db
  nodectl delete volume data -n shop`,
	}
	namespace := cmd.Flags().StringP("namespace", "n", "default", "the namespace of the claims")
	word(cmd.Flags(), "namespace", "NAME")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		_, users, err := p.claims()
		if err != nil {
			return err
		}
		for _, name := range names {
			key := pod.Key{Namespace: *namespace, Name: name}
			if used := users[key]; len(used) > 0 {
				return failed(exitFailure, fmt.Errorf("volume %s is used by pod %s", key, strings.Join(used, ", ")), "remove the pod first: remove its manifest, or run nodectl runonce --down")
			}
			err := volume.RemoveClaim(cmd.Context(), p.cfg.RootDir, key.Namespace, key.Name)
			switch {
			case errors.Is(err, volume.ErrNoClaim):
				return failed(exitFailure, fmt.Errorf("volume %s not found", key), "nodectl get volumes lists them")
			case err != nil:
				return failed(exitFailure, err, readonly.AsRoot(err))
			}
			if err := p.out.print("volume/" + ui.Clean(name) + " deleted\n"); err != nil {
				return err
			}
		}
		return nil
	}
	return cmd
}
