//go:build full

package etcd

import "testing"

// A server's values are larger in all than a source reads: 256 MiB cross the wire.
func TestSets_EndlessValues_AreNotRead(t *testing.T) {
	t.Parallel()
	readsAtMost(t, &hostile{keys: 1000, bytes: 3 << 20}, 200)
}
