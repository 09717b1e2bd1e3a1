package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/node"
)

// readCPUs returns the allocator of exclusive CPUs, NUMA memory and devices of NUMA nodes; nil with the
// default policies, which allocate none. It also checks the configured reserved CPUs. sys is the file system of /sys.
func readCPUs(cfg Config, f node.Facts, sys fs.FS) (*cpuset.Allocator, error) {
	if !cfg.PlacesContainers() && cfg.ReservedCPUs == "" {
		return nil, nil
	}
	machine, err := cpuset.Read(sys)
	if err != nil {
		return nil, readonly.Fail(readonly.Failure, err)
	}
	if err := machine.CheckReserved(cfg.CPUs(nil).Reserved); err != nil {
		return nil, readonly.Fail(readonly.Usage, fmt.Errorf("--reserved-cpus: %w", err), "name CPUs of /sys/devices/system/cpu/online")
	}
	if !cfg.PlacesContainers() {
		return nil, nil
	}
	system, kube := cfg.Reserved()
	reserved := v1.ResourceList{}
	for _, list := range []v1.ResourceList{system, kube, f.HardEvictionReservation(cfg.Thresholds())} {
		for name, q := range list {
			sum := reserved[name]
			sum.Add(q)
			reserved[name] = sum
		}
	}
	a, err := cpuset.New(machine, cfg.CPUs(reserved))
	if err != nil {
		return nil, readonly.Fail(readonly.Usage, err, "change --cpu-manager-policy, --memory-manager-policy, --topology-manager-policy, their options, or the reserved amounts")
	}
	return a, nil
}

// saveCPUs returns a function that writes the kubelet's state files. It removes the file of a policy
// that allocates nothing: a kubelet would not start with the file of an earlier policy. nodectl never
// reads the files.
func saveCPUs(root string) func(map[string][]byte) error {
	return func(files map[string][]byte) error {
		var failed []error
		for _, name := range []string{cpuset.CPUStateFile, cpuset.MemoryStateFile} {
			path := filepath.Join(root, name)
			if data, ok := files[name]; ok {
				failed = append(failed, atomicfile.Write(path, data, atomicfile.Options{Mode: 0o600, Temp: ".tmp"}))
			} else if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, err)
			}
		}
		return errors.Join(failed...)
	}
}
