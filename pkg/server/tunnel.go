package server

import (
	"bufio"
	"net"
	"net/http"
	"strings"

	"github.com/gorilla/websocket"
	tunneled "k8s.io/client-go/tools/portforward"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/streaming/pkg/httpstream"
	"k8s.io/streaming/pkg/httpstream/spdy"
)

// tunnel opens a WebSocket that contains SPDY, which kubectl port-forward tries first. It
// returns the response writer and the request for SPDY in the WebSocket. It returns nil
// after it has answered with an error.
func (s *Server) tunnel(w *session, r *http.Request) (http.ResponseWriter, *http.Request) {
	up := websocket.Upgrader{
		Subprotocols: []string{portforward.WebsocketsSPDYTunnelingPortForwardV1},
		CheckOrigin:  func(*http.Request) bool { return true }, // admit has checked the origin
	}
	known := false
	for _, p := range websocket.Subprotocols(r) {
		known = known || p == portforward.WebsocketsSPDYTunnelingPortForwardV1
	}
	if !known {
		http.Error(w, "unable to upgrade: no tunneling spdy protocols provided", http.StatusBadRequest)
		return nil, nil
	}
	h := http.Header{}
	conn, err := up.Upgrade(w, r, h)
	if err != nil {
		s.log.Debug("Failed to open WebSocket", "error", err)
		return nil, nil
	}
	within := r.Clone(r.Context())
	within.Method = http.MethodPost
	for name := range within.Header {
		if strings.HasPrefix(name, "Sec-Websocket-") {
			within.Header.Del(name)
		}
	}
	within.Header.Set(httpstream.HeaderConnection, httpstream.HeaderUpgrade)
	within.Header.Set(httpstream.HeaderUpgrade, spdy.HeaderSpdy31)
	within.Header.Set(httpstream.HeaderProtocolVersion, portforward.ProtocolV1Name)
	return &tunnelWriter{conn: tunneled.NewTunnelingConnection("server", conn), header: http.Header{}}, within
}

// tunnelWriter is the response writer for SPDY in a WebSocket. It drops the answer, because the
// upgrade to the WebSocket was answered already, and provides only the connection.
type tunnelWriter struct {
	conn   net.Conn
	header http.Header
}

// Header implements http.ResponseWriter.
func (i *tunnelWriter) Header() http.Header { return i.header }

// WriteHeader implements http.ResponseWriter.
func (i *tunnelWriter) WriteHeader(int) {}

// Write implements http.ResponseWriter.
func (i *tunnelWriter) Write(b []byte) (int, error) { return len(b), nil }

// Hijack implements http.Hijacker.
func (i *tunnelWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return i.conn, bufio.NewReadWriter(bufio.NewReader(i.conn), bufio.NewWriter(i.conn)), nil
}
