package bundle

import (
	"context"
	"errors"
	"io"
	"strings"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	imagesapi "github.com/containerd/containerd/api/services/images/v1"
	snapshotsapi "github.com/containerd/containerd/api/services/snapshots/v1"
	"google.golang.org/grpc/metadata"
)

// Layer is a part of images in containerd that lies on the disk once: a blob as it was
// pulled, or a layer as it was unpacked.
type Layer struct {
	ID            string
	Bytes, Inodes int64
}

// Layers returns the parts of each image, by the image's ID. containerd's own garbage collection
// keeps these for the image, and frees content that no image has any more. It fails if the runtime
// is not containerd.
func Layers(ctx context.Context, endpoint string) (map[string][]Layer, error) {
	c, err := dial(endpoint)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace), 5*callLimit)
	defer cancel()
	images, err := imagesapi.NewImagesClient(c).List(ctx, &imagesapi.ListImagesRequest{})
	if err != nil {
		return nil, err
	}
	blobs, err := c.blobs(ctx)
	if err != nil {
		return nil, err
	}
	snapshots := snapshots{c: c, known: map[string]snapshot{}}
	all := map[string][]Layer{}
	for _, i := range images.GetImages() {
		if !strings.HasPrefix(i.GetName(), "sha256:") { // CRI has an entry by ID for every image
			continue
		}
		if all[i.GetName()], err = snapshots.layers(ctx, blobs, i.GetTarget().GetDigest()); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// blobs returns all content by its digest.
func (c *conn) blobs(ctx context.Context) (map[string]*contentapi.Info, error) {
	list, err := contentapi.NewContentClient(c).List(ctx, &contentapi.ListContentRequest{})
	if err != nil {
		return nil, err
	}
	all := map[string]*contentapi.Info{}
	for {
		some, err := list.Recv()
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, info := range some.GetInfo() {
			all[info.GetDigest()] = info
		}
	}
}

// snapshots reads unpacked layers, each once.
type snapshots struct {
	c     *conn
	known map[string]snapshot
}

type snapshot struct {
	Layer
	parent string
}

// containerd's labels on content that name other content to keep.
const (
	keepsContent  = "containerd.io/gc.ref.content"
	keepsSnapshot = "containerd.io/gc.ref.snapshot."
)

// layers returns the content to which an image refers, beginning with its top object. Parts of an
// index for other machines are not there.
func (s snapshots) layers(ctx context.Context, blobs map[string]*contentapi.Info, top string) ([]Layer, error) {
	all := []Layer{}
	seen := map[string]bool{}
	todo := []string{top}
	for len(todo) > 0 {
		digest := todo[0]
		todo = todo[1:]
		info := blobs[digest]
		if info == nil || seen[digest] {
			continue
		}
		seen[digest] = true
		all = append(all, Layer{ID: digest, Bytes: info.GetSize(), Inodes: 1})
		for label, value := range info.GetLabels() {
			if strings.HasPrefix(label, keepsContent) {
				todo = append(todo, value)
			}
			if snapshotter, ok := strings.CutPrefix(label, keepsSnapshot); ok {
				chain, err := s.chain(ctx, snapshotter, value)
				if err != nil {
					return nil, err
				}
				all = append(all, chain...)
			}
		}
	}
	return all, nil
}

// chain returns an unpacked layer with all below it.
func (s snapshots) chain(ctx context.Context, snapshotter, key string) ([]Layer, error) {
	snapshotter, _, _ = strings.Cut(snapshotter, "/") // several of one snapshotter are numbered
	api := snapshotsapi.NewSnapshotsClient(s.c)
	var all []Layer
	for key != "" {
		id := snapshotter + " " + key
		it, ok := s.known[id]
		if !ok {
			stat, err := api.Stat(ctx, &snapshotsapi.StatSnapshotRequest{Snapshotter: snapshotter, Key: key})
			if err != nil {
				return nil, err
			}
			usage, err := api.Usage(ctx, &snapshotsapi.UsageRequest{Snapshotter: snapshotter, Key: key})
			if err != nil {
				return nil, err
			}
			it = snapshot{Layer{ID: id, Bytes: usage.GetSize(), Inodes: usage.GetInodes()}, stat.GetInfo().GetParent()}
			s.known[id] = it
		}
		all = append(all, it.Layer)
		key = it.parent
	}
	return all, nil
}
