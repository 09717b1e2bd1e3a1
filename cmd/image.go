//go:build linux

package cmd

import (
	"context"
	"errors"
	"log/slog"
	"net/url"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/nodectl/nodectl/pkg/agent"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) pullCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "pull IMAGE...",
		Short: "Pull images to this node",
		Long: `Pull images with the credentials of the node, even images that are present: a
tag may name another image now. The agent pulls them. If no agent runs, this
command pulls them itself.`,
		Args:    someArgs("images"),
		Example: "  nodectl pull registry.example/shop:2",
	}
	cmd.ValidArgsFunction = p.completeImages
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return p.eachImage(cmd.Context(), names, "pulled", func(ctx context.Context, acts imageActs, name string) error {
			return acts.Pull(ctx, name)
		})
	}
	return cmd
}

func (p *program) rmiCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "rmi IMAGE...",
		Short: "Remove images from this node",
		Long: `Remove images, with all their names. IMAGE is a name, a digest or the beginning
of an ID. rmi does not remove an image that a container or a desired pod uses,
or that the container runtime has pinned.`,
		Args:    someArgs("images"),
		Example: "  nodectl rmi registry.example/shop:1",
	}
	cmd.ValidArgsFunction = p.completeImages
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		return p.eachImage(cmd.Context(), names, "removed", func(ctx context.Context, acts imageActs, name string) error {
			return acts.Remove(ctx, name)
		})
	}
	return cmd
}

// someArgs requires at least one argument.
func someArgs(plural string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usage(cmd, errors.New(cmd.Name()+" takes one or more "+plural))
		}
		return nil
	}
}

// eachImage calls do for each image, prints the results, and continues after a failure.
func (p *program) eachImage(ctx context.Context, names []string, done string, do func(context.Context, imageActs, string) error) error {
	acts, err := p.imageActs(ctx)
	if err != nil {
		return err
	}
	defer acts.Close()
	failures := 0
	for _, name := range names {
		err := do(ctx, acts, name)
		switch {
		case err != nil && len(names) == 1:
			return clientError(err)
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			failures++
			p.say(p.err.Error(err.Error()))
			continue
		}
		if err := p.out.print("image/" + ui.Clean(name) + " " + done + "\n"); err != nil {
			return err
		}
	}
	if failures > 0 {
		return ended(exitFailure)
	}
	return nil
}

func (p *program) imageCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "image",
		Short: "Load, save and prune images",
		Args:  cobra.ArbitraryArgs,
		RunE:  needsSubcommand,
	}
	cmd.AddCommand(p.imageLoadCommand(), p.imageSaveCommand(), p.imagePruneCommand())
	return cmd
}

func (p *program) imageLoadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "load FILE...",
		Short: "Import image archives",
		Long: `Import archives of images into the containerd of this node. docker save, podman
save, skopeo and "nodectl image save" write such archives. Images that came from
an archive stay until a user removes them.`,
		Args:    someArgs("files"),
		Example: "  nodectl image load shop.tar",
	}
	cmd.RunE = func(cmd *cobra.Command, files []string) error {
		images, err := agent.OpenImagesReadOnly(cmd.Context(), p.agentConfig(slog.LevelWarn))
		if err != nil {
			return err
		}
		defer images.Close()
		for _, file := range files {
			names, err := images.Load(cmd.Context(), file)
			if err != nil {
				return failed(exitFailure, err)
			}
			for _, name := range names {
				if err := p.out.print("image/" + ui.Clean(name) + " loaded\n"); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return cmd
}

func (p *program) imageSaveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "save IMAGE... [-o FILE]",
		Short: "Write images into an archive",
		Long: `Write images for this machine's architecture into an archive: FILE, or standard
output if that is not a terminal. "nodectl image load", docker load and
--image-dir read such archives.`,
		Args:    someArgs("images"),
		Example: "  nodectl image save registry.example/shop:1 -o shop.tar",
	}
	cmd.ValidArgsFunction = p.completeImages
	file := cmd.Flags().StringP("output", "o", "", "file to write")
	word(cmd.Flags(), "output", "FILE")
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		if *file == "" && p.out.terminal() {
			return failed(exitUsage, errors.New("cannot write an archive to a terminal"), "-o FILE writes it to a file")
		}
		ctx := cmd.Context()
		images, err := agent.OpenImagesReadOnly(ctx, p.agentConfig(slog.LevelWarn))
		if err != nil {
			return err
		}
		defer images.Close()
		all, err := images.FullNames(ctx, names)
		if err != nil {
			return err
		}
		if *file == "" {
			return failed(exitFailure, bundle.Export(ctx, images.Endpoint(), all, p.out.file))
		}
		if err := bundle.ExportFile(ctx, images.Endpoint(), all, *file); err != nil {
			return failed(exitFailure, err)
		}
		return p.out.print("image/" + ui.Clean(names[0]) + " saved\n")
	}
	return cmd
}

func (p *program) imagePruneCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove every image that nothing uses",
		Long: `Remove every image that no container and no desired pod uses and that the
container runtime has not pinned, whatever its age. This includes images from
archives, which may be in no registry. --dry-run shows the images that would be
removed. -o wide also shows those that stay, with the reasons.`,
		Args: noArgs,
		Example: `  nodectl image prune --dry-run
  nodectl image prune`,
	}
	output := addOutput(cmd, "text", "wide", "json", "yaml")
	dry := cmd.Flags().Bool("dry-run", false, "only show what would be removed")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		acts, err := p.imageActs(cmd.Context())
		if err != nil {
			return err
		}
		defer acts.Close()
		found, err := acts.Prune(cmd.Context(), *dry)
		if err != nil {
			return clientError(err)
		}
		d := ui.NewImagePrune(*dry)
		for _, r := range found.Removed {
			d.Removed = append(d.Removed, ui.ImageRemoval(r))
			d.Bytes += r.Bytes
		}
		for _, k := range found.Kept {
			d.Kept = append(d.Kept, ui.ImageRemoval(k))
		}
		switch output.value {
		case "text", "wide":
			return p.out.print(ui.ImagePruneText(d, output.value == "wide"))
		}
		return p.document(output.value, d)
	}
	return cmd
}

// imageActs changes the images of this node.
type imageActs interface {
	Pull(ctx context.Context, name string) error
	Remove(ctx context.Context, name string) error
	Prune(ctx context.Context, dry bool) (server.ImageRemovals, error)
	Close()
}

// imageActs returns the agent's, or that of this process if no agent answers.
func (p *program) imageActs(ctx context.Context) (imageActs, error) {
	c := p.agent()
	var sources struct{}
	err := c.Document(ctx, "/v1/sources", nil, &sources)
	switch {
	case err == nil:
		return agentImages{c}, nil
	case !client.IsAbsent(err):
		return nil, clientError(err)
	}
	return agent.OpenImages(ctx, p.agentConfig(slog.LevelWarn))
}

// agentImages changes images by requests to the agent.
type agentImages struct{ c *client.Client }

// Pull implements imageActs.
func (a agentImages) Pull(ctx context.Context, name string) error {
	return a.c.Post(ctx, "/v1/images/pull", url.Values{"name": {name}})
}

// Remove implements imageActs.
func (a agentImages) Remove(ctx context.Context, name string) error {
	return a.c.Post(ctx, "/v1/images/remove", url.Values{"name": {name}})
}

// Prune implements imageActs.
func (a agentImages) Prune(ctx context.Context, dry bool) (all server.ImageRemovals, err error) {
	err = a.c.PostDocument(ctx, "/v1/images/prune", url.Values{"dryRun": {strconv.FormatBool(dry)}}, &all)
	return all, err
}

// Close implements imageActs.
func (agentImages) Close() {}

// forecastReclaim returns the removals that an agent with these settings would make. No agent
// runs on this machine.
func (p *program) forecastReclaim(ctx context.Context, assume []string) (server.Reclaim, error) {
	return agent.ForecastReclaim(ctx, p.agentConfig(slog.LevelWarn), assume)
}

// lookAtImages returns the images that the runtime of this node lists.
func (p *program) lookAtImages(ctx context.Context) ([]ui.ImageItem, error) {
	images, err := agent.OpenImagesReadOnly(ctx, p.agentConfig(slog.LevelWarn))
	if err != nil {
		return nil, err
	}
	defer images.Close()
	found, err := images.List(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]ui.ImageItem, 0, len(found))
	for _, i := range found {
		all = append(all, ui.ImageItem(i))
	}
	return all, nil
}
