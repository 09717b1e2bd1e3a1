package cmd

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/spf13/cobra"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/ui"
)

func (p *program) getNodesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "nodes",
		Aliases: []string{"node", "no"},
		Short:   "Show this node",
		Long: `Show the Node object of this machine. An agent without an API server has one
too.`,
		Example: `  nodectl get nodes
  nodectl get node -o wide
  nodectl get node -o jsonpath='{.items[0].status.capacity}'`,
	}
	l := addListing(cmd)
	l.addLabels(cmd)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		node, err := c.Node(cmd.Context())
		if err != nil {
			return clientError(err)
		}
		for _, name := range names {
			if name != node.Name {
				return failed(exitFailure, errors.New("node "+name+" not found"), "this node is "+node.Name)
			}
		}
		node.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}
		now := time.Now()
		return show(p, l, []v1.Node{*node}, len(names) == 1, "node/"+ui.Clean(node.Name)+"\n",
			func(all []v1.Node) any { return ui.ListOf(all) }, func(all []v1.Node) ui.Grid { return ui.NodeGrid(all, l.columns, now) })
	}
	return cmd
}

func (p *program) getImagesCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "images [NAME...]",
		Aliases: []string{"image", "img"},
		Short:   "Show the images that the container runtime has",
		Long: `Show the images that the container runtime has, when each was last in use, and
the pods and containers that use it. Without an agent, get asks the runtime.`,
		Example: `  nodectl get images
  nodectl get images --sort-by .size -o wide`,
	}
	cmd.ValidArgsFunction = p.completeImages
	l := addListing(cmd)
	endpoint := p.addEndpoint(cmd)
	cmd.RunE = func(cmd *cobra.Command, names []string) error {
		c, err := endpoint.client()
		if err != nil {
			return err
		}
		images, err := p.images(cmd.Context(), c)
		if err != nil {
			return err
		}
		d, missing := imagesCalled(ui.NewImageList(images), names)
		if l.sortBy != "" {
			if err := ui.Sort(d.Items, l.sortBy); err != nil {
				return failed(exitFailure, err)
			}
		}
		if len(d.Items) == 0 && len(names) == 0 && l.format.Table() {
			p.say(p.err.Notice("no images on this node"))
		}
		err = show(p, l, d.Items, len(names) == 1 && len(d.Items) == 1, ui.ImageNames(d),
			func([]ui.ImageItem) any { return d }, func([]ui.ImageItem) ui.Grid { return ui.ImageGrid(d, l.columns, time.Now()) })
		for _, name := range missing {
			p.say(p.err.Error("image " + name + " not found"))
		}
		if err == nil && len(missing) > 0 {
			return ended(exitFailure)
		}
		return err
	}
	return cmd
}

// images returns the images of the node: from its agent, or without one, from the runtime.
func (p *program) images(ctx context.Context, c *client.Client) ([]ui.ImageItem, error) {
	var answer struct {
		Images []ui.ImageItem `json:"images"`
	}
	err := c.Document(ctx, "/v1/images", nil, &answer)
	if err != nil && c.Local() && client.IsAbsent(err) {
		return p.lookAtImages(ctx)
	}
	return answer.Images, clientError(err)
}

// imagesCalled returns the images that match one of the names, or all if there are no
// names, and the names without a match.
func imagesCalled(d ui.ImageList, names []string) (ui.ImageList, []string) {
	if len(names) == 0 {
		return d, nil
	}
	missing := slices.Clone(names)
	d.Items = slices.DeleteFunc(d.Items, func(it ui.ImageItem) bool {
		gone := true
		for _, n := range names {
			if it.Called(n) {
				gone = false
				missing = slices.DeleteFunc(missing, func(m string) bool { return m == n })
			}
		}
		return gone
	})
	return d, missing
}
