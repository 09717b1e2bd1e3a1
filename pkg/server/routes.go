package server

import (
	"context"
	"iter"
	"net/http"
	"net/url"
	"slices"
	"time"
)

// route is one thing that may be asked. What is not said here is refused.
type route struct {
	method, path string
	query        []string      // parameters it takes
	body         int64         // bytes of a request's body; 0 takes none
	timeout      time.Duration // for the answer; 0 where it is a stream
	// Exactly one of the two answers.
	document func() ([]byte, error)
	stream   func(context.Context, url.Values) (iter.Seq2[[]byte, error], error)
}

// streams reports whether the answer has no end of its own.
func (r route) streams() bool { return r.stream != nil }

// routes is the registry: all that a Server answers.
func routes(c Config) []route {
	return []route{
		{method: http.MethodGet, path: "/v1/updates", query: []string{"mode", "full", "source", "namespace", "selector", "max", "notices"}, stream: c.Updates},
		{method: http.MethodGet, path: "/v1/pods", timeout: 30 * time.Second, document: c.Pods},
		{method: http.MethodGet, path: "/v1/sources", timeout: 30 * time.Second, document: c.Sources},
	}
}

// find returns the route of a request, or why there is none.
func (s *Server) find(r *http.Request) (route, *Refusal) {
	var methods []string
	for _, it := range s.routes {
		switch {
		case it.path != r.URL.Path:
		case it.method != r.Method:
			methods = append(methods, it.method)
		default:
			return it, it.refuses(r)
		}
	}
	if len(methods) > 0 {
		return route{}, &Refusal{Code: http.StatusMethodNotAllowed, Message: r.URL.Path + " does not take " + r.Method, allow: methods}
	}
	return route{}, &Refusal{Code: http.StatusNotFound, Message: "there is no " + r.URL.Path}
}

// refuses says what a request to this route has that the route does not take.
func (r route) refuses(q *http.Request) *Refusal {
	if q.ContentLength < 0 || q.ContentLength > r.body {
		return &Refusal{Code: http.StatusRequestEntityTooLarge, Message: r.path + " takes no body"}
	}
	query, err := url.ParseQuery(q.URL.RawQuery)
	if err != nil {
		return &Refusal{Code: http.StatusBadRequest, Message: "the query cannot be read"}
	}
	for name := range query {
		if !slices.Contains(r.query, name) {
			return &Refusal{Code: http.StatusBadRequest, Message: r.path + " has no parameter " + name}
		}
	}
	return nil
}
