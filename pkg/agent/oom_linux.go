package agent

import (
	"context"
	"log/slog"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/node"
)

// watchOOM adds an event of the node for each process that the kernel kills because the
// machine is out of memory, until ctx ends.
func watchOOM(ctx context.Context, event nodeEvent, log *slog.Logger) {
	err := node.WatchOOM(ctx, func(victim node.Victim) {
		log.Warn("System OOM encountered", "process", victim.Process, "pid", victim.PID)
		event("SystemOOM", v1.EventTypeWarning, victim.Message())
	})
	if err != nil {
		log.Info("Failed to read the kernel log; not reporting out-of-memory kills of the machine", "error", err)
	}
}
