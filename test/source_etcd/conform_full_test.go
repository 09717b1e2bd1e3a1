//go:build full

package source_etcd

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
)

// Every rule has an etcd of its own; breaking it is kill -9.
func TestEtcdConforms(t *testing.T) {
	sourcetest.Run(t, func(t *testing.T) sourcetest.Fixture {
		const prefix = "/nodes/n1/"
		e := cluster.StartEtcd(t, cluster.EtcdOptions{})
		return sourcetest.Fixture{
			Source: newSource(t, prefix, e.Endpoints),
			Put:    func(name, text string) { e.Put(t, prefix+name, text) },
			Remove: func(name string) { e.Delete(t, prefix+name) },
			Break:  func() { e.Kill(t) },
			Mend:   func() { e.Start(t) },
		}
	})
}

// Shows: F70
func TestF70_QuorumLost(t *testing.T) {
	t.Parallel()
	const prefix = "/nodes/n1/"
	e := cluster.StartEtcd(t, cluster.EtcdOptions{Members: 3})
	e.Put(t, prefix+"a", "pod one x")
	l := listen(t, prefix, e.Endpoints[:1])
	until(t, l, "one") // busy members may elect a leader again
	e.Members[1].Kill(t)
	e.Members[2].Kill(t)
	says(t, l, "no leader: the cluster has no quorum")
	e.Start(t)
	e.Put(t, prefix+"b", "pod two x")
	until(t, l, "one", "two")
}
