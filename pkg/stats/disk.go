package stats

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/migration"
	"github.com/nodectl/nodectl/pkg/pod"
)

const (
	// deepest is how many directories deep a measurement goes. largest is how many files it counts for
	// a pod.
	deepest = 200
	largest = 2_000_000
	// maxHanging is how many measurements may hang at once.
	maxHanging = 8
	// podPatience is how long the measurement of one pod may take.
	podPatience = 10 * time.Second
	// evictionAge is how old the disk usage of a pod may be for an eviction.
	evictionAge = time.Second
)

// taken is the disk usage of a tree.
type taken struct{ bytes, inodes uint64 }

// measured is the disk usage of a pod, at one time.
type measured struct {
	at      time.Time
	volumes []volumeUsage
	logs    map[string]taken // by container
	logDisk *disk
	own     taken            // the files that the agent has for it: /etc/hosts
	layers  map[string]taken // the writable layers of running containers; nil: not measured
	claims  bool             // its claims were measured, too, or it has none
	partial bool             // a part of it was not measured
}

// volumeUsage is one volume of a pod.
type volumeUsage struct {
	name      string
	claim     string // the name of its PersistentVolumeClaim; "": none
	ephemeral bool   // it counts as the pod's ephemeral storage
	health    pod.VolumeHealth
	disk      disk
	taken     taken
}

// disksOf returns the disk usage of each pod for an eviction. If ctx leaves enough time, it is not older than
// evictionAge. It has the writable layers, because the runtime's figures may be a minute old: a pod that fills
// a disk within that time would not be evicted.
func (s *Stats) disksOf(ctx context.Context, r *reading) (map[string]measured, error) {
	return s.disksBy(ctx, r, measurement{age: min(s.cfg.Remeasure, evictionAge), uppers: upperDirs(s.mountinfo)}, func(*v1.Pod) bool { return true })
}

// measurement says which parts of a pod to measure, and how old known figures may be.
type measurement struct {
	claims bool              // measure claims and volumes of CSI drivers
	age    time.Duration     // newer figures are not measured again
	uppers map[string]string // the directories of writable layers by container ID; nil: they are not measured
}

// upperDirs returns the directories of writable layers by container ID. It finds only overlay mounts that
// containerd has made.
func upperDirs(mountinfo string) map[string]string {
	all := map[string]string{}
	text, err := os.ReadFile(mountinfo)
	if err != nil {
		return all
	}
	for line := range strings.Lines(string(text)) {
		mount, fs, _ := strings.Cut(strings.TrimSpace(line), " - ")
		at, kind := strings.Fields(mount), strings.Fields(fs)
		if len(at) < 5 || len(kind) < 3 || kind[0] != "overlay" || filepath.Base(at[4]) != "rootfs" {
			continue
		}
		for option := range strings.SplitSeq(kind[2], ",") {
			if dir, ok := strings.CutPrefix(option, "upperdir="); ok && !strings.Contains(dir, `\`) {
				all[filepath.Base(filepath.Dir(at[4]))] = dir
			}
		}
	}
	return all
}

// disks returns the disk usage of pods of a reading, by UID. It measures the pods that selects returns true
// for, unless their usage is newer than Config.Remeasure. If Remeasure is negative, the result is empty. If
// claims is false, the result may lack their claims, whose mounts depend on other machines. If ctx ends, disks
// returns its cause together with the known values, and the next call continues.
func (s *Stats) disks(ctx context.Context, r *reading, claims bool, selects func(*v1.Pod) bool) (map[string]measured, error) {
	return s.disksBy(ctx, r, measurement{claims: claims, age: s.cfg.Remeasure}, selects)
}

func (s *Stats) disksBy(ctx context.Context, r *reading, by measurement, selects func(*v1.Pod) bool) (map[string]measured, error) {
	if s.cfg.Remeasure < 0 {
		return map[string]measured{}, nil
	}
	select {
	case s.measuring <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-s.measuring }()
	all := make(map[string]measured, len(r.pods))
	for _, p := range r.pods {
		uid := string(p.pod.UID)
		m, ok := s.dirs[uid]
		if age := s.now().Sub(m.at); (!ok || age < 0 || age >= by.age || by.claims && !m.claims || by.uppers != nil && m.layers == nil) && selects(p.pod) && ctx.Err() == nil {
			now, ended := s.measureBounded(ctx, p.pod, by)
			// If the caller has left, drop the usage of a pod that is measured only in part. After a
			// timeout keep it: otherwise each call would measure a pod with many files again, and
			// never reach the pods after it.
			if ended && (ctx.Err() == nil || errors.Is(context.Cause(ctx), context.DeadlineExceeded)) {
				m, ok = now, true
			}
		}
		if ok {
			all[uid] = m
		}
	}
	s.dirs = all
	return all, context.Cause(ctx)
}

// measureBounded is measureDisks for a pod whose volumes may hang, for example on a dead mount. ended is false
// if the measurement does not end before ctx or podPatience, or if an earlier one of the pod still hangs. A
// measurement without claims does not wait for one with claims that hangs.
func (s *Stats) measureBounded(ctx context.Context, p *v1.Pod, by measurement) (m measured, ended bool) {
	ctx, stop := context.WithTimeout(ctx, podPatience)
	defer stop()
	calls := s.calls
	if by.claims && claiming(p) {
		calls = s.claimCalls
	}
	var now measured
	if err := calls.Do(ctx, string(p.UID), 0, func() error { now = s.measureDisks(ctx, p, by); return nil }); err != nil {
		s.cfg.Log.Debug("Failed to measure disk usage of pod", "namespace", p.Namespace, "pod", p.Name, "error", err)
		return m, false
	}
	return now, true
}

func (s *Stats) measureDisks(ctx context.Context, p *v1.Pod, by measurement) measured {
	m := measured{at: s.now(), logs: map[string]taken{}, claims: by.claims || !claiming(p)}
	left := largest
	for i := range p.Spec.Volumes {
		v := &p.Spec.Volumes[i]
		if foreign(v) && !by.claims {
			continue
		}
		if u, known := s.driven(ctx, p, v); known {
			if u != nil {
				m.volumes = append(m.volumes, *u)
			}
			continue
		}
		dir, claim := s.volumeDir(p, v)
		if dir == "" {
			continue
		}
		d, err := readDisk(dir)
		if err != nil {
			continue
		}
		t, err := measureTree(ctx, dir, &left)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil && claim == "" {
			m.partial = true
		}
		if err != nil && ctx.Err() == nil {
			s.cfg.Log.Debug("Failed to measure all of volume", "namespace", p.Namespace, "pod", p.Name, "volume", v.Name, "error", err)
		}
		onDisk := v.EmptyDir == nil || v.EmptyDir.Medium == v1.StorageMediumDefault
		m.volumes = append(m.volumes, volumeUsage{name: v.Name, claim: claim, ephemeral: claim == "" && onDisk, disk: d, taken: t})
	}
	if hosts, err := os.Lstat(filepath.Join(s.instanceDir(p), "etc-hosts")); err == nil && hosts.Mode().IsRegular() {
		if st, ok := hosts.Sys().(*syscall.Stat_t); ok {
			m.own = taken{uint64(st.Blocks) * 512, 1}
		}
	}
	s.measureLogs(ctx, p, &m, &left)
	if by.uppers != nil {
		m.measureLayers(ctx, p, by.uppers, &left)
	}
	return m
}

// driven returns the usage of a volume that a CSI driver has mounted; nil if the driver does not report it.
// known is false for another volume.
func (s *Stats) driven(ctx context.Context, p *v1.Pod, v *v1.Volume) (u *volumeUsage, known bool) {
	if s.cfg.Driven == nil || !foreign(v) {
		return nil, false
	}
	is, known, err := s.cfg.Driven(ctx, string(p.UID), v.Name)
	if !known {
		return nil, false
	}
	if err != nil {
		s.cfg.Log.Debug("Failed to read usage of volume", "namespace", p.Namespace, "pod", p.Name, "volume", v.Name, "error", err)
		return nil, true
	}
	claim := ""
	switch {
	case v.PersistentVolumeClaim != nil:
		claim = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		claim = p.Name + "-" + v.Name
	}
	if is.Health.Abnormal && s.cfg.Abnormal != nil {
		s.cfg.Abnormal(p, v.Name, is.Health.Message)
	}
	return &volumeUsage{
		name: v.Name, claim: claim, health: is.Health, taken: taken{is.Used, is.InodesUsed},
		disk: disk{capacity: is.Capacity, available: is.Available, used: is.Used, inodes: is.Inodes, inodesFree: is.InodesFree, inodesUsed: is.InodesUsed},
	}, true
}

// foreign reports whether a volume may depend on another machine or on a driver: access to it may hang.
func foreign(v *v1.Volume) bool {
	return v.PersistentVolumeClaim != nil || v.Ephemeral != nil || v.CSI != nil || migration.IsInline(&v.VolumeSource)
}

// measureLayers measures the writable layers of the pod's running containers.
func (m *measured) measureLayers(ctx context.Context, p *v1.Pod, uppers map[string]string, left *int) {
	m.layers = map[string]taken{}
	for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses, p.Status.EphemeralContainerStatuses} {
		for i := range list {
			dir := uppers[idOf(list[i].ContainerID)]
			if list[i].State.Running == nil || dir == "" {
				continue
			}
			if t, err := measureTree(ctx, dir, left); err == nil { // else the runtime's figure counts
				m.layers[list[i].Name] = t
			}
		}
	}
}

// instanceDir returns the directory of a pod's newest instance, "" for none.
func (s *Stats) instanceDir(p *v1.Pod) string {
	if !filepath.IsLocal(string(p.UID)) {
		return ""
	}
	top := filepath.Join(s.cfg.RootDir, "pods", string(p.UID))
	entries, err := os.ReadDir(top)
	if err != nil {
		return ""
	}
	newest := -1
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil && e.IsDir() {
			newest = max(newest, n)
		}
	}
	if newest < 0 {
		return ""
	}
	return filepath.Join(top, strconv.Itoa(newest))
}

// volumeDir returns the directory of a pod's volume, and the name of its claim, "" for none. dir is "" for a
// volume that is not measured: a hostPath belongs to the host, and an image to the runtime.
func (s *Stats) volumeDir(p *v1.Pod, v *v1.Volume) (dir, claim string) {
	if c := v.PersistentVolumeClaim; c != nil {
		return filepath.Join(s.cfg.RootDir, "volumes", p.Namespace, c.ClaimName, "data"), c.ClaimName
	}
	instance := s.instanceDir(p)
	if v.HostPath != nil || v.Image != nil || instance == "" {
		return "", ""
	}
	kinds := filepath.Join(instance, "volumes")
	entries, err := os.ReadDir(kinds)
	if err != nil {
		return "", ""
	}
	for _, e := range entries {
		dir := filepath.Join(kinds, e.Name(), v.Name)
		if info, err := os.Lstat(dir); err == nil && info.IsDir() {
			return dir, ""
		}
	}
	return "", ""
}

// measureLogs measures the log directory of a pod, with one directory per container
// (C-1.22.10).
func (s *Stats) measureLogs(ctx context.Context, p *v1.Pod, m *measured, left *int) {
	if s.cfg.PodLogsDir == "" {
		return
	}
	top := filepath.Join(s.cfg.PodLogsDir, p.Namespace+"_"+p.Name+"_"+string(p.UID))
	d, err := readDisk(top)
	if err != nil {
		return
	}
	m.logDisk = &d
	entries, err := os.ReadDir(top)
	if err != nil {
		return
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		t, err := measureTree(ctx, filepath.Join(top, e.Name()), left)
		m.partial = m.partial || err != nil && !errors.Is(err, os.ErrNotExist)
		m.logs[e.Name()] = t
	}
}

// measureTree counts the blocks and files below dir, as du does. It stays on one file system, and follows no
// links. Files that disappear meanwhile do not count. left is how many more files it may count. With an error
// it returns the count so far.
func measureTree(ctx context.Context, dir string, left *int) (taken, error) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return taken{}, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	f := os.NewFile(uintptr(fd), dir)
	defer f.Close()
	var top unix.Stat_t
	if err := unix.Fstat(fd, &top); err != nil {
		return taken{}, &os.PathError{Op: "stat", Path: dir, Err: err}
	}
	w := &walk{ctx: ctx, device: top.Dev, linked: map[uint64]bool{}, left: left}
	w.count(&top)
	return w.sum, w.directory(f, 0)
}

// walk is one walk through a tree.
type walk struct {
	ctx    context.Context
	device uint64
	linked map[uint64]bool // the inodes of counted files with several links
	left   *int            // how many more names may be read
	sum    taken
}

func (w *walk) count(st *unix.Stat_t) {
	w.sum.bytes += uint64(st.Blocks) * 512
	w.sum.inodes++
}

func (w *walk) directory(dir *os.File, depth int) error {
	if depth > deepest {
		return fmt.Errorf("it is more than %d directories deep", deepest)
	}
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := w.entry(dir, name, depth); err != nil {
				return err
			}
		}
		if err != nil || len(names) == 0 {
			return nil // the end of the directory, or an unreadable one
		}
	}
}

func (w *walk) entry(dir *os.File, name string, depth int) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	if *w.left--; *w.left < 0 {
		return fmt.Errorf("the pod's volumes and logs have more than %d files", largest)
	}
	var st unix.Stat_t
	if unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil || st.Dev != w.device {
		return nil
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if st.Nlink > 1 {
			if w.linked[st.Ino] {
				return nil
			}
			w.linked[st.Ino] = true
		}
		w.count(&st)
		return nil
	}
	w.count(&st)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil
	}
	sub := os.NewFile(uintptr(fd), name)
	defer sub.Close()
	return w.directory(sub, depth+1)
}
