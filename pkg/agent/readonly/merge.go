package readonly

import (
	"context"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"

	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/confine"
	"github.com/nodectl/nodectl/pkg/feed"
	"github.com/nodectl/nodectl/pkg/forecast"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source/file"
)

// Manifests reads the sources of -f once. It returns their set, without pods of workloads, and the
// sources. kept has an agent's records: a rejected pod keeps its recorded version.
func (c Config) Manifests(ctx context.Context, kept []pod.Record) (*podconfig.Merged, Sources, error) {
	sources, err := c.Sources(Reading{Recorded: c.Specs(kept), Permissions: file.Warn})
	if err != nil {
		return nil, Sources{}, err
	}
	set, err := sources.once(ctx)
	return set, sources, err
}

// Merge reads all sources once. Before that, this process gives up all rights that reading does not
// need.
func (c Config) Merge(ctx context.Context) (*podconfig.Merged, error) {
	workloads := c.newWorkloads()
	sources, err := c.Sources(Reading{Permissions: file.Warn, EtcdAndAPI: true, Expander: workloads})
	if err != nil {
		return nil, err
	}
	if err := c.confine(); err != nil {
		return nil, err
	}
	set, err := sources.once(ctx)
	c.noticeOverrides(workloads)
	return set, err
}

func (s Sources) once(ctx context.Context) (*podconfig.Merged, error) {
	set := s.Config.Once(ctx)
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	return set, nil
}

// Updates follows all sources, until ctx ends or no source can change any more.
func (c Config) Updates(ctx context.Context, mode podconfig.Mode) (iter.Seq[feed.Update], error) {
	sources, err := c.Sources(Reading{Mode: mode, Permissions: file.Warn, EtcdAndAPI: true, Expander: c.newWorkloads()})
	if err != nil {
		return nil, err
	}
	return feed.Watch(ctx, sources.Config), nil
}

// DryRun returns the changes that serving the set would make. With against "auto" or "runtime", it
// compares the set with the pods of this machine. With "none" it compares the set with nothing, else
// with a file that merge has saved. If the runtime is not available, "runtime" is an error. This
// process gives up its rights before it parses sources, records and the file.
func (c Config) DryRun(ctx context.Context, against string) (none forecast.Forecast, err error) {
	var o forecast.Options
	var saved []byte
	halted := ""
	var lastSets func() (map[string]podconfig.Restored, error)
	switch against {
	case "none":
	case "auto", "runtime":
		runtime, err := c.observe(ctx)
		switch {
		case err != nil && against == "runtime":
			return none, Fail(Runtime, err, AsRoot(err))
		case err != nil:
			c.Notice("compared with nothing, so every pod is an ADD: " + err.Error())
		default:
			defer runtime.Close()
			o.Observer, o.TranslateOrigin, o.RequireSourceReady = runtime, c.here, c.RequireSourceReady()
			lastSets = c.lastSets()
			if halted, err = c.halted(); err != nil {
				c.Notice("it is not known whether the node is drained: " + err.Error())
			}
		}
	default:
		var err error
		if saved, err = readAtMost(against, maxSavedSize); err != nil {
			return none, Fail(Failure, err, "--against takes auto, runtime, none, or a set saved by 'nodectl merge'")
		}
	}
	if err := c.confine(); err != nil {
		return none, err
	}
	r, workloads := Reading{Permissions: file.Warn, EtcdAndAPI: true}, c.newWorkloads()
	if o.Observer != nil {
		o.Records = c.recordsHere()
		workloads = c.agentWorkloads(o.Records)
		r.Recorded = c.Specs(o.Records)
		sets, err := lastSets()
		if err != nil {
			c.Notice("some of what the agent kept of its sources cannot be read: " + err.Error())
		}
		r.Restored = c.restored(sets)
	}
	if saved != nil {
		var err error
		if o.Against, err = forecast.ReadSavedSet(saved, against); err != nil {
			return none, Fail(Failure, err)
		}
		r.Recorded = o.Against.Pods // a rejected pod keeps its saved version
	}
	r.Expander = workloads
	sources, err := c.Sources(r)
	if err != nil {
		return none, err
	}
	o.Config = sources.Config
	if o.Observer != nil {
		o.Forbids, o.Halted, o.Disabled = sources.Rules.Forbids, halted, c.Disabled()
	}
	preview, err := forecast.Preview(ctx, o)
	if ctx.Err() != nil {
		return none, context.Cause(ctx)
	}
	addRollouts(&preview, workloads.Foresee())
	c.noticeOverrides(workloads)
	return preview, Fail(Runtime, err)
}

// confine limits this process to the rights for reading sources and printing, so that a manifest
// that exploits a parser gains nothing. With a kubeconfig it limits nothing: a kubeconfig may name
// programs to execute, which write their own files.
func (c Config) confine() error {
	if c.Kubeconfig != "" {
		return nil
	}
	return confine.Reading(len(c.EtcdEndpoints) > 0 || slices.ContainsFunc(c.SourceNames(), config.IsURL))
}

// recordsHere returns the agent's records of its pods, with the names of sources on this command
// line.
func (c Config) recordsHere() []pod.Record {
	kept, err := c.Records()
	if err != nil {
		c.Notice("some of what the agent kept cannot be read, so pods are compared by hash: " + err.Error())
	}
	for i, r := range kept {
		if r.Want != nil {
			want := *r.Want
			want.Origin = c.here(want.Origin)
			kept[i].Want = &want
		}
	}
	return kept
}

// maxSavedSize is the maximal size of a saved set: much more than all sources of a machine have.
const maxSavedSize = 256 << 20

// readAtMost reads a file. It returns an error if the file has more than most bytes.
func readAtMost(path string, most int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, most+1))
	if err == nil && int64(len(data)) > most {
		err = fmt.Errorf("read %s: larger than %d MiB", path, most>>20)
	}
	return data, err
}
