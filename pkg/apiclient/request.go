package apiclient

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/nodectl/nodectl/pkg/activity"
)

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
	// bodyLimit is the largest page of a list, and eventLimit the largest event,
	// in bytes. A pod in etcd has 1.5 MiB at most.
	bodyLimit  = 256 << 20
	eventLimit = 16 << 20
	// pageTimeout bounds one page of a list, its body included; the server's own
	// bound is the same.
	pageTimeout = 60 * time.Second
	// maxPages bounds a list that never ends.
	maxPages = 10_000
)

// errGone says that the server no longer keeps the resource version of a watch.
var errGone = errors.New("HTTP 410: the server no longer has that resource version")

// statusError is an answer that is neither 200 nor 201.
type statusError struct {
	host       string
	purpose    string // of the request, as Collection.purpose
	status     int
	retryAfter time.Duration // 0 where the server does not ask for it
}

// Error explains the status. It repeats nothing of the answer's body.
func (r *statusError) Error() string {
	text := fmt.Sprintf("%s: HTTP %d", r.host, r.status)
	switch {
	case r.status == http.StatusUnauthorized:
		text += ": the server does not accept our credentials (expired or revoked?)"
	case r.status == http.StatusForbidden:
		text += ": the server denies permission to " + r.purpose
	case r.status == http.StatusNotFound && r.purpose != watchPods:
		text += ": cannot " + r.purpose + ": not found"
	case r.status == http.StatusNotFound:
		text += ": no Kubernetes API at this address"
	case r.status == http.StatusNotAcceptable:
		text += ": the server speaks neither protobuf nor JSON"
	case r.status == http.StatusTooManyRequests:
		text += ": the server is busy"
	case r.status >= 300 && r.status < 400:
		text += ": redirects are not followed"
	case r.status >= 500:
		text += ": server error"
	}
	return text
}

// isStatus reports whether err is an answer with that status.
func isStatus(err error, status int) bool {
	answer := (*statusError)(nil)
	return errors.As(err, &answer) && answer.status == status
}

// List is one complete list of a collection.
type List struct {
	Version string // the resource version that it shows
	Objects []Object
}

// List lists c by quorum reads: no list is older than one before it, unless the server's
// data are. It is complete, or an error.
func (t *Transport) List(ctx context.Context, c Collection, pageSize int) (List, error) {
	var all List
	next := ""
	for range maxPages {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		page, err := t.page(ctx, c, query)
		switch {
		case err != nil:
			return List{}, err
		case all.Version != "" && all.Version != page.rv:
			return List{}, errors.New(t.host + ": the list changed while it was read")
		}
		all.Version = page.rv
		all.Objects = append(all.Objects, page.objects...)
		if next = page.next; next == "" {
			return all, nil
		}
	}
	return List{}, fmt.Errorf("%s: the list has more than %d pages", t.host, maxPages)
}

// Version returns the resource version of the server's data now.
func (t *Transport) Version(ctx context.Context, c Collection) (string, error) {
	page, err := t.page(ctx, c, url.Values{"limit": {"1"}})
	return page.rv, err
}

// page asks for one page of a list.
func (t *Transport) page(ctx context.Context, c Collection, query url.Values) (page, error) {
	ctx, stop := context.WithTimeout(ctx, pageTimeout)
	defer stop()
	response, err := t.get(ctx, c, query) //nolint:bodyclose // body closes it
	if err != nil {
		return page{}, err
	}
	body, err := t.body(response, bodyLimit)
	switch {
	case err != nil:
		return page{}, err
	case len(bytes.TrimSpace(body)) == 0:
		return page{}, errors.New(t.host + ": empty answer")
	}
	l, err := decodeList(c.kind, mediaType(response), body)
	if err != nil {
		return page{}, fmt.Errorf("%s: %w", t.host, err)
	}
	return l, nil
}

// body reads the body of an answer, of limit bytes at most, and closes it.
func (t *Transport) body(response *http.Response, limit int64) ([]byte, error) {
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, t.Explain(err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%s: the answer is larger than %d MiB", t.host, limit>>20)
	}
	return body, nil
}

// Watch asks for the changes after a resource version, for a duration. The error is nil
// once the server has agreed.
func (t *Transport) Watch(ctx context.Context, c Collection, after string, asked time.Duration) (*Stream, error) {
	response, err := t.get(ctx, c, url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {after},
		"timeoutSeconds":      {strconv.Itoa(int(asked / time.Second))},
	})
	if isStatus(err, http.StatusGone) {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	s, err := newStream(c.kind, mediaType(response), response.Body)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", t.host, err), response.Body.Close())
	}
	s.ctx, s.call = ctx, activity.Call{Kind: activity.Watch, Name: "watch", Target: c.resource + "/" + c.name, Host: t.host, Version: after}
	s.call.Limit, _ = ctx.Deadline()
	return s, nil
}

// get asks for objects of c.
func (t *Transport) get(ctx context.Context, c Collection, query url.Values) (*http.Response, error) {
	if c.selector != "" {
		query.Set("fieldSelector", c.selector)
	}
	accept := protobufType
	if query.Has("watch") {
		accept += ";stream=watch"
	}
	return t.do(ctx, request{method: http.MethodGet, path: c.path(), query: query, accept: accept + "," + jsonType, purpose: c.purpose})
}

// request is one request to a server.
type request struct {
	method  string
	path    []string
	query   url.Values
	accept  string
	json    []byte // the body; nil for none
	content string // its media type; "" is JSON
	purpose string // as Collection.purpose
}

// do sends one request. A nil error means 200 or 201; the caller reads and closes the
// body.
func (t *Transport) do(ctx context.Context, q request) (*http.Response, error) {
	u := (&url.URL{Path: "/"}).JoinPath(q.path...)
	u.RawQuery = q.query.Encode()
	request, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.json))
	if err != nil {
		return nil, errors.New(t.host + ": not a URL")
	}
	request.Header.Set("Accept", q.accept)
	if q.json != nil {
		request.Header.Set("Content-Type", cmp.Or(q.content, jsonType))
	}
	response, err := t.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusCreated {
		return response, nil
	}
	refused := &statusError{host: t.host, purpose: q.purpose, status: response.StatusCode}
	if n, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && n > 0 {
		refused.retryAfter = time.Duration(min(n, 3600)) * time.Second
	}
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // or the connection is lost
	_ = response.Body.Close()
	return nil, refused
}

// mediaType returns an answer's media type, without parameters.
func mediaType(r *http.Response) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}
