// Package certificate obtains a node's two certificates and renews them: the client
// certificate for the API server, and the serving certificate of the agent's own
// server.
//
// Client requests a certificate with a bootstrap kubeconfig where there is no other,
// writes the kubeconfig, and rotates; others only read that file (pkg/apiclient). The
// server calls Serving at every handshake. A rotation decides when and how to request a
// certificate.
//
// The package creates private keys, and they never leave their files, which have mode
// 0600 and the kubelet's layout. An old certificate stays in use until a new one is on
// the disk.
package certificate

import (
	"sync/atomic"
	"time"
)

// Facts is the metrics of a certificate.
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
