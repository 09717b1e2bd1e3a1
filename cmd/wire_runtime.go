//go:build linux

package cmd

import (
	"cmp"
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
)

// observe connects to the runtime that serve would use and that answers now. It starts
// nothing. The error names the endpoints that it tried.
func (p *program) observe(ctx context.Context) (*cri.Runtime, error) {
	found, err := p.discover(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	endpoint := found.Endpoint
	if endpoint == "" { // use the bundled one, if an agent has started it
		endpoint = p.bundled().Endpoint()
	}
	r, dialled := p.dial(endpoint, nil)
	if dialled != nil {
		return nil, dialled
	}
	ask, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	_, silent := r.Ready(ask)
	switch {
	case silent == nil:
		return r, nil
	case err == nil && found.Kind == "explicit":
		err = silent
	case err == nil:
		err = &bundle.NoRuntimeError{Tried: append(found.Tried, "bundled runtime: not running")}
	}
	_ = r.Close()
	return nil, err
}

// bundled returns the bundled runtime; it starts nothing.
func (p *program) bundled() *bundle.Runtime {
	return bundle.New(bundle.Config{RootDir: p.cfg.RootDir, Subnet: p.cfg.PodCIDR, Log: p.logger(slog.LevelWarn)})
}

// dial returns the runtime at endpoint; observe, which may be nil, is called for every call.
func (p *program) dial(endpoint string, observe func(cri.Call)) (*cri.Runtime, error) {
	return cri.Dial(cri.Config{
		Endpoint: endpoint, Node: p.cfg.NodeName, PodLogsDir: p.cfg.PodLogsDir,
		ContainerLogsDir: p.cfg.LogLinks(), RootDir: p.cfg.RootDir,
		CgroupParent: strings.TrimSuffix(p.cfg.CgroupRoot, "/"), Log: p.logger(slog.LevelWarn),
		Observe: observe, RuntimeClass: p.runtimeClass,
		EndTask:        func(ctx context.Context, id string) error { return bundle.EndTask(ctx, endpoint, id) },
		RuntimeClasses: p.cfg.Classes(), SeccompDir: filepath.Join(p.cfg.RootDir, "seccomp"), PauseProfile: p.pauseProfile(endpoint),
		ClusterDNS: p.cfg.ClusterDNS, ClusterDomain: p.cfg.ClusterDomain, ResolvConf: &p.cfg.ResolvConf,
	})
}

// pauseProfile returns the function that makes the seccomp profile of sandboxes at endpoint.
// It is nil for any runtime but the bundled one: CRI does not report the pause image.
func (p *program) pauseProfile(endpoint string) func() (string, error) {
	if b := p.bundled(); b.Endpoint() == endpoint {
		return b.PauseProfile
	}
	return nil
}

// kept reads the agent's records of its pods.
func (p *program) kept() ([]pod.Record, error) {
	return record.Look(p.cfg.RootDir)
}

// keptSets returns the store of last good sets: below the root directory, with Secrets
// encrypted. Sets with Secrets of an API server are in a tmpfs until the machine stops, and
// on a disk only if pods may start without the server.
func (p *program) keptSets() *record.Split {
	var memory *record.Sets
	key := p.setsKey()
	run := bundle.RunDir(p.cfg.RootDir)
	if inMemory(run) {
		memory = record.NewSets(run, key)
	}
	apart := func(layer string, s pod.Standing) bool {
		return strings.HasPrefix(layer, pod.SourceAPI+":") && p.cfg.OfflineStart != pod.SourceAPI &&
			slices.ContainsFunc(s.Objects, func(o *pod.Object) bool { return o.Kind == pod.KindSecret })
	}
	return record.NewSplit(record.NewSets(p.cfg.RootDir, key), memory, apart)
}

// setsKey is the key of the Secrets in last good sets, beside the root directory.
func (p *program) setsKey() *record.Key {
	creds := ""
	if os.Geteuid() == 0 { // systemd-creds prompts other users
		creds, _ = exec.LookPath("systemd-creds")
	}
	return record.NewKey(p.cfg.RootDir, creds)
}

// inMemory reports whether files below dir are lost when the machine stops.
func inMemory(dir string) bool {
	for ; dir != "/"; dir = filepath.Dir(dir) {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil {
			return fs.Type == unix.TMPFS_MAGIC
		}
	}
	return false
}

// lastSets opens the key of last good sets, which may execute a program. read reads the last
// good set of each of the agent's layers.
func (p *program) lastSets() (read func() (map[string]podconfig.Restored, error)) {
	key := p.setsKey()
	failed := key.Open()
	return func() (map[string]podconfig.Restored, error) {
		sets, err := record.LookSplit(p.cfg.RootDir, bundle.RunDir(p.cfg.RootDir), key)
		return setsByLayer(sets), cmp.Or(failed, err)
	}
}

func setsByLayer(sets map[string]record.Set) map[string]podconfig.Restored {
	all := make(map[string]podconfig.Restored, len(sets))
	for name, s := range sets {
		all[name] = podconfig.Restored(s)
	}
	return all
}
