package bundle_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/klauspost/compress/zstd"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

func TestMain(m *testing.M) { os.Exit(node.Main(m)) }

// image returns an image that no other test has.
func image(t *testing.T, arch string) v1.Image {
	t.Helper()
	img, err := random.Image(1<<20, 2)
	if err != nil {
		t.Fatal(err)
	}
	img, err = mutate.ConfigFile(img, config(t, img, arch))
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func config(t *testing.T, img v1.Image, arch string) *v1.ConfigFile {
	t.Helper()
	c, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", arch
	return c
}

// docker returns an archive as docker save writes it.
func docker(t *testing.T, ref string, img v1.Image) []byte {
	t.Helper()
	tag, err := name.NewTag(ref)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := tarball.Write(tag, img, &b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// oci returns an OCI archive, as skopeo and buildah write it.
func oci(t *testing.T, img v1.Image, annotations map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(annotations)); err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// put writes an archive that looks as if it had been there before.
func put(t *testing.T, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(path, past, past); err != nil {
		t.Fatal(err)
	}
}

func compress(t *testing.T, content []byte, w io.WriteCloser, b *bytes.Buffer) []byte {
	t.Helper()
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func gzipped(t *testing.T, content []byte) []byte {
	var b bytes.Buffer
	return compress(t, content, gzip.NewWriter(&b), &b)
}

func zstded(t *testing.T, content []byte) []byte {
	var b bytes.Buffer
	z, err := zstd.NewWriter(&b)
	if err != nil {
		t.Fatal(err)
	}
	return compress(t, content, z, &b)
}

// has reports whether CRI lists the image.
func has(t *testing.T, n *node.Node, ref string) bool {
	t.Helper()
	r, err := n.Images.ImageStatus(t.Context(), &cri.ImageStatusRequest{Image: &cri.ImageSpec{Image: ref}})
	if err != nil {
		t.Fatal(err)
	}
	return r.Image != nil
}

func remove(t *testing.T, n *node.Node, ref string) {
	t.Helper()
	if _, err := n.Images.RemoveImage(t.Context(), &cri.RemoveImageRequest{Image: &cri.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
}

// lines is a log that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) count(s string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), s)
}

func images(t *testing.T, n *node.Node, dir string) (*bundle.Images, *lines) {
	t.Helper()
	log := &lines{}
	return bundle.NewImages(bundle.ImagesConfig{
		Dir: dir, Endpoint: n.Endpoint, Memory: filepath.Join(dir, ".memory"), Log: slog.New(slog.NewTextHandler(log, nil)),
	}), log
}

func TestImagesOfEveryKindOfArchive(t *testing.T) {
	n, dir := node.Shared(t), t.TempDir()
	img := image(t, runtime.GOARCH)
	const ref = "org.opencontainers.image.ref.name"
	put(t, filepath.Join(dir, "docker.tar"), docker(t, "nodectl.dev/test/docker:1", img))
	put(t, filepath.Join(dir, "short.tar"), docker(t, "short:1", img))
	put(t, filepath.Join(dir, "gz.tar.gz"), gzipped(t, docker(t, "nodectl.dev/test/gz:1", img)))
	put(t, filepath.Join(dir, "tgz.tgz"), gzipped(t, docker(t, "nodectl.dev/test/tgz:1", img)))
	put(t, filepath.Join(dir, "zst.tar.zst"), zstded(t, docker(t, "nodectl.dev/test/zst:1", img)))
	put(t, filepath.Join(dir, "oci.tar"), oci(t, img, map[string]string{ref: "nodectl.dev/test/oci:1"}))
	put(t, filepath.Join(dir, "tag-only.tar"), oci(t, img, map[string]string{ref: "v1"}))
	put(t, filepath.Join(dir, "nameless.tar"), oci(t, img, nil))
	put(t, filepath.Join(dir, "notes.txt"), []byte("no archive"))
	m, log := images(t, n, dir)
	if err := m.Import(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"nodectl.dev/test/docker:1", "docker.io/library/short:1", "short:1", "nodectl.dev/test/gz:1", "nodectl.dev/test/tgz:1",
		"nodectl.dev/test/zst:1", "nodectl.dev/test/oci:1", "localhost/tag-only:v1", "localhost/nameless:latest",
	} {
		if !has(t, n, want) {
			t.Errorf("%s is not there", want)
		}
	}
	if got := log.count("names no image"); got != 2 {
		t.Errorf("%d notices about archives without a name, want 2:\n%s", got, &log.b)
	}
}

func TestImagesThatCannotBeImported(t *testing.T) {
	n, dir := node.Shared(t), t.TempDir()
	whole := docker(t, "nodectl.dev/test/whole:1", image(t, runtime.GOARCH))
	put(t, filepath.Join(dir, "cut.tar"), whole[:len(whole)/2])
	put(t, filepath.Join(dir, "empty.tar"), nil)
	put(t, filepath.Join(dir, "foreign.tar"), docker(t, "nodectl.dev/test/foreign:1", image(t, "s390x")))
	put(t, filepath.Join(dir, "text.tar"), []byte(strings.Repeat("no archive\n", 100)))
	put(t, filepath.Join(dir, "whole.tar"), whole)
	m, _ := images(t, n, dir)
	err := m.Import(t.Context())
	if err == nil {
		t.Fatal("no error")
	}
	got := strings.Split(err.Error(), "\n")
	if len(got) != 4 {
		t.Errorf("want one line for each of 4 archives:\n%s", err)
	}
	for i, want := range []string{
		"cut.tar: it is truncated", "empty.tar: it is not an image archive",
		"foreign.tar: it has no image for linux/" + runtime.GOARCH, "text.tar: it is not an image archive",
	} {
		if i < len(got) && got[i] != filepath.Join(dir, want) {
			t.Errorf("line %d is %q, want %q", i, got[i], want)
		}
	}
	if !has(t, n, "nodectl.dev/test/whole:1") {
		t.Error("the whole archive was not imported")
	}
	if err := m.Import(t.Context()); err != nil {
		t.Errorf("said again: %v", err)
	}
}

func TestImagesAreImportedOnce(t *testing.T) {
	n, dir := node.Shared(t), t.TempDir()
	const ref = "nodectl.dev/test/once:1"
	put(t, filepath.Join(dir, "once.tar"), docker(t, ref, image(t, runtime.GOARCH)))
	for _, c := range []struct {
		name   string
		before func()
		want   int
	}{
		{"first", func() {}, 1},
		{"after a restart", func() {}, 0},
		{"when the runtime lost it", func() { remove(t, n, ref) }, 1},
		{"when the file changed", func() { put(t, filepath.Join(dir, "once.tar"), docker(t, ref, image(t, runtime.GOARCH))) }, 1},
		{"when memory is lost", func() { os.Remove(filepath.Join(dir, ".memory")) }, 1},
	} {
		c.before()
		m, log := images(t, n, dir)
		if err := m.Import(t.Context()); err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		if got := log.count("Imported images"); got > c.want || got < c.want && c.name != "when the file changed" {
			t.Errorf("%s: imported %d times, want %d", c.name, got, c.want)
		}
		if !has(t, n, ref) {
			t.Errorf("%s: the image is not there", c.name)
		}
	}
}

// TestImagesWatch: archives that appear by rename, or are written slowly, are imported when
// they are complete.
func TestImagesWatch(t *testing.T) {
	n, dir := node.Shared(t), t.TempDir()
	m, _ := images(t, n, dir)
	ctx, cancel := context.WithCancel(t.Context())
	var watch sync.WaitGroup
	watch.Go(func() {
		if err := m.Watch(ctx); err != nil {
			t.Error(err)
		}
	})
	defer watch.Wait()
	defer cancel()

	put(t, filepath.Join(dir, ".new"), docker(t, "nodectl.dev/test/renamed:1", image(t, runtime.GOARCH)))
	if err := os.Rename(filepath.Join(dir, ".new"), filepath.Join(dir, "renamed.tar")); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error { return present(t, n, "nodectl.dev/test/renamed:1") })

	// While a slow writer has written part of its file, other files are imported.
	const slow = "nodectl.dev/test/slow:1"
	f, err := os.Create(filepath.Join(dir, "slow.tar"))
	if err != nil {
		t.Fatal(err)
	}
	content, part := docker(t, slow, image(t, runtime.GOARCH)), 0
	for b := range slices.Chunk(content, len(content)/3+1) {
		if _, err := f.Write(b); err != nil {
			t.Fatal(err)
		}
		part++
		other := fmt.Sprintf("nodectl.dev/test/other:%d", part)
		put(t, filepath.Join(dir, fmt.Sprintf("other-%d.tar", part)), docker(t, other, image(t, runtime.GOARCH)))
		wait.NoError(t, func() error { return present(t, n, other) })
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	wait.NoError(t, func() error { return present(t, n, slow) })
}

func present(t *testing.T, n *node.Node, ref string) error {
	if !has(t, n, ref) {
		return fs.ErrNotExist
	}
	return nil
}
