package look

import (
	"cmp"
	"os"
	"os/exec"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/record"
)

// Kept reads the agent's records of its pods.
func (c Config) Kept() ([]pod.Record, error) {
	return record.Look(c.RootDir)
}

// SetsKey is the key of the Secrets in last good sets, beside the root directory.
func (c Config) SetsKey() *record.Key {
	creds := ""
	if os.Geteuid() == 0 { // systemd-creds prompts other users
		creds, _ = exec.LookPath("systemd-creds")
	}
	return record.NewKey(c.RootDir, creds)
}

// lastSets opens the key of last good sets, which may execute a program. read reads the last
// good set of each of the agent's layers.
func (c Config) lastSets() (read func() (map[string]podconfig.Restored, error)) {
	key := c.SetsKey()
	failed := key.Open()
	return func() (map[string]podconfig.Restored, error) {
		sets, err := record.LookSplit(c.RootDir, bundle.RunDir(c.RootDir), key)
		return SetsByLayer(sets), cmp.Or(failed, err)
	}
}

// SetsByLayer returns last good sets as podconfig restores them.
func SetsByLayer(sets map[string]record.Set) map[string]podconfig.Restored {
	all := make(map[string]podconfig.Restored, len(sets))
	for name, s := range sets {
		all[name] = podconfig.Restored(s)
	}
	return all
}
