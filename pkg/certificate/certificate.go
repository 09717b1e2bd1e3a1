// Package certificate gets a node its two certificates and keeps them fresh: the
// client certificate it shows to the API server, and the serving certificate it
// shows to whoever asks the node.
//
// Client asks with a bootstrap kubeconfig where there is nothing better, writes the
// kubeconfig, and rotates; others only read that file (pkg/kubeconfig). Serving is
// asked by the server at every handshake. What decides when to ask, and how, is
// client-go's certificate manager: its goroutines are started and stopped by Run,
// and end shortly after it, for the library has no way to wait for them.
//
// The one rule: a private key is made here, never leaves its file (mode 0600, in the
// kubelet's layout), and an old certificate stands until a new one is on disk.
package certificate

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// Facts is what is counted of a certificate.
type Facts struct {
	// Expires is when the certificate does; zero where there is none.
	Expires time.Time
	// Failures is how many times it could not be renewed.
	Failures int64
}

// counter counts failures for the library.
type counter struct{ n atomic.Int64 }

// Inc counts one.
func (c *counter) Inc() { c.n.Add(1) }

// observer hears how long a certificate was used that is replaced.
type observer func(lived time.Duration)

// Observe takes seconds.
func (o observer) Observe(seconds float64) {
	if o != nil {
		o(time.Duration(seconds * float64(time.Second)))
	}
}

// logTo returns a context that hands the library's words to log, and that never
// ends: the library would start a goroutine to wait for its end.
func logTo(log *slog.Logger) *context.Context {
	ctx := logr.NewContext(context.Background(), logr.FromSlogHandler(log.Handler()))
	return &ctx
}
