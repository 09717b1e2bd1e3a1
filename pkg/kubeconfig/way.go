package kubeconfig

import (
	"crypto/sha256"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/client-go/util/connrotation"
)

// Way is the way to the server, as the kubeconfig and the files it names described
// it.
type Way struct {
	read     material
	until    time.Time         // when Config.Pair ends; zero where it is not shown
	identity [sha256.Size]byte // of who we are to whom, on the wire
	root     url.URL           // what all paths are below
	host     string            // scheme, host and port, for people
	wire     *http.Transport
	dials    *connrotation.Dialer
	trip     http.RoundTripper // says who we are, and goes by wire
}

// Host returns the scheme, host and port of the server, for people.
func (w *Way) Host() string { return w.host }

// newWay returns the way that rc describes.
func newWay(rc *rest.Config, root url.URL) (*Way, error) {
	cfg, err := rc.TransportConfig()
	if err != nil {
		return nil, err
	}
	tls, err := transport.TLSConfigFor(cfg)
	if err != nil {
		return nil, err
	}
	proxy := http.ProxyFromEnvironment
	if rc.Proxy != nil {
		proxy = rc.Proxy
	}
	w := &Way{
		identity: digest(rc.CAData, rc.CertData, rc.KeyData, []byte(rc.Host), []byte(rc.ServerName)),
		root:     root,
		host:     root.Scheme + "://" + root.Host,
		dials: connrotation.NewDialer((&net.Dialer{
			Timeout:         5 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3},
		}).DialContext),
	}
	w.wire = &http.Transport{
		Proxy:                 proxy,
		DialContext:           w.dials.DialContext,
		TLSClientConfig:       tls,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          2,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	w.trip, err = transport.HTTPWrappersForConfig(cfg, w.wire)
	return w, err
}

// RoundTrip sends a request as Client.RoundTrip does. An error is in words for
// people; what it wraps is the transport's.
func (w *Way) RoundTrip(r *http.Request) (*http.Response, error) {
	u := w.root
	u.Path = strings.TrimRight(w.root.Path, "/") + r.URL.Path
	u.RawPath = ""
	if r.URL.RawPath != "" {
		u.RawPath = strings.TrimRight(w.root.EscapedPath(), "/") + r.URL.RawPath
	}
	u.RawQuery = r.URL.RawQuery
	sent := r.Clone(r.Context())
	sent.URL, sent.Host = &u, ""
	response, err := w.trip.RoundTrip(sent)
	if err != nil {
		return nil, w.Explain(err)
	}
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		response.Header.Del("Location")
	}
	return response, nil
}

// close closes every connection.
func (w *Way) close() {
	w.wire.CloseIdleConnections()
	w.dials.CloseAll()
}
