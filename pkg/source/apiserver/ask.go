package apiserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"time"
)

const (
	protobufType = "application/vnd.kubernetes.protobuf"
	jsonType     = "application/json"
	// bodyLimit is the largest page of a list, and eventLimit the largest event,
	// in bytes. A pod in etcd has 1.5 MiB at most.
	bodyLimit  = 256 << 20
	eventLimit = 16 << 20
	// askFor bounds one page of a list, its body included; the server's own
	// bound is the same.
	askFor = 60 * time.Second
	// maxPages bounds a list that never ends.
	maxPages = 10_000
)

// errGone says that the server no longer knows what was asked for.
var errGone = errors.New("HTTP 410: the server no longer keeps that state")

// refusal is an answer that is not 200.
type refusal struct {
	host       string
	what       string // is refused
	status     int
	retryAfter time.Duration
}

// Error says what the status means; the answer's body is never repeated.
func (r *refusal) Error() string {
	text := fmt.Sprintf("%s: HTTP %d", r.host, r.status)
	switch {
	case r.status == http.StatusUnauthorized:
		text += ": the server does not accept our credentials (expired or revoked?)"
	case r.status == http.StatusForbidden:
		text += ": the server does not let us " + r.what
	case r.status == http.StatusNotFound && r.what != watchPods:
		text += ": what it takes to " + r.what + " is not there"
	case r.status == http.StatusNotFound:
		text += ": no Kubernetes API is there"
	case r.status == http.StatusNotAcceptable:
		text += ": the server speaks neither protobuf nor JSON"
	case r.status == http.StatusTooManyRequests:
		text += ": the server is busy"
	case r.status >= 300 && r.status < 400:
		text += ": redirects are not followed"
	case r.status >= 500:
		text += ": the server fails"
	}
	return text
}

// collection is objects that can be listed and watched.
type collection struct {
	kind
	path     []string // below the server's URL
	selector string   // of fields; "" for all
	what     string   // what a server that answers 403 does not let us do
}

const watchPods = "list and watch this node's pods"

// podsOf is the pods that are bound to a node.
func podsOf(node string) collection {
	return collection{podKind(), []string{"api", "v1", "pods"}, "spec.nodeName=" + node, watchPods}
}

// listing is one complete list.
type listing struct {
	rv      string
	objects []object
}

// list asks for all of c as it is now: a quorum read, so that no answer is older
// than one before it unless the server's data is. It is whole or an error.
func (a access) list(ctx context.Context, c collection, pageSize int) (listing, error) {
	var all listing
	next := ""
	for range maxPages {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		page, err := a.page(ctx, c, query)
		switch {
		case err != nil:
			return listing{}, err
		case all.rv != "" && all.rv != page.rv:
			return listing{}, errors.New(a.host + ": the list changed while it was read")
		}
		all.rv = page.rv
		all.objects = append(all.objects, page.objects...)
		if next = page.next; next == "" {
			return all, nil
		}
	}
	return listing{}, errors.New(a.host + ": the list has no end")
}

// page asks for one page of a list.
func (a access) page(ctx context.Context, c collection, query url.Values) (page, error) {
	ctx, stop := context.WithTimeout(ctx, askFor)
	defer stop()
	response, err := a.get(ctx, c, query) //nolint:bodyclose // body closes it
	if err != nil {
		return page{}, err
	}
	body, err := a.body(response, bodyLimit)
	switch {
	case err != nil:
		return page{}, err
	case len(bytes.TrimSpace(body)) == 0:
		return page{}, errors.New(a.host + ": empty answer")
	}
	l, err := decodeList(c.kind, mediaType(response), body)
	if err != nil {
		return page{}, fmt.Errorf("%s: %w", a.host, err)
	}
	return l, nil
}

// body reads an answer of limit bytes at most, and closes it.
func (a access) body(response *http.Response, limit int64) ([]byte, error) {
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(io.LimitReader(response.Body, limit+1))
	switch {
	case err != nil:
		return nil, a.way.Explain(err)
	case int64(len(body)) > limit:
		return nil, fmt.Errorf("%s: the answer is larger than %d MiB", a.host, limit>>20)
	}
	return body, nil
}

// watch asks for what changes after resource version rv, for so long. A nil
// error means that the server agreed. errGone means that a list has to come
// first.
func (a access) watch(ctx context.Context, c collection, rv string, asked time.Duration) (*stream, error) {
	response, err := a.get(ctx, c, url.Values{
		"watch":               {"true"},
		"allowWatchBookmarks": {"true"},
		"resourceVersion":     {rv},
		"timeoutSeconds":      {strconv.Itoa(int(asked / time.Second))},
	})
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.status == http.StatusGone {
		return nil, errGone
	}
	if err != nil {
		return nil, err
	}
	s, err := newStream(c.kind, mediaType(response), response.Body)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", a.host, err), response.Body.Close())
	}
	return s, nil
}

// get asks for what is in c.
func (a access) get(ctx context.Context, c collection, query url.Values) (*http.Response, error) {
	if c.selector != "" {
		query.Set("fieldSelector", c.selector)
	}
	accept := protobufType
	if query.Has("watch") {
		accept += ";stream=watch"
	}
	return a.ask(ctx, request{method: http.MethodGet, path: c.path, query: query, accept: accept + "," + jsonType, what: c.what})
}

// request is what a server is asked.
type request struct {
	method string
	path   []string
	query  url.Values
	accept string
	json   []byte // the body; nil for none
	what   string // as collection.what
}

// ask sends one request; a nil error means 200 or 201, with the body to be read.
func (a access) ask(ctx context.Context, q request) (*http.Response, error) {
	u := (&url.URL{Path: "/"}).JoinPath(q.path...)
	u.RawQuery = q.query.Encode()
	request, err := http.NewRequestWithContext(ctx, q.method, u.String(), bytes.NewReader(q.json))
	if err != nil {
		return nil, errors.New(a.host + ": not a URL")
	}
	request.Header.Set("Accept", q.accept)
	if q.json != nil {
		request.Header.Set("Content-Type", jsonType)
	}
	response, err := a.way.RoundTrip(request)
	if err != nil {
		return nil, err
	}
	if response.StatusCode == http.StatusOK || response.StatusCode == http.StatusCreated {
		return response, nil
	}
	refused := &refusal{host: a.host, what: q.what, status: response.StatusCode}
	if n, err := strconv.Atoi(response.Header.Get("Retry-After")); err == nil && n > 0 {
		refused.retryAfter = time.Duration(min(n, 3600)) * time.Second
	}
	_, _ = io.CopyN(io.Discard, response.Body, 64<<10) // or the connection is lost
	_ = response.Body.Close()
	return nil, refused
}

// mediaType returns what the answer says it is, without parameters.
func mediaType(r *http.Response) string {
	t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return t
}
