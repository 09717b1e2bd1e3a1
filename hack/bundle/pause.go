package main

import (
	"archive/tar"
	"bytes"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// pauseImage makes program the only file of an image for linux/arch and saves
// it as an archive that any runtime imports. The layer stays uncompressed: the
// bundle is compressed as a whole.
func pauseImage(out, program, arch string) (id string, err error) {
	content, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	var layer bytes.Buffer
	t := tar.NewWriter(&layer)
	h := &tar.Header{Name: "pause", Mode: 0o755, Size: int64(len(content)), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR}
	if err := t.WriteHeader(h); err != nil {
		return "", err
	}
	if _, err := t.Write(content); err != nil {
		return "", err
	}
	if err := t.Close(); err != nil {
		return "", err
	}

	img, err := mutate.ConfigFile(empty.Image, &v1.ConfigFile{
		OS:           "linux",
		Architecture: arch,
		Config:       v1.Config{Entrypoint: []string{"/pause"}, User: "65535:65535"},
	})
	if err != nil {
		return "", err
	}
	img, err = mutate.Append(img, mutate.Addendum{
		Layer:   static.NewLayer(layer.Bytes(), types.DockerUncompressedLayer),
		History: v1.History{CreatedBy: "hack/bundle"},
	})
	if err != nil {
		return "", err
	}
	tag, err := name.NewTag(pauseRef, name.StrictValidation)
	if err != nil {
		return "", err
	}
	digest, err := img.ConfigName()
	if err != nil {
		return "", err
	}
	return digest.String(), tarball.WriteToFile(out, tag, img)
}
