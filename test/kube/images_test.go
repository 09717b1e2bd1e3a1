package kube

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/google/go-containerregistry/pkg/compression"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/nodectl/nodectl/test/node"
)

// The images in addition to those of bin/images.
const (
	busybox       = "nodectl.dev/test/busybox:1"
	coreDNS       = "nodectl.dev/test/coredns:1"
	metricsServer = "nodectl.dev/test/metrics-server:1"
)

// importImages makes images of the programs that run in the cluster, and imports them on the
// node.
func (w *world) importImages() {
	w.Helper()
	dir := w.TempDir()
	shell, err := exec.LookPath("busybox")
	if err != nil {
		w.Fatalf("a test with a shell in its pods needs busybox-static: run hack/sysdeps: %v", err)
	}
	applets, err := exec.Command(shell, "--list").Output()
	if err != nil {
		w.Fatal(err)
	}
	links := map[string]string{}
	for _, a := range strings.Fields(string(applets)) {
		if a != "busybox" {
			links["bin/"+a] = "busybox"
		}
	}
	bin := filepath.Join(node.Repo(), "bin/cluster")
	var files []string
	for ref, of := range map[string]struct {
		program string
		links   map[string]string
		command []string
	}{
		busybox:       {shell, links, []string{"/bin/sh"}},
		coreDNS:       {filepath.Join(bin, "coredns"), nil, []string{"/bin/coredns"}},
		metricsServer: {filepath.Join(bin, "metrics-server"), nil, []string{"/bin/metrics-server"}},
		kubectlImage:  {filepath.Join(bin, "kubectl"), nil, []string{"/bin/kubectl"}},
	} {
		file := filepath.Join(dir, strings.NewReplacer("/", "-", ":", "-").Replace(ref)+".tar")
		if err := writeImage(file, ref, of.program, of.links, of.command); err != nil {
			w.Fatal(err)
		}
		files = append(files, file)
	}
	w.machine.Import(w, files...)
}

// writeImage writes an image of one program, links to it and the files that a shell expects.
func writeImage(file, ref, program string, links map[string]string, command []string) error {
	text, err := os.ReadFile(program)
	if err != nil {
		return fmt.Errorf("%w: run make test-cluster-bin", err)
	}
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	put := func(h tar.Header, body []byte) {
		if err == nil {
			h.Size = int64(len(body))
			err = out.WriteHeader(&h)
		}
		if err == nil {
			_, err = out.Write(body)
		}
	}
	for _, d := range []string{"bin", "etc", "root", "tmp", "var"} {
		mode := int64(0o755)
		if d == "tmp" {
			mode = 0o1777
		}
		put(tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: mode}, nil)
	}
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/passwd", Mode: 0o644}, []byte("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "etc/group", Mode: 0o644}, []byte("root:x:0:\nnogroup:x:65534:\n"))
	put(tar.Header{Typeflag: tar.TypeReg, Name: "bin/" + filepath.Base(program), Mode: 0o755}, text)
	for link, to := range links {
		put(tar.Header{Typeflag: tar.TypeSymlink, Name: link, Linkname: to, Mode: 0o777}, nil)
	}
	if err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	made, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer.Bytes())), nil },
		tarball.WithCompression(compression.None))
	if err != nil {
		return err
	}
	image, err := mutate.AppendLayers(empty.Image, made)
	if err != nil {
		return err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return err
	}
	config.OS, config.Architecture = "linux", runtime.GOARCH
	config.Config.Cmd, config.Config.Env = command, []string{"PATH=/bin"}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return err
	}
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	return tarball.WriteToFile(file, tag, image)
}
