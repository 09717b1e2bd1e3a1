package agent

import (
	"errors"
	"os"
	"path/filepath"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/agent/look"
	"github.com/nodectl/nodectl/pkg/atomicfile"
	"github.com/nodectl/nodectl/pkg/cpuset"
	"github.com/nodectl/nodectl/pkg/node"
)

// readCPUs returns what gives containers CPUs and memory for themselves, nil with the default
// policies: then it reads nothing.
func readCPUs(cfg Config, f node.Facts) (*cpuset.Allocator, error) {
	if !cfg.PlacesContainers() {
		return nil, nil
	}
	machine, err := cpuset.Read(os.DirFS("/sys"))
	if err != nil {
		return nil, look.Fail(look.Failure, err)
	}
	system, kube := cfg.Reserved()
	kept := v1.ResourceList{}
	for _, list := range []v1.ResourceList{system, kube, f.Spared(cfg.Thresholds())} {
		for name, q := range list {
			sum := kept[name]
			sum.Add(q)
			kept[name] = sum
		}
	}
	a, err := cpuset.New(machine, cfg.CPUs(kept))
	if err != nil {
		return nil, look.Fail(look.Usage, err, "change --cpu-manager-policy, --memory-manager-policy, --topology-manager-policy, their options, or the reserved amounts")
	}
	return a, nil
}

// saveCPUs writes the kubelet's state files. They only show what the agent has given: no agent
// reads them.
func saveCPUs(root string) func(map[string][]byte) error {
	return func(files map[string][]byte) error {
		var failed []error
		for name, data := range files {
			failed = append(failed, atomicfile.Write(filepath.Join(root, name), data, atomicfile.Options{Mode: 0o600}))
		}
		return errors.Join(failed...)
	}
}
