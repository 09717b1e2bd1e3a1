package pod

import "time"

// ContainerUsage is the usage of one container, as reported by the runtime. A number that it does
// not say is nil.
type ContainerUsage struct {
	ID        string
	Key              // of the pod
	UID       string // of the pod
	Container string // its name in the spec
	Attempt   uint32
	At        time.Time // when CPU and memory were read

	CPUNanoseconds   *uint64 // since the container began
	CPURate          *uint64 // billionths of a processor, over the runtime's own window
	MemoryUsage      *uint64
	MemoryWorkingSet *uint64
	MemoryRSS        *uint64
	MemoryAvailable  *uint64 // up to its limit; nil without one
	PageFaults       *uint64
	MajorPageFaults  *uint64
	SwapUsage        *uint64
	SwapAvailable    *uint64

	Writable Filesystem // the container's writable layer
}

// Filesystem has a runtime's report of a file system and of its own part of it.
type Filesystem struct {
	At         time.Time
	Mountpoint string  // a directory on it; "" is not known
	Used       *uint64 // bytes of the runtime's part
	InodesUsed *uint64
}

// Cgroup is where a cgroup is.
type Cgroup struct {
	// Path is its name from the root of its hierarchy on, as /proc/<pid>/cgroup has it.
	Path string
	// Dirs are its directories by controller ("cpu", "memory"); the directory of cgroup v2 has the
	// key "". A controller that this machine does not have is not in it; a directory that is named
	// need not be there.
	Dirs map[string]string
}
