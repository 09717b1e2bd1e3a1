package main

import (
	"os"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/compare"
)

// A Recording has the behaviour of one agent in all cases.
type Recording struct {
	Arm     string                 `json:"arm"`
	Version string                 `json:"version"`
	Began   time.Time              `json:"began"`
	Paths   map[string]string      `json:"paths"` // the meaning of this run's paths
	Cases   map[string]*CaseRecord `json:"cases"`
}

// A CaseRecord has the behaviour of one agent in one case.
type CaseRecord struct {
	Zero    time.Time             `json:"zero"` // the manifests appeared
	Moments []Moment              `json:"moments,omitempty"`
	Gone    time.Time             `json:"gone"` // they were taken away
	End     time.Time             `json:"end"`
	Pods    map[string]*PodRecord `json:"pods"`
	Slowest time.Duration         `json:"slowest"`         // call of the runtime to make or start something
	Said    []string              `json:"said,omitempty"`  // by the agent, of manifests it does not take
	Tiers   compare.Facts         `json:"tiers,omitempty"` // the groups above all pods
}

// A Moment is when the script did something.
type Moment struct {
	At   time.Time `json:"at"`
	What string    `json:"what"`
}

// A PodRecord is one pod, by the name in its manifest, through all its runs.
type PodRecord struct {
	Sandboxes []*Sandbox      `json:"sandboxes,omitempty"`
	Runs      []*Run          `json:"runs,omitempty"` // in the order they were created
	Seen      []Seen          `json:"seen,omitempty"` // the agent's reports of the pod, in order
	Inside    map[string]Look `json:"inside,omitempty"`
	Slowest   time.Duration   `json:"slowest"`
	Files     []string        `json:"files,omitempty"` // of its logs, when it was looked at
	// Refused is the first request that the runtime refused, with its error, by container;
	// "sandbox" is the pod's.
	Refused map[string]compare.Facts `json:"refused,omitempty"`
	Pulls   []string                 `json:"pulls,omitempty"` // images, credentials and results; each once
}

// A Sandbox is a sandbox in the runtime.
type Sandbox struct {
	ID      string        `json:"id"`
	Attempt uint32        `json:"attempt"`
	Created time.Time     `json:"created"`
	Stopped time.Time     `json:"stopped,omitzero"` // asked for
	Removed time.Time     `json:"removed,omitzero"`
	Config  compare.Facts `json:"config"` // as it was asked for
}

// A Run is one run of one container in the runtime.
type Run struct {
	ID        string          `json:"id"`
	Sandbox   string          `json:"sandbox"`
	Container string          `json:"container"`
	Attempt   uint32          `json:"attempt"` // the restart count it was made with
	Created   time.Time       `json:"created"`
	Started   time.Time       `json:"started,omitzero"`
	Asked     time.Time       `json:"asked,omitzero"` // to stop
	Grace     int64           `json:"grace,omitempty"`
	Finished  time.Time       `json:"finished,omitzero"`
	Removed   time.Time       `json:"removed,omitzero"`
	Exit      int32           `json:"exit"`
	Reason    string          `json:"reason,omitempty"`
	Config    compare.Facts   `json:"config"` // as it was asked for
	Resized   []compare.Facts `json:"resized,omitempty"`
	Log       string          `json:"log,omitempty"`

	pod  string   // as the node has it
	path string   // its log's
	file *os.File // that, held open because the agent may remove it
}

// A Seen is the agent's status of a pod, and how long it reported that.
type Seen struct {
	From   time.Time    `json:"from"`
	To     time.Time    `json:"to"`
	Status v1.PodStatus `json:"status"`
}

// A Look is the state of a running container, read without the runtime.
type Look struct {
	Files  map[string]string `json:"files,omitempty"` // /etc/hosts and the like
	Env    []string          `json:"env,omitempty"`
	Mounts []string          `json:"mounts,omitempty"`
	Cgroup compare.Facts     `json:"cgroup,omitempty"`
	Proc   compare.Facts     `json:"proc,omitempty"`

	Volumes    []string      `json:"volumes,omitempty"` // every file of the mounts
	Devices    []string      `json:"devices,omitempty"`
	Sysctls    compare.Facts `json:"sysctls,omitempty"`
	Namespaces compare.Facts `json:"namespaces,omitempty"`
}
