// Package csi mounts volumes of CSI drivers for pods of a cluster, and unmounts them.
//
// Drivers register through the registry of plugins (package device). For each volume of a pod, the
// engine calls Publish through package volume, and Unpublish when the pod is gone. Both observe the
// volume, get one step from Next, execute it, and observe again.
//
// The files have the kubelet's names, below the kubelet's directory:
//
//	plugins/kubernetes.io/csi/<driver>/<sha256 of the handle>/{vol_data.json,globalmount}
//	pods/<uid>/volumes/kubernetes.io~csi/<volume>/{vol_data.json,mount}
//
// Those of block volumes are in other directories; the kubelet has a link to the device in place of
// the last one:
//
//	plugins/kubernetes.io/csi/volumeDevices/<volume>/data/vol_data.json
//	plugins/kubernetes.io/csi/volumeDevices/{staging/<volume>,publish/<volume>/<uid>}
//	pods/<uid>/volumeDevices/kubernetes.io~csi/<volume>/vol_data.json
//
// Before the package calls a driver, it names the volume in vol_data.json. After the call it writes
// there that the call succeeded. The next agent reads these files and the kernel's table of mounts.
// Drivers unmount only the volumes that a file names.
package csi

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/bootid"
	"github.com/nodectl/nodectl/pkg/keylock"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// Config configures Volumes.
type Config struct {
	Node string // the name of the node
	Dir  string // the kubelet's directory
	// Health makes Usage report the condition of a volume, too (the feature gate CSIVolumeHealth).
	Health bool
	Log    *slog.Logger
	// Boot identifies the boot of the machine; "" reads it from the kernel.
	Boot string
	// Dial connects to a socket of the machine; nil is the kernel's. Tests in fake time replace it.
	Dial pluginconn.Dialer
	// Cut stops an operation at a point, as a kill of the agent would; nil except in tests.
	Cut func(point string) error
}

// Cluster is the cluster of the node.
type Cluster struct {
	API API
	// Node returns the Node object of the API server, nil while it is unknown.
	Node func() *v1.Node
	// Report requests a report of the Node status soon.
	Report func()
}

// API reads objects of an API server. The error is nil for an object that does not exist.
type API interface {
	CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error)
	VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error)
	SecretData(ctx context.Context, namespace, name string) (map[string]string, error)
	// TokenStatus returns a token of the pod's service account, and the time of its renewal.
	TokenStatus(ctx context.Context, want *pod.Spec, of *v1.ServiceAccountTokenProjection) (authenticationv1.TokenRequestStatus, time.Time, error)
	// MarkClaimResize reports how far the expansion of a claim's file system has come, "" for no
	// change, and why it failed, if it did. It returns the claim as it is now.
	MarkClaimResize(ctx context.Context, claim *v1.PersistentVolumeClaim, state v1.ClaimResourceStatus, failure string) (*v1.PersistentVolumeClaim, error)
	// SetClaimSize reports that the file system of a claim has a size.
	SetClaimSize(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) error
	CSINode(ctx context.Context, name string) (*storagev1.CSINode, error)
	// PutCSINode creates an object that has no resource version, and replaces an object that has
	// one.
	PutCSINode(ctx context.Context, n *storagev1.CSINode) error
}

// Volumes are the CSI drivers of this node, and the volumes that they mount. Many goroutines may
// use it.
type Volumes struct {
	cfg     Config
	boot    string
	cluster Cluster                 // set before Run, Publish and Register
	locks   keylock.Locks[volumeID] // one operation at a time works on a volume
	due     wakeup.Signal           // the CSINode object may have to change
	undone  wakeup.Signal           // Run has something to unmount or to unstage
	refresh wakeup.Signal           // a limit may have changed
	// patience is waitTimeout, and rejectAfter the constant of this name, except in tests.
	patience, rejectAfter time.Duration
	cut                   func(point string) error // Config.Cut

	mu      sync.Mutex
	drivers map[string]*driver
	gone    map[string]bool // drivers that have unregistered and not registered again
	volumes map[volumeID]*volume
	left    map[user]leftover
	full    map[string]bool // drivers whose volumes the node may have too many of
	swept   bool            // Sweep has run
}

// user is one volume of one pod.
type user struct {
	uid, name string
	block     bool // a block volume
}

// volume is the state of one volume on the disk. It is read when the agent starts; each step reads
// the disk again.
type volume struct {
	attached bool               // as far as known, a controller attaches the volume
	staged   bool               // its staging directory exists
	foreign  bool               // a kubelet has staged it
	users    map[user]bool      // true: its directory exists; false: the pod is about to use the volume
	waits    map[user]time.Time // since when pods wait for its attachment
	retry    time.Time          // when Run retries to unstage it
	failures int
	// refusesGrowth says that the driver cannot enlarge it while it is mounted.
	refusesGrowth bool
}

// leftover is a volume of a pod that no source has.
type leftover struct {
	retry    time.Time
	failures int
}

// New returns Volumes. It finds the volumes that an earlier agent or a kubelet has left.
func New(cfg Config) *Volumes {
	if cfg.Dial == nil {
		cfg.Dial = pluginconn.Dial
	}
	boot := cfg.Boot
	if boot == "" {
		boot, _ = bootid.Read() // without an ID, each volume counts as one of an earlier boot
	}
	v := &Volumes{
		cfg: cfg, boot: boot, cut: cfg.Cut, patience: waitTimeout, rejectAfter: rejectAfter, due: wakeup.New(), undone: wakeup.New(), refresh: wakeup.New(), drivers: make(map[string]*driver), gone: make(map[string]bool),
		volumes: make(map[volumeID]*volume), left: make(map[user]leftover), full: make(map[string]bool),
	}
	v.load()
	return v
}

// Join sets the cluster of the node. It is called before Run and before the first pod is set up.
func (v *Volumes) Join(c Cluster) { v.cluster = c }

// load reads the directories of staged and of published volumes.
func (v *Volumes) load() {
	plugins := filepath.Join(v.cfg.Dir, "plugins", pluginName)
	for _, driver := range names(plugins) {
		for _, sum := range names(filepath.Join(plugins, driver)) {
			dir := filepath.Join(plugins, driver, sum)
			d, err := readData(dir)
			if err != nil {
				v.cfg.Log.Warn("Failed to read a staged volume", "directory", dir, "error", err)
				continue
			}
			if id, ok := d.id(""); ok && v.stageDir(id) == dir {
				v.loadStaged(id, d)
			}
		}
	}
	v.loadDevices(filepath.Join(plugins, devicesDir))
	for _, uid := range names(filepath.Join(v.cfg.Dir, podsDir)) {
		for _, u := range v.usersIn(uid) {
			d, err := readData(v.userDir(u))
			if err != nil {
				v.cfg.Log.Warn("Failed to read a volume of a pod", "directory", v.userDir(u), "error", err)
				continue
			}
			if id, ok := d.idOf(u); ok {
				at := v.of(id)
				at.users[u] = true
				at.attached = at.attached || d[keyLifecycle] != ephemeral && d[keyAttach] != "false"
			}
		}
	}
}

// loadDevices reads the directories of block volumes.
func (v *Volumes) loadDevices(dir string) {
	for _, name := range names(dir) {
		d, err := readData(filepath.Join(dir, name, dataDir))
		if err != nil {
			v.cfg.Log.Warn("Cannot read the data of a staged volume, leaving it out", "directory", filepath.Join(dir, name, dataDir), "error", err)
			continue
		}
		if id, ok := d.id(name); ok {
			v.loadStaged(id, d)
		}
	}
}

func (v *Volumes) loadStaged(id volumeID, d data) {
	at := v.of(id)
	at.staged, at.foreign, at.attached = true, !d.own(), d[keyAttach] != "false"
}

// names returns the directories in a directory, not links.
func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range entries {
		if e.IsDir() {
			all = append(all, e.Name())
		}
	}
	return all
}

// of returns a volume, which it adds if there is none. The caller holds v.mu, or v is not shared
// yet.
func (v *Volumes) of(id volumeID) *volume {
	at := v.volumes[id]
	if at == nil {
		at = &volume{users: make(map[user]bool)}
		v.volumes[id] = at
	}
	return at
}

// changedLocked triggers an update of the CSINode object and the Node status. The caller holds
// v.mu.
func (v *Volumes) changedLocked() {
	v.due.Send()
	v.refresh.Send()
	if v.cluster.Report != nil {
		v.cluster.Report()
	}
}

// want notes that a pod is about to use a volume.
func (v *Volumes) want(id volumeID, u user, attachable bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.of(id)
	_, known := at.users[u]
	if !known {
		at.users[u] = false
	}
	delete(v.left, u)
	if !known || at.attached != attachable {
		at.attached = attachable
		v.changedLocked()
	}
}

// note notes whether the directory of a volume for a pod exists.
func (v *Volumes) note(id volumeID, u user, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.of(id)
	if at.users[u] = exists; !exists {
		delete(at.users, u)
		delete(at.waits, u)
	}
	v.forgetLocked(id, at)
}

// noteStaged notes whether the directory of a staged volume exists.
func (v *Volumes) noteStaged(id volumeID, exists bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	at := v.of(id)
	at.staged, at.foreign, at.failures = exists, false, 0
	v.forgetLocked(id, at)
}

// forgetLocked removes a volume without users and without a staging directory. The caller holds
// v.mu.
func (v *Volumes) forgetLocked(id volumeID, at *volume) {
	switch {
	case at.staged && len(at.users) == 0:
		v.undone.Send()
	case len(at.users) == 0:
		delete(v.volumes, id)
		v.changedLocked()
	}
}

// others returns the number of other users of a volume, including future ones. For an exclusive
// volume, it counts only users in other pods for which the volume's directory exists.
func (v *Volumes) others(id volumeID, not user, exclusive bool) int {
	v.mu.Lock()
	defer v.mu.Unlock()
	n := 0
	if at := v.volumes[id]; at != nil {
		for u, exists := range at.users {
			if exclusive && exists && u.uid != not.uid || !exclusive && u != not {
				n++
			}
		}
	}
	return n
}

// InUse returns the volumes that the Node object has to name in volumesInUse, sorted: a controller
// does not detach them.
func (v *Volumes) InUse() []v1.UniqueVolumeName {
	v.mu.Lock()
	defer v.mu.Unlock()
	var all []v1.UniqueVolumeName
	for id, at := range v.volumes {
		if at.attached {
			all = append(all, v1.UniqueVolumeName(id.unique()))
		}
	}
	sortNames(all)
	return slices.Compact(all)
}

// Mounted reports whether something is mounted on the path that Publish returned, or the path is a
// block device, and stays so. A
// table of mounts that cannot be read counts as one without it. A volume that is about to be
// unmounted counts as not mounted: a pod that wants it calls Publish.
func (v *Volumes) Mounted(path string) bool {
	v.mu.Lock()
	for u := range v.left {
		if v.userTarget(u) == path {
			v.mu.Unlock()
			return false
		}
	}
	v.mu.Unlock()
	if isIn(path, v.publishedDir()) {
		return isDevice(path)
	}
	at, err := mountAt(path)
	return err == nil && at != nil
}

// Uses reports whether a volume of a pod is mounted, or is about to be. It reads no disk.
func (v *Volumes) Uses(uid string) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, at := range v.volumes {
		for u := range at.users {
			if u.uid == uid {
				return true
			}
		}
	}
	return false
}

// Unpublish unmounts all volumes of a pod, and unstages those that no other pod uses. It may be
// repeated.
func (v *Volumes) Unpublish(ctx context.Context, uid string) error {
	if err := checkElement(uid); err != nil {
		return err
	}
	return v.unpublishAll(ctx, uid, v.usersOf(uid), nil)
}

// unpublishAll is Unpublish for these volumes of a pod, as long as still returns true for them.
func (v *Volumes) unpublishAll(ctx context.Context, uid string, users map[user]volumeID, still func(user) bool) error {
	var failed []error
	for u, id := range users {
		if err := v.unpublish(ctx, id, u, still); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return errors.Join(failed...)
	}
	v.removePodDirs(uid)
	return nil
}

// usersOf returns the volumes of a pod: volumes on the disk, and volumes that it was about to use.
func (v *Volumes) usersOf(uid string) map[user]volumeID {
	all := make(map[user]volumeID)
	v.mu.Lock()
	for id, at := range v.volumes {
		for u := range at.users {
			if u.uid == uid {
				all[u] = id
			}
		}
	}
	v.mu.Unlock()
	for _, u := range v.usersIn(uid) {
		d, _ := readData(v.userDir(u)) // unpublish reads it again, and says why it cannot be used
		if id, ok := d.idOf(u); ok {
			all[u] = id
		} else if _, known := all[u]; !known {
			all[u] = volumeID{}
		}
	}
	return all
}

// ownUsersOf returns the volumes of a pod that nodectl has mounted, or has begun to mount. A
// kubelet may use the same directory: its volumes are left out.
func (v *Volumes) ownUsersOf(uid string) map[user]volumeID {
	all := v.usersOf(uid)
	maps.DeleteFunc(all, func(u user, _ volumeID) bool {
		d, err := readData(v.userDir(u))
		return err != nil || !d.own()
	})
	return all
}

// removePodDirs removes the directories of a pod that are empty now.
func (v *Volumes) removePodDirs(uid string) {
	for _, block := range []bool{true, false} {
		dir := v.podDir(uid, block)
		for range 3 {
			if err := os.Remove(dir); err != nil && !os.IsNotExist(err) {
				break // other volumes, or the agent's own directory of the pod
			}
			dir = filepath.Dir(dir)
		}
	}
}

// Sweep unpublishes the volumes of all pods for whose UIDs keep returns false, except volumes that
// a kubelet has mounted. Run retries failures.
func (v *Volumes) Sweep(ctx context.Context, keep func(uid string) bool) error {
	var failed []error
	for _, uid := range names(filepath.Join(v.cfg.Dir, podsDir)) {
		if keep(uid) {
			continue
		}
		users := v.ownUsersOf(uid)
		if len(users) == 0 {
			continue
		}
		v.leave(users)
		still := func(u user) bool { return v.isLeft(u) && !keep(uid) }
		if err := v.unpublishAll(ctx, uid, users, still); err != nil {
			failed = append(failed, err)
			continue
		}
		v.mu.Lock()
		maps.DeleteFunc(v.left, func(u user, _ leftover) bool { return u.uid == uid })
		v.mu.Unlock()
	}
	v.mu.Lock()
	v.swept = true
	v.mu.Unlock()
	return errors.Join(failed...)
}

// isLeft reports whether a volume belongs to a pod that no source has, and no pod has requested it
// since.
func (v *Volumes) isLeft(u user) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, left := v.left[u]
	return left
}

// leave records volumes of pods that no source has, for Run.
func (v *Volumes) leave(users map[user]volumeID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for u := range users {
		if _, known := v.left[u]; !known {
			v.left[u] = leftover{retry: time.Now().Add(retryFirst), failures: 1}
		}
	}
	v.undone.Send()
}
