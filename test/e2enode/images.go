package main

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	ggcr "github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/arm"
)

// registry is where the suite's images come from. Here they are made from files: programs of
// Kubernetes' modules and a Debian root file system (hack/e2enode).
const registry = "registry.k8s.io/"

// An image is one of the suite's, made from layers.
type image struct {
	refs   []string // below registry
	layers []string
	config v1.Config
}

// images are those that the suite's cases name, as far as they are made here.
var images = []image{
	{[]string{"e2e-test-images/agnhost:2.63.0", "e2e-test-images/agnhost:2.55"}, []string{"debian", "agnhost", "registry"}, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"}}},
	{[]string{"e2e-test-images/busybox:1.37.0-1", "e2e-test-images/busybox:1.36.1-1"}, []string{"busybox"}, v1.Config{Cmd: []string{"sh"}}},
	{[]string{"pause:3.10.2"}, []string{"pause"}, pauseConfig},
	{[]string{"e2e-test-images/nginx:1.15-4", "e2e-test-images/nginx:1.27-0"}, []string{"debian"}, v1.Config{Cmd: []string{"nginx", "-g", "daemon off;"}}},
	{[]string{"e2e-test-images/kitten:1.8"}, []string{"agnhost", "kitten"}, v1.Config{Entrypoint: []string{"/agnhost"}, Cmd: []string{"test-webserver"}}},
	{[]string{"e2e-test-images/perl:5.26", "e2e-test-images/ipc-utils:1.4", "e2e-test-images/glibc-dns-testing:2.0.0"}, []string{"debian"}, v1.Config{Cmd: []string{"sh"}}},
	{[]string{"e2e-test-images/nonroot:1.5"}, []string{"busybox"}, v1.Config{Cmd: []string{"sh"}, User: "1234"}},
	{[]string{"e2e-test-images/sample-device-plugin:1.7"}, []string{"plugin"}, v1.Config{Entrypoint: []string{"/sampledeviceplugin", "-alsologtostderr"}}},
	{[]string{"e2e-test-images/nonewprivs:1.4"}, []string{"busybox", "nonewprivs"}, v1.Config{Cmd: []string{"nnp"}}},
}

var pauseConfig = v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"}

// registryImage is the image that agnhost's fake-registry-server has, pause:testing.
var registryImage = image{[]string{"pause:testing"}, []string{"pause"}, pauseConfig}

// imageArchive is the file that holds all of them.
func imageArchive() string { return bin("images.tar") }

// buildImages makes the archive unless it is newer than its sources.
func buildImages() error {
	archive, err := os.Stat(imageArchive())
	newest := time.Time{}
	for _, input := range []string{bin("agnhost"), bin("nnp"), bin("sampledeviceplugin"), bin("pause"), bin("debian.tar"), bin("busybox.tar"), here("images.go")} {
		s, err := os.Stat(input)
		if err != nil {
			return fmt.Errorf("%w: run hack/e2enode/build", err)
		}
		if s.ModTime().After(newest) {
			newest = s.ModTime()
		}
	}
	if err == nil && archive.ModTime().After(newest) {
		return nil
	}
	arm.Say("making the suite's images")
	dir, err := os.MkdirTemp(bin(), ".layers-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	layers, err := makeLayers(dir)
	if err != nil {
		return err
	}
	all := map[name.Reference]v1.Image{}
	for _, i := range images {
		img, err := i.make(layers)
		if err != nil {
			return err
		}
		for _, ref := range i.refs {
			tag, err := name.NewTag(registry + ref)
			if err != nil {
				return err
			}
			all[tag] = img
		}
	}
	if err := tarball.MultiRefWriteToFile(imageArchive()+".new", all); err != nil {
		return err
	}
	return os.Rename(imageArchive()+".new", imageArchive())
}

// make puts the image together. Its configuration names the first reference, so that no two
// images have the same ID.
func (i image) make(layers map[string]v1.Layer) (v1.Image, error) {
	i.config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	i.config.Labels = map[string]string{"made-for": i.refs[0]}
	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{OS: "linux", Architecture: runtime.GOARCH, Config: i.config})
	if err != nil {
		return nil, err
	}
	for _, l := range i.layers {
		if img, err = mutate.Append(img, mutate.Addendum{Layer: layers[l], History: v1.History{CreatedBy: "test/e2enode"}}); err != nil {
			return nil, err
		}
	}
	return img, nil
}

// makeLayers returns the layers by name.
func makeLayers(dir string) (map[string]v1.Layer, error) {
	agnhost := func(t *tar.Writer) error {
		certs := []string{"localhost.crt", "localhost.key"} // of its porter
		err := errors.Join(add(t, "agnhost", bin("agnhost"), 0o755), link(t, "agnhost-2", "agnhost"), directory(t, "uploads/", 0o755))
		for _, c := range certs {
			err = errors.Join(err, add(t, c, bin(c), 0o644))
		}
		return err
	}
	files := map[string]string{"debian": bin("debian.tar"), "busybox": bin("busybox.tar")}
	for layer, write := range map[string]func(*tar.Writer) error{
		"agnhost":    agnhost,
		"nonewprivs": func(t *tar.Writer) error { return add(t, "usr/local/bin/nnp", bin("nnp"), 0o4755|0o2000) },
		"kitten": func(t *tar.Writer) error {
			return errors.Join(add(t, "data.json", bin("kitten.json"), 0o644), add(t, "kitten.jpg", bin("kitten.jpg"), 0o644),
				add(t, "etc/os-release", here("kitten-os-release"), 0o644))
		},
		"plugin": func(t *tar.Writer) error { return add(t, "sampledeviceplugin", bin("sampledeviceplugin"), 0o755) },
		"pause":  func(t *tar.Writer) error { return add(t, "pause", bin("pause"), 0o755) },
	} {
		files[layer] = filepath.Join(dir, layer+".tar")
		if err := writeTar(files[layer], write); err != nil {
			return nil, fmt.Errorf("layer %s: %w", layer, err)
		}
	}
	layers := map[string]v1.Layer{}
	for layer, file := range files {
		l, err := tarball.LayerFromFile(file)
		if err != nil {
			return nil, fmt.Errorf("layer %s: %w", layer, err)
		}
		layers[layer] = l
	}
	file := filepath.Join(dir, "registry.tar")
	if err := writeTar(file, func(t *tar.Writer) error { return addRegistry(t, layers) }); err != nil {
		return nil, fmt.Errorf("layer registry: %w", err)
	}
	l, err := tarball.LayerFromFile(file)
	if err != nil {
		return nil, fmt.Errorf("layer registry: %w", err)
	}
	layers["registry"] = l
	return layers, nil
}

// addRegistry adds the files that agnhost's fake-registry-server serves, as its prepare_registry.sh
// arranges them: a tag's file holds a digest, a digest's file the manifest or blob.
func addRegistry(t *tar.Writer, layers map[string]v1.Layer) error {
	img, err := registryImage.make(layers)
	if err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	repository, tag, _ := strings.Cut(registryImage.refs[0], ":")
	top := "var/registry/" + repository
	err = errors.Join(addBytes(t, top+"/manifests/"+tag, []byte(digest.String()+"\n")), addBytes(t, registryPath(top+"/manifests", digest), manifest))
	blobs, more := blobsOf(img)
	if err = errors.Join(err, more); err != nil {
		return err
	}
	for _, b := range blobs {
		digest, err := b.Digest()
		if err != nil {
			return err
		}
		r, err := b.Compressed()
		if err != nil {
			return err
		}
		text, err := io.ReadAll(r)
		if err = errors.Join(err, r.Close()); err == nil {
			err = addBytes(t, registryPath(top+"/blobs", digest), text)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// registryPath is the file of a digest below a directory of that registry.
func registryPath(dir string, digest v1.Hash) string {
	return strings.Join([]string{dir, digest.Algorithm, digest.Hex[:2], digest.Hex, "data"}, "/")
}

// blobsOf returns the layers of an image and its configuration.
func blobsOf(img v1.Image) ([]v1.Layer, error) {
	layers, err := img.Layers()
	if err != nil {
		return nil, err
	}
	config, err := partial.ConfigLayer(img)
	return append(layers, config), err
}

func addBytes(t *tar.Writer, to string, text []byte) error {
	err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: 0o644, Size: int64(len(text)), Format: tar.FormatPAX})
	if err == nil {
		_, err = t.Write(text)
	}
	return err
}

func writeTar(file string, write func(*tar.Writer) error) error {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	t := tar.NewWriter(f)
	return errors.Join(write(t), t.Close(), f.Close())
}

// add adds a file of this machine to a layer, with the directories above it.
func add(t *tar.Writer, to, from string, mode int64) error {
	f, err := os.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	s, err := f.Stat()
	if err != nil {
		return err
	}
	if err := t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: to, Mode: mode, Size: s.Size(), Format: tar.FormatPAX}); err != nil {
		return err
	}
	_, err = io.Copy(t, f)
	return err
}

func link(t *tar.Writer, name, to string) error {
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to, Mode: 0o777})
}

func directory(t *tar.Writer, name string, mode int64) error {
	return t.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name, Mode: mode})
}

// pullImages serves the images as their registry does, and lets the runtime pull all of them.
func (s *stage) pullImages(ctx context.Context) error {
	host := s.serve("127.0.0.1:0", nil, ggcr.New(ggcr.Logger(log.New(io.Discard, "", 0))))
	dir := filepath.Join(s.node.RootDir, "runtime/certs.d", strings.TrimSuffix(registry, "/"))
	hosts := fmt.Sprintf("[host.%q]\ncapabilities = [\"pull\", \"resolve\"]\n", "http://"+host)
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts), 0o600)); err != nil {
		return err
	}
	for _, i := range images {
		for _, ref := range i.refs {
			from, err := name.NewTag(registry + ref)
			if err != nil {
				return err
			}
			img, err := tarball.ImageFromPath(imageArchive(), &from)
			if err == nil {
				err = push(img, "http://"+host+"/v2/"+from.Context().RepositoryStr(), from.TagStr())
			}
			if err == nil {
				_, err = s.node.Images.PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: registry + ref}})
			}
			if err != nil {
				return fmt.Errorf("image %s: %w", ref, err)
			}
		}
	}
	return nil
}

// push puts an image into a registry, as its repository.
func push(img v1.Image, repository, tag string) error {
	send := func(method, url, kind string, body io.Reader) error {
		q, err := http.NewRequest(method, url, body)
		if err != nil {
			return err
		}
		q.Header.Set("Content-Type", kind)
		r, err := http.DefaultClient.Do(q)
		if err != nil {
			return err
		}
		defer r.Body.Close()
		if r.StatusCode != http.StatusCreated {
			return fmt.Errorf("%s %s: %s", method, url, r.Status)
		}
		return nil
	}
	blobs, err := blobsOf(img)
	if err != nil {
		return err
	}
	for _, l := range blobs {
		digest, err := l.Digest()
		if err != nil {
			return err
		}
		blob, err := l.Compressed()
		if err == nil {
			err = send(http.MethodPost, repository+"/blobs/uploads/?digest="+digest.String(), "application/octet-stream", blob)
		}
		if err != nil {
			return err
		}
	}
	kind, err := img.MediaType()
	if err != nil {
		return err
	}
	manifest, err := img.RawManifest()
	if err != nil {
		return err
	}
	return send(http.MethodPut, repository+"/manifests/"+tag, string(kind), bytes.NewReader(manifest))
}
