package main

import (
	"cmp"
	"context"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/registry"
)

// image returns the part of a case's image reference after the registry.
var image = regexp.MustCompile(`\$REGISTRY/([a-z/-]+)(:[a-z0-9-]+)?`)

// openRegistry opens a registry with every image that the cases name, except those whose name
// says that there is none, and returns their digests. All are the stamp image, each with its
// own label: removing an image removes all its names. Below private/ it requires a login.
func openRegistry(t testing.TB, cases []*Case) (address string, digests map[string]string) {
	r := registry.New(t, registry.Options{User: "user", Password: "password", Private: "private/"})
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	archives, err := node.Images()
	must(err)
	digests = map[string]string{}
	for _, a := range archives {
		if a.Ref != node.Stamp {
			continue
		}
		stamp, err := tarball.ImageFromPath(a.File, nil)
		must(err)
		config, err := stamp.ConfigFile()
		must(err)
		for _, rest := range named(cases) {
			own := config.Config
			own.Labels = map[string]string{"parity": rest}
			labelled, err := mutate.Config(stamp, own)
			must(err)
			digest, err := labelled.Digest()
			must(err)
			r.PushImage(t, rest, labelled)
			digests[rest] = digest.String()
		}
	}
	return r.Host, digests
}

// named lists the registry's images that cases name.
func named(cases []*Case) []string {
	var all []string
	for _, c := range cases {
		for _, m := range c.manifests {
			for _, found := range image.FindAllStringSubmatch(m, -1) {
				if !strings.Contains(found[1], "none") {
					all = append(all, found[1]+cmp.Or(found[2], ":latest"))
				}
			}
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// removeImages removes the images that an earlier round of a case has pulled.
func (r *run) removeImages(ctx context.Context, c *Case) error {
	for _, rest := range named([]*Case{c}) {
		if err := r.removeImage(ctx, r.registry+"/"+rest); err != nil {
			return err
		}
		repository, _, _ := strings.Cut(rest, ":")
		if err := r.removeImage(ctx, r.registry+"/"+repository+"@"+r.digests[rest]); err != nil {
			return err
		}
	}
	return nil
}

func (r *run) removeImage(ctx context.Context, ref string) error {
	_, err := r.node.Images.RemoveImage(ctx, &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}})
	return err
}
