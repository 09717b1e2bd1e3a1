package engine

import (
	"fmt"
	"log/slog"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// A directory may hold thousands of files that are no manifests; an update of one pod does
// not go through them.
func TestLogState_ThousandsOfUnchangedProblems_CostNothing(t *testing.T) {
	before := &podconfig.Merged{}
	for i := range 3000 {
		p := pod.Problem{File: fmt.Sprintf("a/%04d", i), Msg: "x"}
		before.Problems, before.Skipped = append(before.Problems, p), append(before.Skipped, p)
		before.Conflicts = append(before.Conflicts, podconfig.Conflict{Kind: "Pod", Key: pod.Key{Name: p.File}, Reason: "x"})
	}
	after := *before
	l := &loop{log: slog.New(slog.DiscardHandler), state: before}
	if n := testing.AllocsPerRun(10, func() { l.logState(&after) }); n > 10 {
		t.Errorf("%.0f allocations", n)
	}
}
