package doctor

import (
	"io/fs"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Where says what to look at: the settings of the agent that is to run here.
type Where struct {
	Root string // in front of every path that is read; "" but for tests

	NodeName    string
	RootDir     string
	Manifests   []string // files and directories that are sources
	Permissive  bool     // manifests that others can write to are read all the same
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
	Protect     bool // the kernel's settings must be those a node needs
	Thresholds  []pod.Threshold

	Settings Settings
}

// Settings are what the benchmark asks of a configuration, and nobody can see on a
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

// Facts is what Look saw, and what the runtime said.
type Facts struct {
	Where   Where
	Now     time.Time
	UID     int
	Caps    uint64 // effective capabilities
	OOM     int    // this process's oom_score_adj
	Systemd bool   // it runs this machine
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
	Addresses   int // beside loopback's
	HostName    string
	Resolver    Resolver

	Clock Clock
	Certs []Certificate
	Files []File
	Disks []Disk
	// Memory is what is free of how much, in bytes.
	MemoryFree, MemorySize uint64
	Swap                   []string
	Descriptors            uint64 // how many this process may open

	Ports    []Port    // those that are wanted, and taken
	Kubelets []Process // that run
	LeftPods int       // directories of a kubelet's pods
	RootOf   string    // the file that shows that the root directory is a kubelet's
}

// Cgroup is the hierarchy of this machine.
type Cgroup struct {
	Version     string // "v2", "v1", "hybrid"; "" is none
	Controllers []string
	Writable    bool
	Foreign     string // whose the cgroup of all pods is, where that is not nodectl's; cmd finds out
}

// Runtime is what the container runtime said; cmd asks it.
type Runtime struct {
	Endpoint string
	Err      string // why nobody answered
	Bundled  bool   // the one nodectl brings along, whether or not it runs now
	Name     string
	Version  string
	Ready    bool
	ReadyMsg string
	Network  bool
	NetMsg   string
	Systemd  bool // its cgroup driver
	Driver   bool // Systemd is known
}

// CNI is how pods get their networks.
type CNI struct {
	Dir     string
	Configs []string
	Broken  []string // file and why
	Missing []string // plugins that no directory holds
}

// Resolver is what pods' DNS starts from.
type Resolver struct {
	Path    string
	Err     string
	Servers []string
}

// Clock is what the kernel says of its own.
type Clock struct {
	Known  bool
	Synced bool
	RTC    time.Duration // how far the machine's clock is from this one's
	HasRTC bool
}

// Certificate is one the agent uses.
type Certificate struct {
	Path      string
	Err       string
	NotBefore time.Time
	NotAfter  time.Time
}

// File is one the agent reads or keeps.
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

// Role says who may do what with a file.
type Role int

const (
	Secret   Role = iota // nobody else may read it
	Trusted              // nobody else may write it
	Manifest             // nobody else may write it, or it is not read
	Unit                 // of the benchmark alone
)

// Disk is one file system that something stands on.
type Disk struct {
	What       string // the signal's: nodefs, imagefs
	Path       string
	Free, Size uint64
	// Inodes is 0 where the file system counts none.
	InodesFree, Inodes uint64
}

// Port is one that is wanted.
type Port struct {
	Number int
	What   string // port, healthz-port
	By     string // who listens there: "name (pid N)", or "another process"
	Own    bool   // that is a nodectl
}

// Process is one that runs.
type Process struct {
	PID int
	Exe string
}
