package cpuset

import (
	"encoding/json"
	"hash/fnv"
	"io"
	"strings"

	"k8s.io/utils/dump"
)

// The names of the kubelet's state files.
const (
	CPUStateFile    = "cpu_manager_state"
	MemoryStateFile = "memory_manager_state"
)

// The types and their fields have the kubelet's names, because its checksum covers the names.
type (
	Checksum             uint64
	CPUManagerCheckpoint struct {
		PolicyName    string                       `json:"policyName"`
		DefaultCPUSet string                       `json:"defaultCpuSet"`
		Entries       map[string]map[string]string `json:"entries,omitempty"`
		Checksum      Checksum                     `json:"checksum"`
	}
	MemoryManagerCheckpoint struct {
		PolicyName   string                     `json:"policyName"`
		MachineState NUMANodeMap                `json:"machineState"`
		Entries      ContainerMemoryAssignments `json:"entries,omitempty"`
		Checksum     Checksum                   `json:"checksum"`
	}
	NUMANodeMap                map[int]*NUMANodeState
	ContainerMemoryAssignments map[string]map[string][]Block
)

// Files returns the contents of the kubelet's state files by name. Only a policy that allocates
// something has a file (C-1.46.8).
func (s *State) Files() map[string][]byte {
	files := map[string][]byte{}
	if s.allocator.static {
		c := &CPUManagerCheckpoint{PolicyName: static, DefaultCPUSet: s.shared.String(), Entries: map[string]map[string]string{}}
		for uid, of := range s.cpus {
			c.Entries[uid] = map[string]string{}
			for name, set := range of {
				c.Entries[uid][name] = set.String()
			}
		}
		c.Checksum = checksum(c)
		files[CPUStateFile], _ = json.Marshal(c) // a type of strings and numbers always marshals
	}
	if s.allocator.memory {
		c := &MemoryManagerCheckpoint{PolicyName: memoryStatic, MachineState: s.nodes, Entries: ContainerMemoryAssignments(s.memory)}
		c.Checksum = checksum(c)
		files[MemoryStateFile], _ = json.Marshal(c)
	}
	return files
}

// checksum returns the kubelet's checksum of a checkpoint. The kubelet hashes a dump that names the
// Go types of its own packages, so checksum replaces the names of this project's packages.
func checksum(checkpoint any) Checksum {
	h := fnv.New32a()
	text := strings.NewReplacer("cpuset.Checksum", "checksum.Checksum", "cpuset.", "state.", "pod.", "state.").Replace(dump.ForHash(checkpoint))
	_, _ = io.WriteString(h, text)
	return Checksum(h.Sum32())
}
