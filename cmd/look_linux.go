//go:build linux

package cmd

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/pkg/status"
)

// lookAtPods returns every pod of this node with its status, sorted, without an agent.
// It reads the last reported statuses from the journal, and updates them from the
// runtime if that answers.
func (p *program) lookAtPods(ctx context.Context) ([]v1.Pod, error) {
	entries, err := journal.Read(filepath.Join(p.cfg.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, failed(exitFailure, err, asRoot(err))
	}
	reported := make(map[pod.Key]*v1.Pod, len(entries))
	for key, e := range entries {
		reported[key] = e.Pod
	}
	kept, err := p.kept()
	if err != nil {
		p.say(p.err.Notice(fmt.Sprintf("what the agent kept cannot be read: %v", err)))
	}
	hostIPs, err := p.hostIPs(ctx)
	if err != nil {
		return nil, failed(exitUsage, fmt.Errorf("--node-ip: %w", err))
	}
	runtime, err := p.observe(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		p.say(p.err.Notice("the runtime does not answer, so this is what was last reported: " + err.Error()))
		return status.Pods(nil, reported, kept, hostIPs, time.Now()), nil
	}
	defer runtime.Close()
	have, err := runtime.Pods(ctx)
	if err != nil {
		if len(have) == 0 {
			return nil, failed(exitRuntime, err)
		}
		p.logger(slog.LevelWarn).Warn("Some pods were not read", "error", err)
	}
	return status.Pods(&have, reported, kept, hostIPs, time.Now()), nil
}
