package apiclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"strings"
	"syscall"
)

// failure is a request without an answer. Its text is for people, and contains no part of
// the request or the answer.
type failure struct {
	text  string
	cause error
}

func (e *failure) Error() string { return e.text }
func (e *failure) Unwrap() error { return e.cause }

// Timeout tells client-go whether to try again.
func (e *failure) Timeout() bool {
	timeout := net.Error(nil)
	return errors.As(e.cause, &timeout) && timeout.Timeout()
}

// Explain returns an error that says, for people, why a request got no whole answer. Its
// text contains no part of the request or the answer. It wraps err.
func (t *Transport) Explain(err error) error {
	if said := (*failure)(nil); errors.As(err, &said) {
		return said
	}
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // url.Error repeats the whole URL
	}
	return &failure{text: t.host + ": " + reason(err), cause: err}
}

func reason(err error) string {
	var (
		timeout interface{ Timeout() bool }
		dns     *net.DNSError
		record  tls.RecordHeaderError
		alert   tls.AlertError
		errno   syscall.Errno
		dial    *net.OpError
	)
	switch {
	case strings.HasPrefix(err.Error(), "getting credentials:"):
		return "the kubeconfig's command for credentials failed"
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host: " + dns.Name
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &dns):
		return "name lookup failed: " + dns.Name
	case certificate(err) != "":
		return certificate(err)
	case errors.As(err, &alert):
		return "the server refuses the TLS connection: " + strings.TrimPrefix(alert.Error(), "tls: ")
	case errors.As(err, &record):
		return "the server does not speak TLS"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed before the answer was complete"
	case errors.As(err, &dial):
		return fmt.Sprintf("cannot %s", dial.Op)
	}
	return "no valid HTTP answer"
}

// certificate explains an error about the server's certificate; "" where err is another.
func certificate(err error) string {
	var (
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
	)
	switch {
	case errors.As(err, &authority):
		return "the server's certificate is signed by an authority that the kubeconfig does not name"
	case errors.As(err, &host):
		return "the server's certificate is not valid for " + host.Host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "the server's certificate has expired or is not yet valid"
	case errors.As(err, &invalid):
		return "the server's certificate is not valid"
	}
	return ""
}
