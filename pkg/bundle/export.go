package bundle

import (
	"archive/tar"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	transfer "github.com/containerd/containerd/api/services/transfer/v1"
	"github.com/containerd/containerd/api/types"
	transfertypes "github.com/containerd/containerd/api/types/transfer"
	"google.golang.org/grpc/metadata"

	"github.com/nodectl/nodectl/pkg/atomicfile"
)

// Export writes an archive of images, by their full names, as the containerd behind endpoint
// has them: an OCI layout with a manifest.json for docker load. Without an error the archive
// is whole.
func Export(ctx context.Context, endpoint string, names []string, to io.Writer) error {
	c, err := dial(endpoint)
	if err != nil {
		return err
	}
	defer c.Close()
	ctx, cancel := context.WithCancel(metadata.AppendToOutgoingContext(ctx, "containerd-namespace", namespace))
	defer cancel()
	output, err := c.stream(ctx, "nodectl-export-"+rand.Text())
	if err != nil {
		return err
	}
	source := &transfertypes.ImageStore{Name: names[0]}
	for _, name := range names[1:] {
		source.ExtraReferences = append(source.ExtraReferences, &transfertypes.ImageReference{Name: name})
	}
	req := &transfer.TransferRequest{Options: &transfer.TransferOptions{}}
	if req.Source, err = pack(source); err != nil {
		return err
	}
	if req.Destination, err = pack(&transfertypes.ImageExportStream{
		Stream: output.id, Platforms: []*types.Platform{{OS: "linux", Architecture: runtime.GOARCH}},
	}); err != nil {
		return err
	}
	var received error // written by the receiver, read after it ended
	var receiver sync.WaitGroup
	receiver.Go(func() {
		if received = wholeArchive(io.TeeReader(&download{stream: output}, to)); received != nil {
			cancel() // containerd would wait for room
		}
	})
	_, err = transfer.NewTransferClient(c).Transfer(ctx, req)
	if err != nil && ctx.Err() == nil {
		cancel()
		receiver.Wait()
		return exportError(err)
	}
	// The answer may arrive before the last bytes, which containerd has sent by then.
	late := time.AfterFunc(5*callLimit, cancel)
	defer late.Stop()
	receiver.Wait()
	return received
}

// ExportFile is Export into a file of mode 0600, which after an error is as it was, or into a
// device or FIFO. It follows no link: another user may have put one into the directory.
func ExportFile(ctx context.Context, endpoint string, names []string, path string) error {
	return writeArchive(path, func(to io.Writer) error { return Export(ctx, endpoint, names, to) })
}

func writeArchive(path string, write func(io.Writer) error) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist), err == nil && info.Mode().IsRegular():
		return atomicfile.WriteBy(path, atomicfile.Options{}, write)
	case err != nil:
		return err
	}
	to, err := os.OpenFile(path, os.O_WRONLY|syscall.O_NOFOLLOW, 0)
	if errors.Is(err, syscall.ELOOP) {
		return fmt.Errorf("%s is a link: name the file itself", path)
	}
	if err != nil {
		return err
	}
	if info, err = to.Stat(); err == nil && info.Mode().IsRegular() {
		err = fmt.Errorf("%s has changed: try again", path)
	}
	if err == nil {
		err = write(to)
	}
	return errors.Join(err, to.Close())
}

// wholeArchive reads a tar archive to its end, which the stream itself does not have.
func wholeArchive(from io.Reader) error {
	for archive := tar.NewReader(from); ; {
		switch _, err := archive.Next(); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
	}
}

// download reads the data of a stream, and sends window updates for more.
type download struct {
	stream stream
	room   int
	rest   []byte
}

// Read implements io.Reader. The end of the stream is an error: an archive has its own.
func (d *download) Read(p []byte) (int, error) {
	for len(d.rest) == 0 {
		if d.room < chunk {
			msg, err := pack(&transfertypes.WindowUpdate{Update: 2 * chunk})
			if err != nil {
				return 0, err
			}
			if err := d.stream.Send(msg); err != nil {
				return 0, io.ErrUnexpectedEOF
			}
			d.room += 2 * chunk
		}
		msg, err := d.stream.Recv()
		if err != nil {
			return 0, io.ErrUnexpectedEOF
		}
		var data transfertypes.Data
		if unpackAny(msg, &data) {
			d.rest = data.Data
			d.room -= len(d.rest)
		}
	}
	n := copy(p, d.rest)
	d.rest = d.rest[n:]
	return n, nil
}

// exportError turns containerd's error into one line.
func exportError(err error) error {
	err = transferError(err)
	switch {
	case errors.Is(err, errNoTransfer):
		return errors.New("the container runtime does not export images; containerd 1.7 and later does")
	case strings.Contains(err.Error(), "content digest"): // the pull discarded it, or it was for another machine
		return fmt.Errorf("the runtime does not keep the layers as they were pulled: %w", err)
	}
	return err
}
