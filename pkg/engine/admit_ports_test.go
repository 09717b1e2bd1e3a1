package engine

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// Refused edits are judged again at every admission, beside the ports of all pods: each port
// is counted once for all of them.
func TestAdmission_ManyRefusedEditsBesideManyPorts_CountEachPortOnce(t *testing.T) {
	const holders, ports, edits = 10, 2000, 100
	l := orderLoop(Config{})
	l.cfg.Node = cores("100")
	l.state, l.start.phase = &podconfig.Merged{}, phaseSyncing
	add := func(was, want *pod.Spec) *entry {
		e := l.remove(was)
		e.allocated, e.want = was, want
		return e
	}
	for i := range holders {
		spec := mkpod(fmt.Sprintf("ports-%d", i), ofUID(fmt.Sprintf("own-%d", i)), func(p *v1.Pod) {
			for j := range ports {
				n := int32(1 + i*ports + j)
				p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, v1.ContainerPort{ContainerPort: n, HostPort: n, HostIP: "10.0.0.1"})
			}
		})
		add(spec, spec)
	}
	var refused, held []*entry
	for i := range edits / 2 {
		name := fmt.Sprintf("uid-%d", i)
		refused = append(refused, add(mkpod(name), mkpod(name, ofUID("own-1"))))
		name = fmt.Sprintf("cpu-%d", i)
		was := mkpod(name, cpu("1"))
		held = append(held, add(was, resized(was, cpu("99"))))
	}
	ctx := t.Context()
	l.admit(ctx)
	for i := range refused {
		if refused[i].refused.reason != "DuplicateUID" || held[i].resize.reason != "Deferred" {
			t.Fatalf("refused: %+v, held: %+v", refused[i].refused, held[i].resize)
		}
	}
	n := testing.AllocsPerRun(1, func() { l.admit(ctx) })
	if most := 10.0 * (holders*ports + 10*edits); n > most {
		t.Errorf("%.0f allocations for %d edits beside %d ports, want at most %.0f", n, edits, holders*ports, most)
	}
}
