//go:build full

package sink

import "testing"

// TestF70_Outage_Paused: the server keeps connections and does not answer.
//
// Shows: F70
func TestF70_Outage_Paused(t *testing.T) {
	c := server(t)
	outage(t, c, "paused", 8, func() { c.APIServer.Pause(t) }, func() { c.APIServer.Resume(t) })
}
