// Package arm runs the real kubelet as one arm of a comparison with nodectl. It starts the
// kubelet on a machine that the kubelet does not own, and removes what it leaves.
//
// test/benchkubelet and test/benchcluster measure on it, test/parity and test/paritycluster
// compare.
//
// The one rule: nothing here assumes what a kubelet does; the package only keeps it off what
// belongs to the machine.
package arm

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// A Kubelet says where a kubelet runs.
type Kubelet struct {
	Name     string // of its node
	Dir      string // of its configuration and its certificate
	Root     string
	Logs     string // its pods'
	Cgroup   string // above all its pods
	Endpoint string // the runtime's
}

// configuration is the kubelet's default, except for cgroup v1 and for what a machine needs
// that it does not own: directories, cgroups, the packet filter.
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

// Arguments makes the kubelet's cgroup, writes its configuration, with more appended, and
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
