package server

import (
	"net/http"
	"net/url"
	"strings"
)

// crossOrigin reports whether a browser sends the request for a page of another origin.
// The browser adds its user's client certificate to such a request. The page can read and write a
// WebSocket without a permission of the server.
//
// An API server adds X-Forwarded-For to a request that it forwards, and does not change the
// Origin header of its own client. A page cannot set X-Forwarded-For without a preflight
// request, which no route answers.
func crossOrigin(r *http.Request) bool {
	if r.Header.Get("X-Forwarded-For") != "" {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return true
	}
	origin := r.Header.Get("Origin")
	if origin == "" {
		return false
	}
	from, err := url.Parse(origin)
	return err != nil || !strings.EqualFold(from.Host, r.Host) || r.TLS != nil && from.Scheme != "https"
}
