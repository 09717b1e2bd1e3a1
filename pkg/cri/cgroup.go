package cri

import (
	"context"
	"errors"
	"fmt"
	"path"
	"regexp"
	"strings"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// rootSlice is where the systemd driver puts sandboxes without a cgroup parent.
const rootSlice = "system.slice"

// slicePart is the suffix of systemd's slices.
const slicePart = ".slice"

// cgroupNaming is how the present runtime names cgroups.
type cgroupNaming struct {
	parent  string // Config.CgroupParent in the form of the runtime's driver
	systemd bool   // the driver is systemd
}

// readCgroupNaming sets r.cgroups from the runtime's answer (C-1.41.4). It asks again only after
// the runtime was away or could not make a sandbox. For a runtime that does not support the
// question, the configuration decides. If the question fails, r.cgroups stays. An error names the
// remedy in the configuration.
func (r *Runtime) readCgroupNaming(ctx context.Context) error {
	if r.cgroupsRead.Load() {
		return nil
	}
	a, err := read(ctx, r, "RuntimeConfig", r.rt.RuntimeConfig, &runtimeapi.RuntimeConfigRequest{})
	switch {
	case errors.Is(err, errors.ErrUnsupported): // before containerd 2 and CRI-O 1.28
		r.cgroups.Store(&cgroupNaming{parent: r.cfg.CgroupParent, systemd: strings.HasSuffix(r.cfg.CgroupParent, slicePart)})
	case err != nil:
		r.cfg.Log.Debug("Failed to read the cgroup driver", "error", err)
		return nil
	default:
		p, err := cgroupNamingFor(r.cfg.CgroupParent, a.GetLinux())
		if err != nil {
			return err
		}
		r.cgroups.Store(&p)
	}
	r.cgroupsRead.Store(true)
	return nil
}

// Driver reports whether the runtime's cgroup driver is systemd; else it is cgroupfs
// (C-1.41.4). It fails if the driver was never read, or does not accept the cgroup root.
func (r *Runtime) Driver(ctx context.Context) (systemd bool, err error) {
	if err := r.readCgroupNaming(ctx); err != nil {
		return false, err
	}
	if p := r.cgroups.Load(); p != nil {
		return p.systemd, nil
	}
	return false, errors.New("read the cgroup driver of the container runtime: the call failed")
}

// cgroupParent is the cgroup parent in the form of the runtime's driver.
func (r *Runtime) cgroupParent() string {
	if p := r.cgroups.Load(); p != nil {
		return p.parent
	}
	return r.cfg.CgroupParent
}

// cgroupNamingFor converts parent to the form of the driver in linux.
func cgroupNamingFor(parent string, linux *runtimeapi.LinuxRuntimeConfiguration) (p cgroupNaming, err error) {
	isSlice := strings.HasSuffix(parent, slicePart)
	p = cgroupNaming{parent: parent, systemd: isSlice}
	if linux == nil {
		return p, nil
	}
	p.systemd = linux.GetCgroupDriver() == runtimeapi.CgroupDriver_SYSTEMD
	switch {
	case p.systemd && !isSlice:
		p.parent, err = slice(parent)
	case !p.systemd && isSlice:
		err = fmt.Errorf("--cgroup-root %s is a slice, and the runtime's cgroup driver is cgroupfs: set --cgroup-root %s, "+
			"or SystemdCgroup = true in containerd's configuration and restart it", parent, strings.TrimSuffix(parent, slicePart))
	}
	return p, err
}

var sliceName = regexp.MustCompile(`^[A-Za-z0-9_.-]+$`)

// slice names a cgroup as systemd does, where each slice carries the names of those it is
// in: /a/b is /a.slice/a-b.slice. A dash in a name would mean another level, so it becomes
// an underscore, as in the kubelet (C-1.41.1).
func slice(cgroup string) (string, error) {
	if cgroup == "" {
		return "/" + rootSlice, nil
	}
	at, name := "/", ""
	for part := range strings.SplitSeq(strings.Trim(path.Clean(cgroup), "/"), "/") {
		if !sliceName.MatchString(part) || strings.HasSuffix(part, ".slice") {
			return "", fmt.Errorf("the runtime's cgroup driver is systemd, and --cgroup-root %s cannot become a slice: "+
				"set one, for example --cgroup-root /pods.slice", cgroup)
		}
		if name != "" {
			name += "-"
		}
		name += strings.ReplaceAll(part, "-", "_")
		at = path.Join(at, name+".slice")
	}
	return at, nil
}
