package apiclient

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

	"github.com/nodectl/nodectl/pkg/activity"
)

// Transport sends requests to the server that the kubeconfig described when it was read,
// with the credentials of that moment.
type Transport struct {
	read         material
	until        time.Time         // when Config.Pair expires; zero where it is not used
	identity     [sha256.Size]byte // sum of certificate, authority and server
	root         url.URL           // prefix of all paths
	host         string            // scheme, host and port, for people
	wire         *http.Transport
	dials        *connrotation.Dialer
	trip         http.RoundTripper // adds the credentials and sends by wire
	reachability *reachability     // of the client
}

// Host returns the scheme, host and port of the server, for people.
func (t *Transport) Host() string { return t.host }

// newTransport returns the transport that rc describes.
func newTransport(rc *rest.Config, root url.URL) (*Transport, error) {
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
	t := &Transport{
		identity: digest(rc.CAData, rc.CertData, rc.KeyData, []byte(rc.Host), []byte(rc.ServerName)),
		root:     root,
		host:     root.Scheme + "://" + root.Host,
		dials: connrotation.NewDialer((&net.Dialer{
			Timeout:         5 * time.Second,
			KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 30 * time.Second, Interval: 10 * time.Second, Count: 3},
		}).DialContext),
	}
	t.wire = &http.Transport{
		Proxy:                 proxy,
		DialContext:           t.dials.DialContext,
		TLSClientConfig:       tls,
		TLSHandshakeTimeout:   10 * time.Second,
		ResponseHeaderTimeout: 30 * time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConns:          2,
		ForceAttemptHTTP2:     true,
		HTTP2:                 &http.HTTP2Config{SendPingTimeout: 30 * time.Second, PingTimeout: 15 * time.Second},
	}
	t.trip, err = transport.HTTPWrappersForConfig(cfg, t.wire)
	return t, err
}

// RoundTrip sends a request as Client.RoundTrip does. The text of an error is for people;
// the error wraps that of http.Transport.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	u := t.root
	u.Path = strings.TrimRight(t.root.Path, "/") + r.URL.Path
	u.RawPath = ""
	if r.URL.RawPath != "" {
		u.RawPath = strings.TrimRight(t.root.EscapedPath(), "/") + r.URL.RawPath
	}
	u.RawQuery = r.URL.RawQuery
	ctx, end := activity.Trace(r.Context(), activity.Call{Kind: activity.Request, Name: r.Method, Target: r.URL.Path, Host: t.host})
	defer end()
	sent := r.Clone(ctx)
	sent.URL, sent.Host = &u, ""
	response, err := t.trip.RoundTrip(sent)
	if err != nil {
		if r.Context().Err() == nil {
			t.reachability.failed()
		}
		return nil, t.Explain(err)
	}
	if response.StatusCode < 400 {
		t.reachability.answered() // a server that starts answers requests with errors first
	}
	if response.StatusCode >= 300 && response.StatusCode < 400 {
		response.Header.Del("Location")
	}
	return response, nil
}

// close closes every connection.
func (t *Transport) close() {
	t.wire.CloseIdleConnections()
	t.dials.CloseAll()
}
