package probe

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxRedirects is how many redirects to the same host are followed.
const maxRedirects = 10

// maxHeader limits the header of a response, so that a container cannot fill the agent's
// memory.
const maxHeader = 256 << 10

// httpGet makes one HTTP request (C-1.29.14). A status from 200 to 299 is success, and one from 300 to
// 399 is success with a warning. Any other status, and an error, is failure.
func (p *Prober) httpGet(ctx context.Context, r pod.ProbeRequest, timeout time.Duration) error {
	get := r.Probe.HTTPGet
	addr, err := address(r.Container, r.PodIP, get.Host, get.Port)
	if err != nil {
		return err
	}
	req, err := request(ctx, get, addr, p.userAgent("probe"))
	if err != nil {
		return err
	}
	resp, err := do(req, timeout)
	switch {
	case invalidHeader(err):
		return errHeader
	case starved(err):
		return errStarved
	case err != nil:
		return &pod.ProbeFailure{Message: httpFailure(err)}
	}
	defer resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 399 {
		return &pod.ProbeFailure{Message: fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)}
	}
	// Read the body up to the limit, so that the probe fails if the connection breaks.
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return &pod.ProbeFailure{Message: httpErrorText(err, within(timeout))}
	}
	if resp.StatusCode >= 300 { // sameHost did not follow it
		return &pod.ProbeWarning{Message: "Probe terminated redirects, Response body: " + sanitized(body)}
	}
	return nil
}

// do sends one request over a connection of its own. A timeout of 0 means none.
func do(req *http.Request, timeout time.Duration) (*http.Response, error) {
	client := &http.Client{Transport: newTransport(), CheckRedirect: sameHost, Timeout: timeout}
	return client.Do(req)
}

// request builds the GET request of a probe or hook to addr. An error is not a failure of the
// container: a restart would not change its spec.
func request(ctx context.Context, get *v1.HTTPGetAction, addr, userAgent string) (*http.Request, error) {
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme, u.Host = "http", addr
	if get.Scheme == v1.URISchemeHTTPS {
		u.Scheme = "https"
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New("httpGet does not make a valid URL")
	}
	for _, h := range get.HTTPHeaders {
		if strings.EqualFold(h.Name, "Host") {
			req.Host = h.Value
			continue
		}
		req.Header.Add(h.Name, h.Value)
	}
	// A User-Agent from the spec is kept; an empty one is left out.
	if _, given := req.Header["User-Agent"]; !given {
		req.Header.Set("User-Agent", userAgent)
	}
	if accept, given := req.Header["Accept"]; !given {
		req.Header.Set("Accept", "*/*")
	} else if accept[0] == "" {
		req.Header.Del("Accept")
	}
	return req, nil
}

// newTransport returns a transport for one probe: without proxy, keep-alive, compression
// and verification of certificates (C-1.29.14).
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:                  nil,
		DialContext:            new(net.Dialer).DialContext,
		DisableKeepAlives:      true,
		DisableCompression:     true,
		ForceAttemptHTTP2:      true,
		MaxResponseHeaderBytes: maxHeader,
		// A pod's certificate has the names that its users know, not its IP.
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true},
	}
}

// sameHost follows redirects to the same host. A redirect to another host is success, and no request
// follows (C-1.29.14). So no pod can make the agent send requests in the host's network (F80).
func sameHost(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return errRedirects
	}
	return nil
}

var (
	errRedirects = fmt.Errorf("stopped after %d redirects", maxRedirects)
	errHeader    = errors.New("httpGet has a header that is not valid in HTTP")
)

// invalidHeader reports whether a request could not be sent because of its headers, which
// the library's error quotes.
func invalidHeader(err error) bool {
	return err != nil && strings.Contains(err.Error(), "invalid header field")
}

// plainAnswer reports whether the server answered https with plain HTTP.
func plainAnswer(err error) bool {
	return strings.Contains(err.Error(), "server gave HTTP response to HTTPS client")
}

// httpFailure returns the kubelet's message for a probe without an answer: net/http's error with
// the URL, but without data from the server.
func httpFailure(err error) string {
	of, ok := errors.AsType[*url.Error](err)
	if !ok {
		return httpErrorText(err, "")
	}
	cause := httpErrorText(of.Err, "")
	var record tls.RecordHeaderError
	switch {
	case of.Timeout():
		cause = of.Err.Error() // net/http's own message: nothing was received
	case errors.As(of.Err, &record):
		cause = record.Error()
	case plainAnswer(of.Err):
		cause = http.ErrSchemeMismatch.Error()
	case errors.Is(of.Err, io.ErrUnexpectedEOF):
		cause = io.ErrUnexpectedEOF.Error()
	case errors.Is(of.Err, io.EOF):
		cause = io.EOF.Error()
	}
	return fmt.Sprintf("%s %q: %s", of.Op, sanitized([]byte(of.URL)), cause)
}

// httpTrouble returns a message for a request without an answer. It has no data from the server,
// which net/http's errors quote.
func httpErrorText(err error, limit string) string {
	var record tls.RecordHeaderError
	var alert tls.AlertError
	if text := networkReason(err, limit); text != "" {
		return text
	}
	switch {
	case errors.Is(err, errRedirects):
		return errRedirects.Error()
	case errors.As(err, &record):
		return "the server does not speak TLS"
	case errors.As(err, &alert):
		return alert.Error()
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		return "the server closed the connection before its answer was complete"
	case plainAnswer(err):
		return "the server does not speak TLS"
	}
	return "the server did not answer with HTTP"
}
