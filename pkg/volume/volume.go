// Package volume sets up the volumes of a pod's instance on disk and tears them down.
//
// The engine calls it before it makes a sandbox and after the last container is removed.
// Its files:
//
//	<root>/pods/<uid>/                     the pod (its record lies here too)
//	<root>/pods/<uid>/containers/          termination messages, one file per attempt of a container, made by cri
//	<root>/pods/<uid>/<instance>/          one instance of it
//	<root>/pods/<uid>/<instance>/ready     written when SetUp was completed, with its data
//	<root>/pods/<uid>/<instance>/etc-hosts
//	<root>/pods/<uid>/<instance>/volumes/<kind>/<name>
//	<root>/pods/<uid>/<instance>/volume-subpaths/<volume>/<container>/<number>   mounts of subPaths
//	<root>/volumes/<namespace>/<claim>/    claims, which outlive every pod
//
// Files that may be secret are only on file systems in memory, mounted below "volumes".
//
// The package removes only directories of pods, their logs, the links to these logs, and a
// claim when RemoveClaim is called. A removal follows no link and enters no mount.
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

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/keylock"
	"github.com/nodectl/nodectl/pkg/pod"
)

// The names in an instance's directory.
const (
	marker      = "ready" // the file that says that SetUp was completed
	volumesDir  = "volumes"
	subPathsDir = "volume-subpaths"
	hostsFile   = "etc-hosts"
)

// Config is the configuration of Volumes.
type Config struct {
	RootDir    string // the agent's directory
	Boot       string // identifies the boot of the machine; "" reads it from the kernel
	PodLogsDir string // pods' log directories; empty leaves logs alone
	// ContainerLogsDir has cri's links to containers' logs (C-1.22.10); empty leaves links
	// alone.
	ContainerLogsDir string
	ClusterDomain    string          // part of the names of pods with a subdomain
	Allocatable      v1.ResourceList // the node's allocatable resources
	SELinux          bool            // the node has SELinux: see SELinuxEnabled
	FileLabel        string          // the SELinux label of containers' files by default: see FileLabel
	// RecursiveReadOnly reports whether the runtime can make mounts recursively read-only
	// (C-1.37.8); nil means no.
	RecursiveReadOnly func(runtimeClass *string) bool
	// Token returns a token of the pod's service account, and when it has to be renewed
	// (C-1.38.11); nil without an API server.
	Token func(ctx context.Context, want *pod.Spec, s *v1.ServiceAccountTokenProjection) (token string, renew time.Time, err error)
	// TrustBundle returns the certificates of a bundle; nil without an API server.
	TrustBundle func(ctx context.Context, s *v1.ClusterTrustBundleProjection) (string, error)
	// Claim returns the volume of an API server's claim, for the pod that names it; nil without
	// an API server.
	Claim func(ctx context.Context, want *pod.Spec, name string) (pod.BoundVolume, error)
	// Drivers mounts volumes of CSI drivers; nil: there are none.
	Drivers Drivers
	// Mounter mounts volumes of NFS servers; nil uses the node's mount.
	Mounter Mounter
	// Allow returns an error if a volume of the pod must not show a path of this node: that of a
	// hostPath, or the target of an API server's claim. SetUp calls it, and Mounts calls it again
	// for each container. If followed is true, at is the path after its links were followed.
	// Otherwise at is the path as written. nil allows every path.
	Allow func(want *pod.Spec, volume string, at *v1.HostPathVolumeSource, followed bool) error
	// Event receives events of pods; it must not block. nil drops them.
	Event func(pod.Event)
	Log   *slog.Logger
}

// Volumes sets up volumes and tears them down. Many goroutines may use it, each for
// different pods.
type Volumes struct {
	cfg  Config
	pods string // the directory of pods
	log  *slog.Logger
	step func() // see writer

	fileLimit int // maxFileCount, except in tests

	once   sync.Once
	bootID string // see boot

	claims keylock.Locks[string] // of the claims, by directory; held while one is made

	mu sync.Mutex
	// noted holds marks that could not be written because the disk is full or read-only, by the
	// directory of the instance.
	noted map[string]mark
}

// New returns Volumes under c.RootDir. It does no I/O.
func New(c Config) *Volumes {
	log := c.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Volumes{cfg: c, pods: filepath.Join(c.RootDir, "pods"), log: log, fileLimit: maxFileCount, noted: map[string]mark{}}
}

// placed is one volume of a pod with its kind and its path on the host.
type placed struct {
	*v1.Volume
	traits
	kind   kind
	path   string
	driver bool // a CSI driver mounts it, or has mounted it; path is "" before
	block  bool // path is a block device
	remote bool // a network file system is mounted on path
	labels bool // the mount gives the files the containers' SELinux label
}

// SetUp makes the directories and volumes of one instance. It may be repeated: existing
// volumes and containers' files stay. Files of config objects, pod fields and tokens are
// updated. A pod without volumes needs no disk. If a volume fails, the others are set up
// nevertheless. The error names each volume that failed.
func (v *Volumes) SetUp(ctx context.Context, want *pod.Spec, _ pod.Place, instance int) error {
	dir, all, err := v.place(want, instance)
	if err != nil || len(all) == 0 {
		return err
	}
	was, again := v.marked(dir)
	s := &setting{Volumes: v, want: want, again: again && !was.Partial, bound: maps.Clone(was.Bound)}
	if was.Boot == v.boot() { // else nothing of it is mounted any more
		s.drivers, s.remote = was.Drivers, maps.Clone(was.Remote)
	}
	hasFiles := false // whether the instance has files on disk
	var failed []error
	for _, p := range all {
		var err error
		if p.dir != "" {
			hasFiles = true
			err = os.MkdirAll(filepath.Dir(p.path), 0o700)
		}
		if err == nil {
			end := begin(ctx, "set up volume", p)
			err = p.kind.setUp(ctx, p, s)
			end()
		}
		if err != nil {
			failed = append(failed, fmt.Errorf("volume %s: %w", p.Name, err))
		}
	}
	if len(failed) > 0 {
		if !reflect.DeepEqual(was.Bound, s.bound) || !reflect.DeepEqual(was.Drivers, s.drivers) || !maps.Equal(was.Remote, s.remote) { // record the mounts of now
			m := was // not ready: it is of an earlier boot or of other volumes
			if m.Bound, m.Drivers, m.Remote = s.bound, s.drivers, s.remote; !s.again {
				m = mark{Boot: v.boot(), Partial: true, Bound: s.bound, Drivers: s.drivers, Remote: s.remote}
			}
			if err := v.mark(dir, hasFiles, m); err != nil {
				failed = append(failed, err)
			}
		}
		return rejected(utilerrors.NewAggregate(failed), failed)
	}
	return v.mark(dir, hasFiles, mark{Version: markVersion, Boot: v.boot(), Volumes: v.fingerprint(want), Until: s.until, Bound: s.bound, Drivers: s.drivers, Remote: s.remote})
}

// rejected returns err as a *pod.RejectError if one of errs is one, so that the pod is rejected.
func rejected(err error, all []error) error {
	for _, one := range all {
		if e := (*pod.RejectError)(nil); errors.As(one, &e) {
			return &pod.RejectError{Reason: e.Reason, Message: e.Message, Err: err}
		}
	}
	return err
}

// Ready reports in done whether SetUp was completed for this instance since the machine booted, and
// its volumes still exist. current says that they show the present spec and data. until is when
// SetUp has to be repeated in any case; zero means never. Ready is called often: it computes a
// checksum, reads one small file and makes a few system calls for each volume.
func (v *Volumes) Ready(want *pod.Spec, instance int) (done, current bool, until time.Time) {
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
		if (p.dir != "" || outlives || p.driver) && v.checkExists(p) != nil {
			return false, false, time.Time{}
		}
	}
	if m.Volumes != v.fingerprint(want) || !m.Until.IsZero() && !time.Now().Before(m.Until) {
		return true, false, time.Time{}
	}
	return true, true, m.Until
}

// begin notes for "nodectl why" that work on a volume has begun; end notes its end.
func begin(ctx context.Context, what string, p placed) (end func()) {
	return activity.Begin(ctx, activity.Call{Kind: activity.Volume, Name: what, Target: p.Name, Path: p.path})
}

// place returns the directory of an instance and its volumes, each with its kind and path.
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
	v.placeDriverMounts(dir, all)
	return dir, all, nil
}

// podDir returns the directory of the pod with uid. The UID may come from a manifest: it
// has to be a single path element.
func (v *Volumes) podDir(uid string) (string, error) {
	if err := oneName(uid); err != nil {
		return "", fmt.Errorf("pod UID %q: %w", uid, err)
	}
	return filepath.Join(v.pods, uid), nil
}

// oneName returns an error if name is not a single path element.
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
