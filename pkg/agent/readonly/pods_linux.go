package readonly

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/sink/journal"
	"github.com/nodectl/nodectl/pkg/status"
)

// Pods returns every pod of this node with its status, sorted. It needs no agent: it reads the last
// reported statuses from the journal, and updates them if the runtime answers.
func (c Config) Pods(ctx context.Context) ([]v1.Pod, error) {
	entries, err := journal.Read(filepath.Join(c.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, Fail(Failure, err, AsRoot(err))
	}
	reported := make(map[pod.Key]*v1.Pod, len(entries))
	for key, e := range entries {
		reported[key] = e.Pod
	}
	kept, err := c.Records()
	if err != nil {
		c.Notice(fmt.Sprintf("what the agent kept cannot be read: %v", err))
	}
	hostIPs, err := c.HostIPs(ctx)
	if err != nil {
		return nil, Fail(Usage, fmt.Errorf("--node-ip: %w", err))
	}
	runtime, err := c.observe(ctx)
	if err != nil {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c.Notice("the runtime does not answer, so this is what was last reported: " + err.Error())
		return status.Pods(nil, reported, kept, hostIPs, time.Now()), nil
	}
	defer runtime.Close()
	have, err := runtime.Pods(ctx)
	if err != nil {
		if len(have) == 0 {
			return nil, Fail(Runtime, err)
		}
		c.Log.Warn("Failed to read some pods", "error", err)
	}
	return status.Pods(&have, reported, kept, hostIPs, time.Now()), nil
}

// HostIPs returns this machine's addresses: those of --node-ip, else the address of the default
// route, else loopback. It resolves the node's name by DNS only in a cluster.
func (c Config) HostIPs(ctx context.Context) ([]string, error) {
	name := ""
	if c.Kubeconfig != "" {
		name = c.NodeName
	}
	ips, err := node.HostIPs(ctx, name, c.NodeIP)
	if err != nil && len(c.NodeIP) == 0 { // static pods do not wait for the network
		return []string{"127.0.0.1"}, nil
	}
	return ips, err
}
