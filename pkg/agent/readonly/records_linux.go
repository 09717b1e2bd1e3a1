package readonly

import (
	"cmp"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/controller"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
	"github.com/nodectl/nodectl/pkg/sink/journal"
)

// Records reads the agent's records of its pods.
func (c Config) Records() ([]pod.Record, error) {
	return record.ReadRecords(c.RootDir)
}

// halted returns the reason why the agent starts no pods: the node is drained, or shuts down; else
// "".
func (c Config) halted() (string, error) {
	boot, _ := bootid.Read() // without an ID, no halt counts
	h, ok, err := record.LoadHalt(c.RootDir, boot)
	if !ok {
		return "", err
	}
	if h := h.Applicable(c.Kubeconfig != "", len(c.ShutdownClasses()) > 0); h != nil {
		return h.Text(), nil
	}
	return "", nil
}

// workloadStates returns the store of the agent's states of workloads.
func (c Config) workloadStates() controller.Store {
	return readOnly{c, func(each func(of pod.ObjectKey, layer string, state []byte)) error {
		return record.ReadWorkloads(c.RootDir, each)
	}}
}

// reported returns the pods with their last reported statuses.
func (c Config) reported() map[pod.Key]*v1.Pod {
	entries, err := journal.Read(filepath.Join(c.RootDir, "journal.jsonl"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		c.Notice("the statuses that the agent reported cannot be read: " + err.Error())
	}
	pods := make(map[pod.Key]*v1.Pod, len(entries))
	for key, e := range entries {
		pods[key] = e.Pod
	}
	return pods
}

// SetsKey returns the key of the Secrets in last good sets. Its file is beside the root directory.
func (c Config) SetsKey() *record.Key {
	creds := ""
	if os.Geteuid() == 0 { // systemd-creds prompts other users
		creds, _ = exec.LookPath("systemd-creds")
	}
	return record.NewKey(c.RootDir, creds)
}

// lastSets opens the key of last good sets, which may execute a program. The function read reads the
// last good set of each of the agent's layers.
func (c Config) lastSets() (read func() (map[string]podconfig.Restored, error)) {
	key := c.SetsKey()
	failed := key.Open()
	return func() (map[string]podconfig.Restored, error) {
		sets, err := record.ReadSplit(c.RootDir, bundle.RunDir(c.RootDir), key)
		return SetsByLayer(sets), cmp.Or(failed, err)
	}
}

// SetsByLayer returns last good sets in the form that podconfig restores.
func SetsByLayer(sets map[string]record.Set) map[string]podconfig.Restored {
	all := make(map[string]podconfig.Restored, len(sets))
	for name, s := range sets {
		all[name] = podconfig.Restored{Files: s.Files, At: s.At}
	}
	return all
}

// DesiredOrRecorded returns the specs of the pods that the last agent ran or would have run, from
// its records and its last good sets. With an error, some may be missing.
func (c Config) DesiredOrRecorded() ([]*pod.Spec, error) {
	var all []*pod.Spec
	records, err := c.Records()
	for _, r := range records {
		if r.Want != nil {
			all = append(all, r.Want)
		}
	}
	sets, lost := c.lastSets()()
	for _, set := range sets {
		for _, file := range set.Files {
			all = append(all, file.Pods...)
		}
	}
	return all, errors.Join(err, lost)
}
