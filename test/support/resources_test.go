//go:build linux

package support

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/podspec"
)

// resourceProof is a container with one named resource, and where it shows.
type resourceProof struct {
	row, key  string // "resources.limits", "memory"
	container string
	also      string // a row with the same key that goes with it: the API wants both
	look      func(*node) error
}

func resourceProofs() []resourceProof {
	shares := func(n *node) error { return is("shares", n.ctr().GetLinux().GetResources().GetCpuShares(), 256) }
	quota := func(n *node) error { return is("quota", n.ctr().GetLinux().GetResources().GetCpuQuota(), 50000) }
	limit := func(n *node) error {
		return is("memory", n.ctr().GetLinux().GetResources().GetMemoryLimitInBytes(), 64<<20)
	}
	score := func(n *node) error { return is("oom score", n.ctr().GetLinux().GetResources().GetOomScoreAdj(), 500) }
	gpu := func(n *node) error {
		return holds(len(n.ctr().GetDevices()) == 1 && n.ctr().GetDevices()[0].GetContainerPath() == "/dev/gpu", "devices %v", n.ctr().GetDevices())
	}
	refused := func(reason string) func(*node) error {
		return func(n *node) error { return n.refused(reason) }
	}
	return []resourceProof{
		{"resources.limits", "cpu", "resources: {limits: {cpu: 500m}}", "", quota},
		{"resources.limits", "memory", "resources: {limits: {memory: 64Mi}}", "", limit},
		{"resources.limits", "ephemeral-storage", "resources: {limits: {ephemeral-storage: 101Gi}}", "", refused("OutOfephemeral-storage")},
		{"resources.limits", "hugepages-2Mi", "resources: {limits: {hugepages-2Mi: 4Mi, memory: 1Gi}}", "", refused("OutOfhugepages-2Mi")},
		{"resources.limits", "example/gpu", "resources: {limits: {example/gpu: 1}}", "", gpu},
		{"resources.requests", "cpu", "resources: {requests: {cpu: 250m}}", "", shares},
		{"resources.requests", "memory", "resources: {requests: {memory: 4Gi}}", "", score},
		{"resources.requests", "ephemeral-storage", "resources: {requests: {ephemeral-storage: 101Gi}}", "", refused("OutOfephemeral-storage")},
		{"resources.requests", "hugepages-2Mi", "resources: {requests: {hugepages-2Mi: 4Mi, memory: 1Gi}, limits: {hugepages-2Mi: 4Mi}}", "resources.limits", refused("OutOfhugepages-2Mi")},
		{"resources.requests", "example/gpu", "resources: {requests: {example/gpu: 1}, limits: {example/gpu: 1}}", "resources.limits", gpu},
	}
}

// TestResources_EveryNamedKey_HasAProof: each resource that the table says takes effect has
// a look of its own, which depends on it; a row of the table is not proven by its first
// resource alone.
func TestResources_EveryNamedKey_HasAProof(t *testing.T) {
	t.Parallel()
	all := resourceProofs()
	for _, kind := range []string{"container", "init container"} {
		at := "spec." + kinds[kind] + "[]."
		for _, f := range podspec.Fields() {
			row, is := strings.CutPrefix(f.Path, at)
			if !is {
				continue
			}
			if (row == "resources.limits" || row == "resources.requests") && len(f.Keys) == 0 {
				t.Errorf("%s: the table names no resource", f.Path)
			}
			for _, key := range f.Keys {
				i := slices.IndexFunc(all, func(p resourceProof) bool { return p.row == row && p.key == key })
				if i < 0 {
					t.Errorf("%s: %s takes effect, and nothing shows it", f.Path, key)
					continue
				}
				t.Run(kind+": "+row+" "+key, func(t *testing.T) {
					t.Parallel()
					p := all[i]
					m := of(proof{name: p.key, rows: "c." + row, container: p.container, look: p.look}, kind)
					if err := m.attempt(t, m.doc); err != nil {
						t.Fatal(err)
					}
					without, found := edited(m.doc, at+row+"."+key, nil)
					if p.also != "" {
						without, _ = edited(without, at+p.also+"."+key, nil)
					}
					var none rejected
					if err := m.attempt(t, without); !found || err == nil || errors.As(err, &none) {
						t.Errorf("without it: found %v, %v", found, err)
					}
				})
			}
		}
	}
}
