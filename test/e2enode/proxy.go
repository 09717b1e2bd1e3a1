package main

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
)

// serve serves a handler until the run ends. The harness ends with its namespaces.
func (s *stage) serve(listen string, config *tls.Config, h http.Handler) string {
	l, err := net.Listen("tcp", listen)
	if err != nil {
		s.tb.Fatal(err)
	}
	server := &http.Server{Handler: h, TLSConfig: config, ReadHeaderTimeout: 0} //nolint:gosec // the suite alone reaches it
	s.tb.Cleanup(func() { _ = server.Close() })
	go func() {
		var err error
		if config == nil {
			err = server.Serve(l)
		} else {
			err = server.ServeTLS(l, "", "")
		}
		if !errors.Is(err, http.ErrServerClosed) {
			s.tb.Error(err)
		}
	}()
	return l.Addr().String()
}

// proxyTo forwards requests to an https server as the administrator, unless the caller names
// itself.
func (s *stage) proxyTo(host string) *httputil.ReverseProxy {
	to := &url.URL{Scheme: "https", Host: host}
	return &httputil.ReverseProxy{
		Transport:     s.asAdmin(),
		FlushInterval: -1,
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(to) },
	}
}

// serveReadOnly answers on the kubelet's read-only port, with the answers of nodectl's own server.
func (s *stage) serveReadOnly() {
	p := s.proxyTo(net.JoinHostPort(address, "10250"))
	s.serve(net.JoinHostPort("127.0.0.1", strconv.Itoa(readOnlyPort)), nil, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet && r.Method != http.MethodHead {
			http.Error(w, "only GET", http.StatusMethodNotAllowed)
			return
		}
		p.ServeHTTP(w, r)
	}))
}

// announceReadOnly puts a proxy before the API server that makes the agent's configz name the
// read-only port, where the suite looks for it. It returns the proxy's URL.
func (s *stage) announceReadOnly() string {
	host := strings.TrimPrefix(s.cluster.URL, "https://")
	p := s.proxyTo(host)
	transport := p.Transport.(*http.Transport)
	transport.TLSClientConfig.Certificates = nil // the caller's token says who asks
	p.ModifyResponse = func(r *http.Response) error {
		if !strings.HasSuffix(r.Request.URL.Path, "/proxy/configz") || r.StatusCode != http.StatusOK {
			return nil
		}
		var all map[string]json.RawMessage
		config := map[string]any{}
		if err := json.NewDecoder(r.Body).Decode(&all); err != nil {
			return err
		}
		if err := json.Unmarshal(all["kubeletconfig"], &config); err != nil {
			return err
		}
		config["readOnlyPort"], config["address"] = readOnlyPort, "127.0.0.1"
		text, err := json.Marshal(map[string]any{"kubeletconfig": config})
		if err != nil {
			return err
		}
		r.Body = io.NopCloser(bytes.NewReader(text))
		r.ContentLength = int64(len(text))
		r.Header.Set("Content-Length", strconv.Itoa(len(text)))
		return nil
	}
	return "https://" + s.serve("127.0.0.1:0", s.serverTLS(), p)
}
