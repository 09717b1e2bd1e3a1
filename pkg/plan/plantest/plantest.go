// Package plantest reads pods in the notation of tests: the desired pod as plain v1.Pod YAML, the
// state in the runtime in a short form, times as ages.
//
// The golden files of plan and status are written in it.
//
// Defaults are the ordinary case, so that a test names only the facts of its case.
package plantest

import (
	"cmp"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/yaml"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// Now is the current time in every golden file.
var Now = time.Date(2030, time.January, 1, 12, 0, 0, 0, time.UTC)

// Spec reads a desired pod. The namespace defaults to "default", the UID to "uid-" and the
// name; hashes are the real ones. Its source is a file, or the one that its
// kubernetes.io/config.source names.
func Spec(text []byte) (*pod.Spec, error) {
	p := &v1.Pod{}
	if err := yaml.UnmarshalStrict(text, p); err != nil {
		return nil, err
	}
	p.Namespace = cmp.Or(p.Namespace, "default")
	p.UID = cmp.Or(p.UID, types.UID("uid-"+p.Name))
	source := cmp.Or(pod.SourceOf(p), "file")
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: source, Location: "a/", File: "a/" + p.Name + ".yaml", Line: 1}}
	s.Hash, s.SandboxHash, s.ContainerHashes = podspec.NewHashes(p)
	return s, nil
}

// Have is the short form of pod.Actual.
type Have struct {
	UID        string      `json:"uid"`        // default: the desired pod's
	Sandbox    *Sandbox    `json:"sandbox"`    // the newest
	Older      []Sandbox   `json:"older"`      // newest first
	Containers []Container `json:"containers"` // the newest of each name
	Dead       []Container `json:"dead"`       // older ones, newest first
}

// Sandbox is the short form of pod.Sandbox. Hash is "same" (default), "old", "none" or a hash.
type Sandbox struct {
	ID          string   `json:"id"`       // default "s" and the attempt
	NotReady    bool     `json:"notReady"` //
	Attempt     uint32   `json:"attempt"`
	Instance    *int     `json:"instance"` // default 1
	IPs         []string `json:"ips"`      // default 10.88.0.2, none on the host network
	HostNetwork bool     `json:"hostNetwork"`
	Hash        string   `json:"hash"`
	Grace       *int64   `json:"grace"` // default unknown
}

// Container is the short form of pod.Container. Times are how long ago, so a
// negative one lies in the future.
type Container struct {
	Name     string  `json:"name"`
	ID       string  `json:"id"`       // default the name, "-" and the restarts
	Sandbox  string  `json:"sandbox"`  // default the newest one's ID
	State    string  `json:"state"`    // running (default), created, exited, unknown
	Exit     int32   `json:"exit"`     //
	Restarts int     `json:"restarts"` // the attempt as well
	Streak   int     `json:"streak"`   //
	Hash     string  `json:"hash"`     // "same" (default), "old", "none" or a hash
	Started  *string `json:"started"`  // default 1m before the end, 1m ago if it runs
	Finished *string `json:"finished"` // default 1s ago
	Reason   string  `json:"reason"`
	Message  string  `json:"message"`
	Image    string  `json:"image"`
	ImageID  string  `json:"imageID"`
	// Resources are the resources that it was made with, in the form of pod.Spec.Resources: "same",
	// or the text; default unknown.
	Resources string               `json:"resources"`
	PreStop   *v1.LifecycleHandler `json:"preStop"` // default unknown
}

// Actual reads the state in the runtime; "same" hashes are those of spec.
func Actual(text []byte, spec *pod.Spec) (pod.Actual, error) {
	var h Have
	if err := yaml.UnmarshalStrict(text, &h); err != nil {
		return pod.Actual{}, err
	}
	a := pod.Actual{Key: spec.Key, UID: h.UID}
	if h.Sandbox != nil {
		b := h.Sandbox.sandbox(spec)
		a.Sandbox = &b
	}
	for _, o := range h.Older {
		a.Older = append(a.Older, o.sandbox(spec))
	}
	for _, short := range h.Containers {
		c, err := short.container(spec, a.Sandbox)
		if err != nil {
			return a, err
		}
		if a.Containers == nil {
			a.Containers = map[string]pod.Container{}
		}
		a.Containers[c.Name] = c
	}
	for _, short := range h.Dead {
		c, err := short.container(spec, a.Sandbox)
		if err != nil {
			return a, err
		}
		a.Dead = append(a.Dead, c)
	}
	if !a.Empty() {
		a.UID = cmp.Or(a.UID, spec.UID())
	}
	return a, nil
}

func (s Sandbox) sandbox(spec *pod.Spec) pod.Sandbox {
	b := pod.Sandbox{
		ID:          cmp.Or(s.ID, fmt.Sprintf("s%d", s.Attempt)),
		Attempt:     s.Attempt,
		Ready:       !s.NotReady,
		HostNetwork: s.HostNetwork,
		IPs:         s.IPs,
		Instance:    1,
		SandboxHash: hash(s.Hash, spec.SandboxHash),
		Grace:       -1,
	}
	if s.Instance != nil {
		b.Instance = *s.Instance
	}
	if s.Grace != nil {
		b.Grace = *s.Grace
	}
	if b.IPs == nil && !b.HostNetwork {
		b.IPs = []string{"10.88.0.2"}
	}
	return b
}

func (s Container) container(spec *pod.Spec, newest *pod.Sandbox) (pod.Container, error) {
	c := pod.Container{
		ID:          cmp.Or(s.ID, fmt.Sprintf("%s-%d", s.Name, s.Restarts)),
		Name:        s.Name,
		SandboxID:   s.Sandbox,
		Attempt:     uint32(s.Restarts),
		Restarts:    s.Restarts,
		CrashStreak: s.Streak,
		Hash:        hash(s.Hash, spec.ContainerHash(s.Name)),
		Reason:      s.Reason,
		Message:     s.Message,
		Image:       s.Image,
		ImageID:     s.ImageID,
		ExitCode:    s.Exit,
		Resources:   s.Resources,
		PreStop:     s.PreStop,
	}
	if s.Resources == "same" {
		c.Resources = spec.Resources(s.Name)
	}
	if c.SandboxID == "" && newest != nil {
		c.SandboxID = newest.ID
	}
	states := map[string]pod.ContainerState{"": pod.StateRunning, "running": pod.StateRunning, "created": pod.StateCreated, "exited": pod.StateExited, "unknown": pod.StateUnknown}
	state, ok := states[s.State]
	if !ok {
		return c, fmt.Errorf("container %s: no state %q", s.Name, s.State)
	}
	c.State = state
	var err error
	end := Now
	if state == pod.StateExited {
		if end, err = ago(s.Finished, time.Second); err != nil {
			return c, err
		}
		c.FinishedAt = end
	}
	if state != pod.StateCreated {
		if c.StartedAt, err = ago(s.Started, Now.Sub(end)+time.Minute); err != nil {
			return c, err
		}
		c.CreatedAt = c.StartedAt
	}
	return c, nil
}

func ago(text *string, def time.Duration) (time.Time, error) {
	if text == nil {
		return Now.Add(-def), nil
	}
	if *text == "" {
		return time.Time{}, nil
	}
	d, err := time.ParseDuration(*text)
	return Now.Add(-d), err
}

func hash(word, same string) string {
	switch word {
	case "", "same":
		return same
	case "old":
		return cmp.Or(podspec.HashVersion(same), "v1") + "-old"
	case "none":
		return ""
	}
	return word
}
