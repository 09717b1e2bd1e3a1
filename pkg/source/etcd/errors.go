package etcd

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"syscall"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
)

var (
	errCompacted = errors.New("etcd has compacted the changes since the last list; listing all keys again")
	errNoLeader  = errors.New("no leader: the cluster has no quorum")
	errConfused  = errors.New("its answers contradict each other")
)

// connTrace stores the first error of one connection. gRPC returns only the texts of errors, which may
// contain data of the server. Goroutines of gRPC write connTrace.
type connTrace struct {
	secure   bool
	cause    atomic.Pointer[error]
	up       atomic.Bool // the handshake was finished
	answered bool        // this or another member has answered; only the goroutine of the session uses it
}

func (w *connTrace) note(err error) {
	if err != nil {
		w.cause.CompareAndSwap(nil, &err)
	}
}

// tracedCreds are credentials that note the errors of handshakes and connections.
type tracedCreds struct {
	credentials.TransportCredentials
	trace *connTrace
}

// ClientHandshake implements credentials.TransportCredentials.
func (n *tracedCreds) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := n.TransportCredentials.ClientHandshake(ctx, authority, c)
	if err != nil {
		n.trace.note(err)
		return nil, nil, err
	}
	n.trace.up.Store(true)
	return &tracedConn{secured, n.trace}, info, nil
}

// Clone implements credentials.TransportCredentials.
func (n *tracedCreds) Clone() credentials.TransportCredentials {
	return &tracedCreds{n.TransportCredentials.Clone(), n.trace}
}

type tracedConn struct {
	net.Conn
	trace *connTrace
}

// Read implements net.Conn. With TLS 1.3, the first read after the handshake fails if the member refuses
// the client certificate.
func (c *tracedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.noteError(err)
	return n, err
}

// Write implements net.Conn.
func (c *tracedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.noteError(err)
	return n, err
}

func (c *tracedConn) noteError(err error) {
	switch {
	case err == nil, errors.Is(err, net.ErrClosed): // this program has closed the connection
	case alert(err) != "":
		c.trace.cause.Store(&err) // an alert has the reason, which an earlier error of a write does not have
	default:
		c.trace.note(err)
	}
}

// alert returns the text of the server's TLS alert, one of a fixed list; "" if err is no alert.
func alert(err error) string {
	var op *net.OpError
	if !errors.As(err, &op) || op.Op != "remote error" {
		return ""
	}
	return strings.TrimPrefix(op.Err.Error(), "tls: ")
}

// serverErrors has errors of etcd, with short texts for users. Messages contain no other text of a server.
var serverErrors = []struct {
	err   error
	means error
}{
	{rpctypes.ErrCompacted, errCompacted},
	{rpctypes.ErrFutureRev, errors.New("its revision is lower than before")},
	{rpctypes.ErrPermissionDenied, errors.New("permission denied")},
	{rpctypes.ErrUserEmpty, errors.New("permission denied: the member requires a user")},
	{rpctypes.ErrAuthFailed, errors.New("permission denied: wrong user or password")},
	{rpctypes.ErrInvalidAuthToken, errors.New("permission denied: the token is no longer valid")},
	{rpctypes.ErrAuthOldRevision, errors.New("permission denied: users or roles have just changed")},
	{rpctypes.ErrNoLeader, errNoLeader},
	{rpctypes.ErrNotLeader, errNoLeader},
	{rpctypes.ErrLeaderChanged, errNoLeader},
	{rpctypes.ErrTimeout, errNoLeader},
	{rpctypes.ErrTimeoutDueToLeaderFail, errNoLeader},
	{rpctypes.ErrTimeoutDueToConnectionLost, errNoLeader},
	{rpctypes.ErrTimeoutWaitAppliedIndex, errors.New("the member lags behind")},
	{rpctypes.ErrTooManyRequests, errors.New("the member has too many requests")},
	{rpctypes.ErrStopped, errors.New("the member is stopping")},
	{rpctypes.ErrCorrupt, errors.New("the member's data is corrupt")},
	{rpctypes.ErrUnhealthy, errors.New("the cluster is not healthy")},
	{rpctypes.ErrNotCapable, errors.New("the member is not ready yet")},
}

// isServers reports whether err is an error of etcd, and not one of gRPC.
func isServers(err error) bool {
	var e rpctypes.EtcdError
	return errors.As(rpctypes.Error(err), &e)
}

// refused returns an error with the reason for the end of a watch.
func (m *member) refused(reason string) error {
	for _, w := range serverErrors {
		if strings.HasSuffix(reason, rpctypes.ErrorDesc(w.err)) {
			return w.means
		}
	}
	return errors.New("the member has ended the watch")
}

// explain converts err to a short text without keys, values or credentials.
func (m *member) explain(err error) error {
	known := rpctypes.Error(err)
	for _, w := range serverErrors {
		if errors.Is(known, w.err) {
			return w.means
		}
	}
	var cause error
	if c := m.trace.cause.Load(); c != nil {
		cause = *c
	}
	switch code := status.Code(err); {
	case cause != nil && code == codes.Unavailable:
		return errors.New(m.trace.explain(cause))
	case code == codes.DeadlineExceeded, code == codes.Canceled:
		return errors.New("timeout")
	case code == codes.Unavailable:
		return errors.New("connection closed")
	case code == codes.ResourceExhausted:
		return errors.New("an answer is larger than the limit")
	case code == codes.Unimplemented, code == codes.Unknown && !isServers(err):
		return errors.New("the server does not speak etcd v3")
	default:
		return errors.New("the member returned an error: " + code.String())
	}
}

// explain describes an error of the network.
func (w *connTrace) explain(err error) string {
	var (
		dns       *net.DNSError
		timeout   net.Error
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		errno     syscall.Errno
	)
	switch {
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host"
	case errors.As(err, &timeout) && timeout.Timeout(), errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.As(err, &dns):
		return "name lookup failed"
	case errors.As(err, &authority):
		return "its certificate is signed by an unknown authority"
	case errors.As(err, &host):
		return "its certificate is not valid for this host"
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "its certificate has expired or is not yet valid"
	case errors.As(err, &invalid):
		return "its certificate is not valid"
	case errors.As(err, &record):
		return "it does not speak TLS; is it http?"
	case alert(err) != "":
		return "it refuses the TLS connection: " + alert(err)
	case errors.As(err, &errno) && errno != syscall.ECONNRESET && errno != syscall.EPIPE: // these two only say that the connection was closed
		return errno.Error()
	case w.answered:
		return "connection closed"
	case !w.secure:
		return "connection closed; is it https?"
	case !w.up.Load():
		return "connection closed; is it http?"
	}
	return "connection closed; does it accept the client certificate?"
}
