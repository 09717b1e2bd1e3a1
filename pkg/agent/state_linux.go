package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sink/journal"
)

// state has the stores below the root directory, and their content when the agent started.
type state struct {
	records *record.Records
	sets    *record.Split
	journal *journal.Journal
	kept    []pod.Record // of the previous agent
	// reported are the pods with their last statuses from the previous agent; before has only the
	// statuses.
	reported map[pod.Key]*v1.Pod
	before   map[pod.Key]v1.PodStatus
}

// openState opens the stores. It logs and skips unreadable content.
func openState(cfg Config) state {
	s := state{
		records: record.New(cfg.RootDir),
		sets:    newSets(cfg),
		journal: journal.New(filepath.Join(cfg.RootDir, "journal.jsonl"), cfg.Log),
	}
	var err error
	if s.kept, err = s.records.All(); err != nil {
		cfg.Log.Warn("Failed to read some records", "error", err)
	}
	entries, err := journal.Read(filepath.Join(cfg.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		cfg.Log.Warn("Failed to read the journal", "error", err)
	}
	s.before, s.reported = make(map[pod.Key]v1.PodStatus, len(entries)), make(map[pod.Key]*v1.Pod, len(entries))
	for key, e := range entries {
		if e.Pod != nil {
			s.before[key], s.reported[key] = e.Pod.Status, e.Pod
		}
	}
	return s
}

// lastGood returns the last good set of each source, from the previous agent. It logs and skips
// damaged sets.
func (a *Agent) lastGood() map[string]podconfig.Restored {
	sets, err := a.state.sets.Load()
	if err != nil {
		a.log.Warn("Failed to read some of the last good sets", "error", err)
	}
	return readonly.SetsByLayer(sets)
}

// newSets returns the store of last good sets: below the root directory, with Secrets encrypted. If
// pods may not start without the API server, sets with its Secrets are in a tmpfs, and do not
// survive a reboot.
func newSets(cfg Config) *record.Split {
	var memory *record.Sets
	key := cfg.SetsKey()
	run := bundle.RunDir(cfg.RootDir)
	if inMemory(run) {
		memory = record.NewSets(run, key)
	}
	apart := func(layer string, s pod.LastGoodSet) bool {
		return strings.HasPrefix(layer, pod.SourceAPI+":") && cfg.OfflineStart != pod.SourceAPI &&
			slices.ContainsFunc(s.Objects, func(o *pod.Object) bool { return o.Kind == pod.KindSecret })
	}
	return record.NewSplit(record.NewSets(cfg.RootDir, key), memory, apart)
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
