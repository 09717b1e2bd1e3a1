package bundle

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	leases "github.com/containerd/containerd/api/services/leases/v1"
	streaming "github.com/containerd/containerd/api/services/streaming/v1"
	transfer "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

// errNoTransfer says that the runtime is no containerd, or one before 1.7.
var errNoTransfer = errors.New("the container runtime does not import image archives; containerd 1.7 and later does")

// chunk is the size of one message: containerd opens its window by twice as much.
const chunk = 32 << 10

// importArchive sends an image archive to containerd's transfer service, which unpacks it
// for its default snapshotter and stores its images. It returns the names of the images,
// none if the archive has no names. repository completes names that are only a tag; all, if
// it is not empty, names the whole archive.
//
// The service reads the archive, and writes its progress, on two streams that the request
// names.
func (c *conn) importArchive(ctx context.Context, in io.Reader, repository, all string) ([]string, error) {
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace))
	defer cancel()
	ctx, release, err := c.lease(ctx)
	if err != nil {
		return nil, err
	}
	defer release()
	input, err := c.stream(ctx, "nodectl-import-"+rand.Text())
	if err != nil {
		return nil, err
	}
	progress, err := c.stream(ctx, "nodectl-progress-"+rand.Text())
	if err != nil {
		return nil, err
	}
	platform := &types.Platform{OS: "linux", Architecture: runtime.GOARCH}
	req := &transfer.TransferRequest{Options: &transfer.TransferOptions{ProgressStream: progress.id}}
	if req.Source, err = pack(&transfertypes.ImageImportStream{Stream: input.id}); err != nil {
		return nil, err
	}
	if req.Destination, err = pack(&transfertypes.ImageStore{
		Name:            all,
		Platforms:       []*types.Platform{platform},
		Unpacks:         []*transfertypes.UnpackConfiguration{{Platform: platform}},
		ExtraReferences: []*transfertypes.ImageReference{{Name: repository, IsPrefix: true, AllowOverwrite: true}},
	}); err != nil {
		return nil, err
	}

	var sent error     // written by the sender, read after it ended
	var saved []string // written by the listener, read after it ended
	var sender, listener sync.WaitGroup
	sender.Go(func() { sent = input.send(in) })
	listener.Go(func() { saved = progress.saved() })
	_, err = transfer.NewTransferClient(c).Transfer(ctx, req)
	if err != nil {
		cancel() // no progress will come
	}
	// containerd closes the stream after its last message, and does not read bytes after the end of
	// an archive. The limit is generous: on a machine that stalls for a moment the names of the
	// images still arrive.
	late := time.AfterFunc(5*callLimit, cancel)
	listener.Wait()
	whole := late.Stop()
	cancel()
	sender.Wait()
	if sent != nil {
		return nil, fmt.Errorf("read: %w", sent)
	}
	if err != nil {
		return nil, transferError(err)
	}
	if !whole {
		return nil, status.Error(codes.Unavailable, "the runtime does not report what it has imported")
	}
	slices.Sort(saved)
	return slices.Compact(saved), nil
}

// lease returns a context in which containerd's garbage collector keeps all new objects,
// streams too: right after its first start containerd would collect those. If release is
// not called, the lease expires.
func (c *conn) lease(ctx context.Context) (_ context.Context, release func(), err error) {
	const longest = 24 * time.Hour
	api := leases.NewLeasesClient(c)
	resp, err := api.Create(ctx, &leases.CreateRequest{
		ID:     "nodectl-import-" + rand.Text(),
		Labels: map[string]string{"containerd.io/gc.expire": time.Now().Add(longest).UTC().Format(time.RFC3339)},
	})
	if err != nil {
		return ctx, nil, transferError(err)
	}
	release = func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		defer cancel()
		_, _ = api.Delete(ctx, &leases.DeleteRequest{ID: resp.GetLease().GetID()}) // else it expires
	}
	return metadata.AppendToOutgoingContext(ctx, "containerd-lease", resp.GetLease().GetID()), release, nil
}

// A stream is one of containerd's numbered streams.
type stream struct {
	grpc.BidiStreamingClient[anypb.Any, anypb.Any]
	id string
}

// stream opens a stream that requests can name by id.
func (c *conn) stream(ctx context.Context, id string) (stream, error) {
	s, err := streaming.NewStreamingClient(c).Stream(ctx)
	if err != nil {
		return stream{}, transferError(err)
	}
	hello, err := pack(&streaming.StreamInit{ID: id})
	if err != nil {
		return stream{}, err
	}
	if err := s.Send(hello); err != nil && err != io.EOF {
		return stream{}, transferError(err)
	}
	if _, err := s.Recv(); err != nil { // the other side has registered the name
		return stream{}, transferError(err)
	}
	return stream{s, id}, nil
}

// send sends in as fast as the other side makes room, and returns errors from reading it.
// If the other side ends the stream, that is no error here: its own answer says why.
func (s stream) send(in io.Reader) error {
	defer func() { _ = s.CloseSend() }() // fails only if the stream has ended
	buf := make([]byte, chunk)
	for room := 0; ; {
		for room <= 0 {
			msg, err := s.Recv()
			if err != nil {
				return nil
			}
			var window transfertypes.WindowUpdate
			if unpackAny(msg, &window) {
				room += int(window.Update)
			}
		}
		n, err := in.Read(buf[:min(chunk, room)])
		if n > 0 {
			room -= n
			msg, perr := pack(&transfertypes.Data{Data: buf[:n]})
			if perr != nil {
				return perr
			}
			if s.Send(msg) != nil {
				return nil
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// saved reads until the other side has finished and returns the names of the images it
// stored.
func (s stream) saved() []string {
	var names []string
	for {
		msg, err := s.Recv()
		if err != nil {
			return names
		}
		var p transfertypes.Progress
		if unpackAny(msg, &p) && p.Event == "saved" {
			names = append(names, p.Name)
		}
	}
}

// pack wraps m in an Any with its plain name: containerd's types have no host in their URL.
func pack(m proto.Message) (*anypb.Any, error) {
	value, err := proto.Marshal(m)
	if err != nil {
		return nil, err
	}
	return &anypb.Any{TypeUrl: string(m.ProtoReflect().Descriptor().FullName()), Value: value}, nil
}

// unpackAny fills m if msg has its type.
func unpackAny(msg *anypb.Any, m proto.Message) bool {
	name := msg.GetTypeUrl()[strings.LastIndex(msg.GetTypeUrl(), "/")+1:]
	return name == string(m.ProtoReflect().Descriptor().FullName()) && proto.Unmarshal(msg.GetValue(), m) == nil
}

// transferError turns containerd's error into one line.
func transferError(err error) error {
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	switch s.Code() {
	case codes.Unimplemented:
		return errNoTransfer
	case codes.Unavailable: // callers try again
		return err
	}
	for _, known := range []struct{ part, words string }{
		{"unexpected EOF", "it is truncated"},
		{"unrecognized image format", "it is not an image archive"},
		{"invalid tar header", "it is not an image archive"},
		{"might be filtered out", "it has no image for linux/" + runtime.GOARCH},
	} {
		if strings.Contains(s.Message(), known.part) {
			return errors.New(known.words)
		}
	}
	return errors.New(s.Message())
}

// importPause makes the image of the pods' sandboxes known to CRI. Its unpacked layer
// survives restarts, so that most starts only check for it.
func (r *Runtime) importPause(ctx context.Context, bin string) error {
	m, err := r.manifestAt(bin)
	if err != nil {
		return err
	}
	c, err := dial(r.Endpoint())
	if err != nil {
		return err
	}
	defer c.Close()
	// Every sandbox runs this image, so its name alone does not prove it: an archive or a
	// pull can have given the name to another image.
	id, err := c.answers(ctx, m.PauseImage)
	if err != nil || id != "" && (id == m.PauseID || m.PauseID == "") {
		return err
	}
	if _, err := c.importPath(ctx, filepath.Join(bin, "pause.tar")); err != nil {
		return fmt.Errorf("import the pause image: %w", err)
	}
	return c.awaitImage(ctx, m.PauseImage, m.PauseID)
}

// answers is imageID for a containerd that has just started: it retries until startLimit.
func (c *conn) answers(ctx context.Context, ref string) (string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the runtime does not report whether it has %s", ref))
	defer cancel()
	return c.ask(ctx, ref)
}

// ask is imageID with retries until ctx ends. It retries a call that exceeded its deadline,
// as on a machine that stalls for a moment, and, for up to callLimit, a broken connection.
func (c *conn) ask(ctx context.Context, ref string) (string, error) {
	var broken time.Time // since when; zero if it has not been
	for {
		id, err := c.imageID(ctx, ref)
		switch code := status.Code(err); {
		case code == codes.DeadlineExceeded:
		case code == codes.Unavailable && broken.IsZero():
			broken = time.Now()
		case code == codes.Unavailable && time.Since(broken) < callLimit:
		default:
			return id, err
		}
		if err := pause(ctx, startPoll); err != nil {
			return "", err
		}
	}
}

// awaitImages waits until CRI lists the images, which it learns of by an event.
func (c *conn) awaitImages(ctx context.Context, names []string) error {
	for _, name := range names {
		if err := c.awaitImage(ctx, name, ""); err != nil {
			return err
		}
	}
	return nil
}

// awaitImage waits until CRI lists the image with that ID, "" for any.
func (c *conn) awaitImage(ctx context.Context, name, want string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("the runtime does not list %s", name))
	defer cancel()
	for {
		id, err := c.ask(ctx, name)
		if err != nil || id != "" && (want == "" || id == want) {
			return err
		}
		if err := pause(ctx, startPoll); err != nil {
			return err
		}
	}
}
