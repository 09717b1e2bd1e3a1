package doctor

import (
	"io/fs"
	"path/filepath"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// AgentConfig has the settings of the agent that is to run here: Look reads the files and directories
// that they name.
type AgentConfig struct {
	Root string // prefix of every path that is read; "" except in tests

	NodeName    string
	RootDir     string
	Manifests   []string // files and directories that are sources
	Permissive  bool     // the agent reads manifests that others can write to
	Kubeconfig  string
	Bootstrap   string
	CertDir     string
	ClientCA    string
	ServerCert  string
	ServerKey   string
	ConfigFiles []string // those that were read
	ResolvConf  string
	LogDir      string
	Address     string
	Port        int // of the server; 0 is none
	HealthzPort int
	FailSwapOn  bool
	Protect     bool // the kernel's settings must have a node's values
	Thresholds  []pod.Threshold

	Settings Settings
}

// Settings are the settings that the benchmark checks and that Look cannot read from the
// machine.
type Settings struct {
	Cluster            bool // there is an API server
	NodeNameGiven      bool
	RotateCertificates bool
	RotateServer       bool
	ServerPort         int
	IdleTimeout        time.Duration
	EventQPS           int
	PodPidsLimit       int
	MinTLS             string
	CipherSuites       []string
}

// KubeletState returns the name of a kubelet's state file that a root directory has, "" for none.
// In a directory that an agent of nodectl has used, the agent wrote the file.
func KubeletState(root string, exists func(path string) bool) string {
	find := func(names ...string) string {
		for _, name := range names {
			if exists(filepath.Join(root, name)) {
				return name
			}
		}
		return ""
	}
	if find("node-name", "lock", "journal.jsonl") != "" {
		return ""
	}
	return find("cpu_manager_state", "memory_manager_state")
}

// Facts are the results of Look, and of the calls to the runtime.
type Facts struct {
	Agent   AgentConfig
	Now     time.Time
	UID     int
	Caps    uint64 // effective capabilities
	OOM     int    // this process's oom_score_adj
	Systemd bool   // systemd is the init of this machine
	Kernel  string

	Cgroup  Cgroup
	Runtime Runtime
	Runc    string // its version, "" where there is none
	CNI     CNI

	Filesystems []string
	Seccomp     bool
	UserNS      int64 // most user namespaces; -1 unknown
	Sysctls     map[string]string
	Bridge      bool // bridged packets pass iptables' rules
	Iptables    bool
	NoNFTables  bool // the kernel has no nftables
	Addresses   int  // beside loopback's
	HostName    string
	Resolver    Resolver

	Clock Clock
	Certs []Certificate
	Files []File
	Disks []Disk
	// Memory is the available and the total memory, in bytes.
	MemoryFree, MemorySize uint64
	Swap                   []string
	Descriptors            uint64 // limit of file descriptors of this process

	Ports    []Port    // configured ports that are in use
	Kubelets []Process // running kubelets
	LeftPods int       // directories of a kubelet's pods
	RootOf   string    // the file that shows that the root directory is a kubelet's
}

// Cgroup is the hierarchy of this machine.
type Cgroup struct {
	Version     string // "v2", "v1", "hybrid"; "" is none
	Controllers []string
	Writable    bool
	Foreign     string // owner of the cgroup of all pods, if not nodectl; cmd sets it
}

// Runtime has the answers of the container runtime; cmd asks it.
type Runtime struct {
	Endpoint string
	Err      string // why it did not answer
	Bundled  bool   // the bundled one, whether or not it runs now
	Name     string
	Version  string
	Ready    bool
	ReadyMsg string
	Network  bool
	NetMsg   string
	Systemd  bool // its cgroup driver
	Driver   bool // Systemd is known
}

// CNI is the configuration of the pod network.
type CNI struct {
	Dir     string
	Configs []string
	Broken  []string // file and why
	Missing []string // plugins that are in no directory
}

// Resolver is the node's resolv.conf, the base of pods' DNS.
type Resolver struct {
	Path    string
	Err     string
	Servers []string
}

// Clock is the state of the kernel's clock.
type Clock struct {
	Known  bool
	Synced bool
	RTC    time.Duration // offset of the hardware clock
	HasRTC bool
}

// Certificate is a certificate of the agent.
type Certificate struct {
	Path      string
	Err       string
	NotBefore time.Time
	NotAfter  time.Time
}

// File is a file that the agent reads or keeps.
type File struct {
	Path   string
	What   string
	Role   Role
	Exists bool
	Err    string
	Mode   fs.FileMode
	UID    int
	GID    int
}

// Role decides which rights other users may have on a file.
type Role int

const (
	Secret   Role = iota // other users must not read it
	Trusted              // other users must not write it
	Manifest             // the agent does not read it if other users may write it
	Unit                 // used by the benchmark only
)

// Disk is a file system that the agent or the runtime uses.
type Disk struct {
	What       string // as in eviction signals: nodefs, imagefs
	Path       string
	Free, Size uint64
	// Inodes is 0 if the file system does not count inodes.
	InodesFree, Inodes uint64
}

// Port is a configured port that is in use.
type Port struct {
	Number int
	What   string // port, healthz-port
	By     string // the process that listens: "name (pid N)", or "another process"
	Own    bool   // the process is a nodectl
}

// Process is a running process.
type Process struct {
	PID int
	Exe string
}
