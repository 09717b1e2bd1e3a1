// Package arm lets the real kubelet be one arm of a comparison whose other is nodectl:
// it starts on a machine that it does not own, and what it leaves is taken away.
//
// test/benchkubelet and test/benchcluster measure on it, test/parity and
// test/paritycluster compare.
//
// The one rule: nothing here is an opinion of what a kubelet does; it is only kept off
// what belongs to the machine.
package arm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Kubelet is where one runs.
type Kubelet struct {
	Name     string // of its node
	Dir      string // of its configuration and its certificate
	Root     string
	Logs     string // its pods'
	Cgroup   string // above all its pods
	Endpoint string // the runtime's
}

// configuration is the kubelet's default, but for what a machine needs that it does
// not own (directories, cgroups, the packet filter), and cgroup v1.
const configuration = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
podLogsDir: %s
volumePluginDir: %s
containerRuntimeEndpoint: %s
cgroupRoot: %s
cgroupDriver: cgroupfs
failCgroupV1: false
makeIPTablesUtilChains: false
`

// Arguments makes its cgroup, writes its configuration, which more is added to, and
// returns the arguments to start it with.
func (k Kubelet) Arguments(more string) ([]string, error) {
	if err := MakeCgroup(k.Cgroup); err != nil {
		return nil, err
	}
	file := filepath.Join(k.Dir, "kubelet.yaml")
	text := fmt.Sprintf(configuration, k.Logs, filepath.Join(k.Dir, "plugins"), k.Endpoint, k.Cgroup) + more
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		return nil, err
	}
	return []string{"--config", file, "--root-dir", k.Root, "--cert-dir", filepath.Join(k.Dir, "pki"), "--hostname-override", k.Name}, nil
}

// Version returns what a kubelet's program says of itself, as v1.36.0.
func Version(program string) (string, error) {
	out, err := exec.Command(program, "--version").Output()
	return strings.TrimPrefix(strings.TrimSpace(string(out)), "Kubernetes "), err
}
