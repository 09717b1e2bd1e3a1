// Package volume puts the volumes of a pod's instance in place on disk and
// takes them away again.
//
// The engine asks for it before a sandbox is made and after the last container
// is gone. What lies where:
//
//	<root>/pods/<uid>/                     the pod (its record lies here too)
//	<root>/pods/<uid>/containers/          termination messages, one file a container's life, which cri makes
//	<root>/pods/<uid>/<instance>/          one life of it
//	<root>/pods/<uid>/<instance>/ready     Put was completed, and of what
//	<root>/pods/<uid>/<instance>/etc-hosts
//	<root>/pods/<uid>/<instance>/volumes/<kind>/<name>
//	<root>/pods/<uid>/<instance>/volume-subpaths/<volume>/<container>/<number>   mounts of parts of volumes
//	<root>/volumes/<namespace>/<claim>/    claims, which outlive every pod
//
// What may be secret lies on file systems in memory only, mounted below "volumes".
//
// The one rule: nothing is ever removed outside a pod's own directories, not
// through a link, not across a mount. What a hostPath shows is the host's.
package volume

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The names below an instance's directory.
const (
	marker      = "ready" // the file that says that Put was completed
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	hostsFile   = "etc-hosts"
)

// Config is what Volumes are made of.
type Config struct {
	RootDir    string // the agent's directory
	PodLogsDir string // where pods' log directories are; empty leaves logs alone
	// ContainerLogsDir is where cri links to containers' logs (C-1.22.10); empty
	// leaves links alone.
	ContainerLogsDir string
	ClusterDomain    string          // in the names of pods with a subdomain
	Allocatable      v1.ResourceList // what the node gives to pods
	SELinux          bool            // the node has it: see SELinuxEnabled
	// RecursiveReadOnly says whether the runtime can make a mount read-only with all
	// that is mounted beneath (C-1.37.8); nil is no.
	RecursiveReadOnly func(runtimeClass *string) bool
	// Token returns a token of the pod's service account, and when it has to be
	// renewed (C-1.38.11); nil where there is no API server.
	Token func(ctx context.Context, want *pod.Spec, s *v1.ServiceAccountTokenProjection) (token string, renew time.Time, err error)
	// TrustBundle returns the certificates of a bundle; nil where there is no API
	// server.
	TrustBundle func(ctx context.Context, s *v1.ClusterTrustBundleProjection) (string, error)
	// Claim returns the directory that a claim of an API server is bound to, for the pod
	// that names it; nil where there is no API server.
	Claim func(ctx context.Context, want *pod.Spec, name string) (*v1.HostPathVolumeSource, error)
	// Allow says why a volume of the pod must not show a path of this node: one that the
	// pod names, or that its claim is bound to. It is asked when that is put in place and,
	// of a claim, before a container gets it; once for the path as it is written and, with
	// followed, once for what its links lead to. nil: every path may be shown.
	Allow func(want *pod.Spec, volume string, at *v1.HostPathVolumeSource, followed bool) error
	Log   *slog.Logger
}

// Volumes puts volumes in place and takes them away. It may be used by many
// goroutines, each for pods of its own.
type Volumes struct {
	cfg  Config
	pods string // the directory of pods
	log  *slog.Logger
	step func() // see writer
	most int    // names that are counted of a pod

	once   sync.Once
	bootID string // see boot

	claims sync.Mutex // held while the directory of a claim is made

	mu sync.Mutex
	// noted holds the marks of instances that keep nothing on disk and whose marker
	// could not be written, because the disk is full or read-only.
	noted map[string]mark
}

// New returns Volumes under c.RootDir. It touches nothing.
func New(c Config) *Volumes {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Volumes{cfg: c, pods: filepath.Join(c.RootDir, "pods"), log: log, most: largest, noted: map[string]mark{}}
}

// placed is one volume of a pod with its kind and its place on the host.
type placed struct {
	*v1.Volume
	traits
	kind kind
	path string
}

// Put makes the directories and volumes of one instance. It may be repeated:
// what is in place, and what containers have put into it, stays, and what shows
// config objects, the pod's fields or tokens is brought up to date. A pod without
// volumes needs nothing on disk. A volume that cannot be put does not hold up the
// others. An error names the volume and is for a person.
func (v *Volumes) Put(ctx context.Context, want *pod.Spec, _ pod.Place, instance int) error {
	dir, all, err := v.place(want, instance)
	if err != nil || len(all) == 0 {
		return err
	}
	was, again := v.marked(dir)
	s := &setting{Volumes: v, want: want, again: again && !was.Partial, bound: maps.Clone(was.Bound)}
	kept := false // whether the instance keeps something on disk
	var failed []error
	for _, p := range all {
		var err error
		if p.dir != "" {
			kept = true
			err = os.MkdirAll(filepath.Dir(p.path), 0o700)
		}
		if err == nil {
			err = p.kind.put(ctx, p, s)
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("volume %s: %w", p.Name, err))
		}
	}
	if len(failed) > 0 {
		if !reflect.DeepEqual(was.Bound, s.bound) { // what claims show must be known when they are put again
			m := was // of an earlier start of the machine, or not current: not ready either way
			if m.Bound = s.bound; !s.again {
				m = mark{Boot: v.boot(), Partial: true, Bound: s.bound}
			}
			if err := v.mark(dir, kept, m); err != nil {
				failed = append(failed, err)
			}
		}
		return utilerrors.NewAggregate(failed)
	}
	return v.mark(dir, kept, mark{Version: markVersion, Boot: v.boot(), Volumes: v.print(want), Until: s.until, Bound: s.bound})
}

// Ready reports whether Put was completed for this instance since the machine
// started, and its volumes are still there; current says that they show what the spec
// and its data stand for now. until is when that ends by time alone, zero for never. It
// is asked often: it costs a sum, one small file and a few looks at each volume.
func (v *Volumes) Ready(want *pod.Spec, instance int) (put, current bool, until time.Time) {
	dir, all, err := v.place(want, instance)
	if err != nil {
		return false, false, time.Time{}
	}
	if len(all) == 0 {
		return true, true, time.Time{}
	}
	m, ok := v.marked(dir)
	if !ok || m.Version != markVersion || m.Boot != v.boot() {
		return false, false, time.Time{}
	}
	for _, p := range all {
		_, outlives := p.kind.(claim)
		if (p.dir != "" || outlives) && p.there() != nil {
			return false, false, time.Time{}
		}
	}
	if m.Volumes != v.print(want) || !m.Until.IsZero() && !time.Now().Before(m.Until) {
		return true, false, time.Time{}
	}
	return true, true, m.Until
}

// place returns the directory of an instance and its volumes, each with its
// kind and place.
func (v *Volumes) place(want *pod.Spec, instance int) (dir string, all []placed, err error) {
	podDir, err := v.podDir(want.UID())
	if err != nil {
		return "", nil, err
	}
	if instance < 0 {
		return "", nil, fmt.Errorf("instance %d of pod %s does not exist", instance, want.Key)
	}
	dir = filepath.Join(podDir, strconv.Itoa(instance))
	for i := range want.Pod.Spec.Volumes {
		vol := &want.Pod.Spec.Volumes[i]
		if err := oneName(vol.Name); err != nil {
			return "", nil, fmt.Errorf("volume %q: %w", vol.Name, err)
		}
		k, err := v.kindOf(want, vol)
		if err != nil {
			return "", nil, fmt.Errorf("volume %s: %w", vol.Name, err)
		}
		t := k.traits()
		all = append(all, placed{Volume: vol, traits: t, kind: k, path: k.path(filepath.Join(dir, volumesDir, t.dir, vol.Name))})
	}
	return dir, all, nil
}

// podDir returns the directory of the pod with uid, which a manifest may have
// given: it has to be one plain name.
func (v *Volumes) podDir(uid string) (string, error) {
	if err := oneName(uid); err != nil {
		return "", fmt.Errorf("pod UID %q: %w", uid, err)
	}
	return filepath.Join(v.pods, uid), nil
}

// oneName says why name cannot name something inside a directory.
func oneName(name string) error {
	switch {
	case name == "":
		return errors.New("is empty")
	case name == ".", name == "..", strings.ContainsAny(name, "/\x00"):
		return errors.New("is not a plain file name")
	case len(name) > syscall.NAME_MAX:
		return fmt.Errorf("is longer than %d bytes", syscall.NAME_MAX)
	}
	return nil
}
