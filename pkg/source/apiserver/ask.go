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

	v1 "k8s.io/api/core/v1"
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
		text += ": the server does not let us list and watch this node's pods"
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

// list asks for all pods of node as they are now: a quorum read, so that no
// answer is older than one before it unless the server's data is. It is whole or
// an error.
func (a *access) list(ctx context.Context, node string, pageSize int) (listing, error) {
	var all listing
	next := ""
	for range maxPages {
		query := url.Values{"limit": {strconv.Itoa(pageSize)}}
		if next != "" {
			query.Set("continue", next)
		}
		page, err := a.page(ctx, node, query)
		switch {
		case err != nil:
			return listing{}, err
		case all.rv != "" && all.rv != page.ResourceVersion:
			return listing{}, errors.New(a.host + ": the list changed while it was read")
		}
		all.rv = page.ResourceVersion
		for i := range page.Items {
			all.pods = append(all.pods, &page.Items[i])
		}
		if next = page.Continue; next == "" {
			return all, nil
		}
	}
	return listing{}, errors.New(a.host + ": the list has no end")
}

// page asks for one page of a list.
func (a *access) page(ctx context.Context, node string, query url.Values) (*v1.PodList, error) {
	ctx, stop := context.WithTimeout(ctx, askFor)
	defer stop()
	response, err := a.ask(ctx, node, query)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, bodyLimit+1))
	switch {
	case err != nil:
		return nil, a.explain(err)
	case len(body) > bodyLimit:
		return nil, fmt.Errorf("%s: the list is larger than %d MiB", a.host, bodyLimit>>20)
	case len(bytes.TrimSpace(body)) == 0:
		return nil, errors.New(a.host + ": empty answer")
	}
	l, err := decodeList(mediaType(response), body)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.host, err)
	}
	return l, nil
}

// watch asks for what changes after resource version rv, for so long. A nil
// error means that the server agreed. errGone means that a list has to come
// first.
func (a *access) watch(ctx context.Context, node, rv string, asked time.Duration) (*stream, error) {
	response, err := a.ask(ctx, node, url.Values{
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
	s, err := newStream(mediaType(response), response.Body)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", a.host, err), response.Body.Close())
	}
	return s, nil
}

// ask sends one request; a nil error means 200, with the body to be read.
func (a *access) ask(ctx context.Context, node string, query url.Values) (*http.Response, error) {
	u := a.pods
	query.Set("fieldSelector", "spec.nodeName="+node)
	u.RawQuery = query.Encode()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, errors.New(a.host + ": not a URL")
	}
	stream := ""
	if query.Has("watch") {
		stream = ";stream=watch"
	}
	request.Header.Set("Accept", protobufType+stream+","+jsonType)
	response, err := a.client.Do(request)
	if err != nil {
		return nil, a.explain(err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	refused := &refusal{host: a.host, status: response.StatusCode}
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
