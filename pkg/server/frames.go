package server

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	wire "github.com/moby/spdystream/spdy"
)

// Limits of the frames that a caller sends. After an upgrade the caller controls every byte,
// also through an API server. The libraries have high limits. They keep 250 SPDY frames of 16 MiB in
// memory for a connection, read 1000 headers of 1 MiB from one compressed frame, and read WebSocket
// frames of 32 MiB whole. client-go sends at most 32 KiB in a frame, and SYN_STREAMs of less than
// 100 bytes with three short headers. Other WebSocket clients send a whole file in one frame.
const (
	maxDataFrame      = 64 << 10
	maxControlFrame   = 1 << 10
	maxHeaders        = 16
	maxHeaderField    = 256
	maxWebSocketFrame = 4 << 20
)

// errFrame is the error for a frame above these limits.
var errFrame = errors.New("frame exceeds a limit")

// controlLengths has the control frames that are allowed beside SYN_STREAM, with their lengths.
// Clients send no others. The library would read the rest of a longer frame as further frames,
// which would bypass the limits.
var controlLengths = map[wire.ControlFrameType]uint32{
	wire.TypeRstStream: 8, wire.TypePing: 4, wire.TypeGoAway: 8, wire.TypeWindowUpdate: 8,
}

// frameReader passes on frames within the limits. It ends with an error at the first other frame.
type frameReader struct {
	from io.Reader
	// next reads the beginning of a frame, and returns it with the number of bytes that follow.
	next func(from io.Reader) (begin []byte, rest int64, err error)

	begin []byte
	rest  int64
	err   error
}

// Read implements io.Reader.
func (r *frameReader) Read(b []byte) (int, error) {
	if len(r.begin) == 0 && r.rest == 0 && r.err == nil {
		if r.begin, r.rest, r.err = r.next(r.from); r.err != nil {
			r.begin, r.rest = nil, 0
		}
	}
	switch {
	case r.err != nil:
		return 0, r.err
	case len(r.begin) > 0:
		n := copy(b, r.begin)
		r.begin = r.begin[n:]
		return n, nil
	}
	n, err := r.from.Read(b[:min(int64(len(b)), r.rest)])
	r.rest -= int64(n)
	return n, err
}

// readWebSocketFrames reads WebSocket frames.
func readWebSocketFrames(from io.Reader) io.Reader {
	return &frameReader{from: from, next: func(from io.Reader) ([]byte, int64, error) {
		header := make([]byte, 14)
		if _, err := io.ReadFull(from, header[:2]); err != nil {
			return nil, 0, err
		}
		length, extended, mask := uint64(header[1]&0x7f), 0, 0
		switch length {
		case 126:
			extended = 2
		case 127:
			extended = 8
		}
		if header[1]&0x80 != 0 {
			mask = 4
		}
		header = header[:2+extended+mask]
		if _, err := io.ReadFull(from, header[2:]); err != nil {
			return nil, 0, err
		}
		switch extended {
		case 2:
			length = uint64(binary.BigEndian.Uint16(header[2:]))
		case 8:
			length = binary.BigEndian.Uint64(header[2:])
		}
		if length > maxWebSocketFrame {
			return nil, 0, fmt.Errorf("%w: WebSocket frame of %d bytes", errFrame, length)
		}
		return header, int64(length), nil
	}}
}

// readSPDYFrames reads SPDY frames with at most streams SYN_STREAMs; a negative number is no
// limit. It checks the whole of a control frame before it passes it on, because the library
// decompresses headers while it reads them.
func readSPDYFrames(from io.Reader, streams int) (io.Reader, error) {
	var frame bytes.Buffer
	// headers keeps the state of the compression from frame to frame.
	headers, err := wire.NewFramerWithOptions(io.Discard, &frame, wire.WithMaxControlFramePayloadSize(maxControlFrame),
		wire.WithMaxHeaderCount(maxHeaders), wire.WithMaxHeaderFieldSize(maxHeaderField))
	return &frameReader{from: from, next: func(from io.Reader) ([]byte, int64, error) {
		header := make([]byte, 8)
		if _, err := io.ReadFull(from, header); err != nil {
			return nil, 0, err
		}
		length := binary.BigEndian.Uint32(header[4:]) & 0xffffff
		if header[0]&0x80 == 0 {
			if length > maxDataFrame {
				return nil, 0, fmt.Errorf("%w: data frame of %d bytes", errFrame, length)
			}
			return header, int64(length), nil
		}
		if length > maxControlFrame {
			return nil, 0, fmt.Errorf("%w: control frame of %d bytes", errFrame, length)
		}
		all := slices.Concat(header, make([]byte, length))
		if _, err := io.ReadFull(from, all[len(header):]); err != nil {
			return nil, 0, err
		}
		switch kind := wire.ControlFrameType(binary.BigEndian.Uint16(all[2:])); kind {
		case wire.TypeSynStream:
			if streams == 0 {
				return nil, 0, fmt.Errorf("%w: too many streams", errFrame)
			}
			streams--
			frame.Reset()
			frame.Write(all)
			if _, err := headers.ReadFrame(); err != nil {
				return nil, 0, fmt.Errorf("%w: %w", errFrame, err)
			}
		default: // the library ignores the length field of some frames
			if want, ok := controlLengths[kind]; !ok || length != want {
				return nil, 0, fmt.Errorf("%w: control frame of type %d with %d bytes", errFrame, kind, length)
			}
		}
		return all, 0, nil
	}}, err
}
