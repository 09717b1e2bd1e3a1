// Package certificate gets a node its two certificates and keeps them fresh: the
// client certificate it shows to the API server, and the serving certificate it
// shows to whoever asks the node.
//
// Client asks with a bootstrap kubeconfig where there is nothing better, writes the
// kubeconfig, and rotates; others only read that file (pkg/apiclient). Serving is
// asked by the server at every handshake. A rotation decides when to ask, and how.
//
// The one rule: a private key is made here, never leaves its file (mode 0600, in the
// kubelet's layout), and an old certificate stands until a new one is on disk.
package certificate

import (
	"sync/atomic"
	"time"
)

// Facts is what is counted of a certificate.
type Facts struct {
	// Expires is when the certificate does; zero where there is none.
	Expires time.Time
	// Failures is how many times it could not be renewed.
	Failures int64
}

// counter counts failures.
type counter struct{ n atomic.Int64 }

// Inc counts one.
func (c *counter) Inc() { c.n.Add(1) }
