package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"regexp"
	"slices"
	"strings"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/hack/images/archive"
	"github.com/nodectl/nodectl/test/node"
)

// A shop is a registry on loopback. Below private/ it requires a user and a password.
type shop struct {
	address string
	digests map[string]string // of its images, by name
	server  *http.Server
	done    chan error
}

// image finds what a case names of the registry: the rest of the reference.
var image = regexp.MustCompile(`\$REGISTRY/([a-z/-]+)(:[a-z0-9-]+)?`)

// openRegistry opens a registry with every image that the cases name, except those whose name
// says that there is none. All are the stamp image, each with its own label: removing an
// image removes all its names.
func openRegistry(cases []*Case) (*shop, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	inner := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	s := &shop{address: l.Addr().String(), digests: map[string]string{}, done: make(chan error, 1)}
	s.server = &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		user, password, _ := q.BasicAuth()
		if strings.HasPrefix(q.URL.Path, "/v2/private/") && (user != "user" || password != "password") {
			w.Header().Set("WWW-Authenticate", `Basic realm="parity"`)
			http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}`, http.StatusUnauthorized)
			return
		}
		inner.ServeHTTP(w, q)
	})}
	go func() { s.done <- s.server.Serve(l) }() // close waits for it
	for _, rest := range named(cases) {
		if err := s.push(rest); err != nil {
			return nil, errors.Join(err, s.close())
		}
	}
	return s, nil
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

func (s *shop) push(rest string) error {
	archives, err := node.Images()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(archives, func(a archive.Archive) bool { return a.Ref == node.Stamp })
	if i < 0 {
		return fmt.Errorf("there is no %s", node.Stamp)
	}
	stamp, err := tarball.ImageFromPath(archives[i].File, nil)
	if err != nil {
		return err
	}
	config, err := stamp.ConfigFile()
	if err != nil {
		return err
	}
	own := config.Config
	own.Labels = map[string]string{"parity": rest}
	if stamp, err = mutate.Config(stamp, own); err != nil {
		return err
	}
	digest, err := stamp.Digest()
	if err != nil {
		return err
	}
	s.digests[rest] = digest.String()
	to, err := name.ParseReference(s.address+"/"+rest, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(to, stamp, remote.WithAuth(&authn.Basic{Username: "user", Password: "password"}))
}

func (s *shop) close() error {
	err := s.server.Close()
	if served := <-s.done; !errors.Is(served, http.ErrServerClosed) {
		err = errors.Join(err, served)
	}
	return err
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
