// Package pluginconn connects to plugins of the node on their sockets: device plugins, CSI drivers and
// DRA drivers.
//
// A plugin may lie and flood. So the size of its answers is limited, and that of its texts in
// events and logs. A path that is not a socket, such as a link, is refused.
package pluginconn

import (
	"context"
	"fmt"
	"net"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const maxHeaders = 64 << 10 // bytes of an answer's headers, which contain errors

// MaxText limits the bytes of a plugin's text in events and logs.
const MaxText = 1 << 10

// Dialer connects to a unix socket.
type Dialer func(ctx context.Context, socket string) (net.Conn, error)

// Dial is the Dialer of the machine. Tests in fake time replace it: there, a process cannot wait for the
// kernel.
func Dial(ctx context.Context, socket string) (net.Conn, error) {
	return (&net.Dialer{}).DialContext(ctx, "unix", socket)
}

// New returns a connection to the socket of a plugin, whose answers have at most maxAnswer bytes. It
// sends nothing. It returns an error for a path that is not a socket, such as a link.
func New(socket string, by Dialer, maxAnswer int, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	info, err := os.Lstat(socket)
	if err != nil {
		return nil, err
	}
	if info.Mode().Type() != os.ModeSocket {
		return nil, fmt.Errorf("%s is not a socket", socket)
	}
	return grpc.NewClient("passthrough:///"+socket, append([]grpc.DialOption{
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswer)),
		grpc.WithMaxHeaderListSize(maxHeaders),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return by(ctx, socket) }),
	}, options...)...)
}

// ShortError returns a plugin's error with a text of limited length.
func ShortError(err error) error {
	s, ok := status.FromError(err)
	if !ok || len(s.Message()) <= MaxText {
		return err
	}
	return status.Error(s.Code(), Short(s.Message()))
}

// Short returns a plugin's text, cut to a limited length.
func Short(text string) string {
	if len(text) <= MaxText {
		return text
	}
	return strings.ToValidUTF8(text[:MaxText], "") + "…"
}
