package http

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	nethttp "net/http"
	"net/url"
	"strings"
	"syscall"
	"time"
)

// setClient prepares the client of the next request. If the credentials have changed, it makes a
// new one.
func (p *poller) setClient() error {
	if p.cfg.Client != nil {
		if p.client == nil {
			p.client = p.sameOrigin(*p.cfg.Client)
		}
		return nil
	}
	c, err := p.credentials()
	if err != nil {
		return err
	}
	if p.client == nil || c.sum != p.creds.sum {
		p.closeIdle()
		p.client, p.creds = p.sameOrigin(nethttp.Client{Transport: ownTransport(c.config)}), c
	}
	return nil
}

// closeIdle closes idle connections, unless the client is from Config. After a failure the next request
// must not use a connection that may be broken.
func (p *poller) closeIdle() {
	if p.client != nil && p.cfg.Client == nil {
		p.client.CloseIdleConnections()
	}
}

// ownTransport returns a transport with limits on the time and size of a server's
// answers (F62); config may be nil.
func ownTransport(config *tls.Config) *nethttp.Transport {
	t := nethttp.DefaultTransport.(*nethttp.Transport).Clone()
	t.DialContext = (&net.Dialer{Timeout: 3 * time.Second}).DialContext
	t.TLSHandshakeTimeout = 5 * time.Second
	t.ResponseHeaderTimeout = 5 * time.Second
	t.MaxResponseHeaderBytes = HeaderLimit
	t.MaxIdleConns = 1
	if config != nil {
		t.TLSClientConfig = config
	}
	return t
}

// sameOrigin returns a copy of c that rejects redirects to another origin. Headers may have credentials,
// and the server that answers decides which pods run on this node.
func (s *Source) sameOrigin(c nethttp.Client) *nethttp.Client {
	c.Timeout = 0 // the request's context has the timeout
	c.CheckRedirect = func(next *nethttp.Request, via []*nethttp.Request) error {
		switch {
		case origin(next.URL) != origin(s.url):
			return &refusedRedirect{"redirect to another origin refused: " + printable(origin(next.URL))}
		case len(via) >= 5:
			return &refusedRedirect{"too many redirects"}
		}
		return nil
	}
	return &c
}

// printable returns a server's text; "(not shown)" if it is long or has other characters than printable
// ASCII.
func printable(text string) string {
	if len(text) > 200 || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "(not shown)"
	}
	return text
}

type refusedRedirect struct{ text string }

func (e *refusedRedirect) Error() string { return e.text }

// origin returns scheme, host and port.
func origin(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[strings.ToLower(u.Scheme)]
	}
	return strings.ToLower(u.Scheme) + "://" + net.JoinHostPort(strings.ToLower(u.Hostname()), port)
}

// failure is the error of a failed request, with a text for users. The text may contain the host of the URL,
// or the origin of a redirect. It contains no other part of the URL, the headers and the body.
type failure struct {
	text  string
	cause error
}

func (e *failure) Error() string { return e.text }
func (e *failure) Unwrap() error { return e.cause }

// explain converts an error of net/http to a failure.
func explain(err error) error {
	if wrapped := (*url.Error)(nil); errors.As(err, &wrapped) {
		err = wrapped.Err // url.Error repeats the URL
	}
	return &failure{text: failureText(err), cause: err}
}

func failureText(err error) string {
	var (
		redirect  *refusedRedirect
		timeout   interface{ Timeout() bool }
		dns       *net.DNSError
		authority x509.UnknownAuthorityError
		host      x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		errno     syscall.Errno
		dial      *net.OpError
	)
	switch {
	case errors.As(err, &redirect):
		return redirect.text
	case errors.As(err, &dns) && dns.IsNotFound:
		return "no such host: " + dns.Name
	case errors.As(err, &timeout) && timeout.Timeout():
		return "timeout"
	case errors.As(err, &dns):
		return "name lookup failed: " + dns.Name
	case errors.As(err, &authority):
		return "certificate signed by unknown authority"
	case errors.As(err, &host):
		return "certificate is not valid for " + host.Host
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return "certificate has expired or is not yet valid"
	case errors.As(err, &invalid):
		return "certificate is not valid"
	case errors.As(err, &record):
		return "the server does not speak TLS"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "connection closed before the answer was complete"
	case errors.As(err, &dial) && dial.Op == "remote error": // an alert: one of a fixed list of words
		return "the server refuses the TLS connection: " + strings.TrimPrefix(dial.Err.Error(), "tls: ")
	case errors.As(err, &dial):
		return fmt.Sprintf("cannot %s", dial.Op)
	}
	return untypedText(err)
}

// untypedText classifies errors without a type by their text. It does not return that text, which
// may contain a text of the server.
func untypedText(err error) string {
	text := err.Error()
	switch {
	case strings.Contains(text, "response headers exceeded"), strings.Contains(text, "response header list larger"):
		return fmt.Sprintf("the headers are larger than %d KiB", HeaderLimit>>10)
	case strings.HasPrefix(text, "http2: server sent GOAWAY"), strings.HasPrefix(text, "http2: Transport received Server's graceful shutdown GOAWAY"):
		return "the server ended the connection"
	case strings.HasPrefix(text, "stream error:"):
		return "the server ended the answer before it was complete"
	case strings.HasPrefix(text, "tls: "):
		return "TLS handshake failed"
	}
	return "no valid HTTP answer"
}

// redact returns u as a string, without its fragment and with "redacted" in place of its secrets.
func redact(u *url.URL) string {
	c := *u
	c.Fragment, c.RawFragment = "", ""
	if c.User != nil {
		c.User = url.User("redacted")
	}
	parts := strings.Split(c.RawQuery, "&")
	for i, part := range parts {
		if name, value, ok := strings.Cut(part, "="); ok && secret(name, value) {
			parts[i] = name + "=redacted"
		}
	}
	c.RawQuery = strings.Join(parts, "&")
	return c.String()
}

// secret reports whether a query parameter may be a credential: by its name, or because its value has at
// least 32 characters and no separators, like a token.
func secret(name, value string) bool {
	if plain, err := url.QueryUnescape(name); err == nil {
		name = plain
	}
	name = strings.ToLower(name)
	for _, word := range []string{"token", "secret", "key", "pass", "pwd", "sig", "auth", "cred", "code", "session", "jwt", "sas"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return len(value) >= 32 && !strings.ContainsAny(value, "/.,:")
}
