package bundle

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	"github.com/distribution/reference"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Download is the progress of an image's layers in containerd, in compressed bytes.
type Download struct{ Bytes, Total int64 }

// Downloads reads the progress of containerd's downloads. One goroutine uses it.
type Downloads struct {
	endpoint string
	conn     *conn
	mute     bool // the runtime does not report progress
}

// NewDownloads returns the Downloads of the runtime at endpoint; the first call connects.
func NewDownloads(endpoint string) *Downloads { return &Downloads{endpoint: endpoint} }

// Close closes the connection.
func (d *Downloads) Close() {
	if d.conn != nil {
		d.conn.Close()
	}
}

// mostManifest limits the size of a manifest, as in containerd.
const mostManifest = 4 << 20

// Progress returns the progress of images, by name. An image is left out if its layers are not
// being downloaded now, or if two images of one repository are and cannot be distinguished. It
// fails if the runtime is not containerd.
func (d *Downloads) Progress(ctx context.Context, images []string) (map[string]Download, error) {
	if d.mute {
		return nil, errors.ErrUnsupported
	}
	if d.conn == nil {
		c, err := dial(d.endpoint)
		if err != nil {
			return nil, err
		}
		d.conn = c
	}
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace), callLimit)
	defer cancel()
	api := contentapi.NewContentClient(d.conn)
	all, err := api.ListStatuses(ctx, &contentapi.ListStatusesRequest{})
	if err != nil {
		d.mute = status.Code(err) == codes.Unimplemented
		return nil, err
	}
	arriving := map[string]int64{} // by digest
	for _, s := range all.GetStatuses() {
		if digest, ok := strings.CutPrefix(s.GetRef(), "layer-"); ok {
			arriving[digest] = s.GetOffset()
		}
	}
	if len(arriving) == 0 {
		return nil, nil
	}
	found := map[string]Download{}
	for _, image := range images {
		digest, err := arrivingManifest(ctx, api, image, arriving)
		if err != nil {
			return found, err
		}
		if digest == "" {
			continue
		}
		if found[image], err = far(ctx, api, digest, arriving); err != nil {
			delete(found, image)
			return found, err
		}
	}
	return found, nil
}

// arrivingManifest returns the digest of the one manifest of an image's repository with
// layers in arriving, "" if there is none, or more than one.
func arrivingManifest(ctx context.Context, api contentapi.ContentClient, image string, arriving map[string]int64) (string, error) {
	ref, err := reference.ParseNormalizedNamed(image)
	if err != nil {
		return "", err
	}
	host, err := url.Parse("//" + reference.Domain(ref))
	if err != nil {
		return "", err
	}
	// containerd labels all content with its source host, and manifests with their content.
	source := "containerd.io/distribution.source." + host.Hostname()
	list, err := api.List(ctx, &contentapi.ListContentRequest{Filters: []string{fmt.Sprintf("labels.%q", source)}})
	if err != nil {
		return "", err
	}
	var digests []string
	for {
		some, err := list.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return "", err
		}
		for _, info := range some.GetInfo() {
			if !slices.Contains(strings.Split(info.GetLabels()[source], ","), reference.Path(ref)) {
				continue
			}
			for label, digest := range info.GetLabels() {
				if _, ok := arriving[digest]; ok && strings.HasPrefix(label, "containerd.io/gc.ref.content.l.") {
					digests = append(digests, info.GetDigest())
					break
				}
			}
		}
	}
	if len(digests) != 1 {
		return "", nil
	}
	return digests[0], nil
}

// far adds up the layers of a manifest: those that are complete, and those arriving.
func far(ctx context.Context, api contentapi.ContentClient, digest string, arriving map[string]int64) (Download, error) {
	var d Download
	read, err := api.Read(ctx, &contentapi.ReadContentRequest{Digest: digest})
	if err != nil {
		return d, err
	}
	var js []byte
	for {
		some, err := read.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return d, err
		}
		if js = append(js, some.GetData()...); len(js) > mostManifest {
			return d, errors.New("a manifest is too large")
		}
	}
	var manifest struct {
		Layers []struct {
			Digest string `json:"digest"`
			Size   int64  `json:"size"`
		} `json:"layers"`
	}
	if err := json.Unmarshal(js, &manifest); err != nil {
		return d, err
	}
	for _, layer := range manifest.Layers {
		d.Total += layer.Size
		if bytes, ok := arriving[layer.Digest]; ok {
			d.Bytes += bytes
			continue
		}
		_, err := api.Info(ctx, &contentapi.InfoRequest{Digest: layer.Digest})
		switch status.Code(err) {
		case codes.OK:
			d.Bytes += layer.Size
		case codes.NotFound:
		default:
			return d, err
		}
	}
	return d, nil
}
