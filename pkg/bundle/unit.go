package bundle

import (
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// leaveUnit moves containerd out of the cgroup the agent was started in.
// systemd ends every process in a unit's cgroup when the unit stops, and a
// login's when the user leaves: pods would go with the agent. Only systemd's
// own hierarchy is left, so that limits somebody set elsewhere still hold.
func (r *Runtime) leaveUnit(pid int) {
	for _, root := range unitRoots("/proc") {
		dir := filepath.Join(root, r.unit())
		err := os.Mkdir(dir, 0o755)
		if err == nil || errors.Is(err, os.ErrExist) {
			err = os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0)
		}
		if err != nil {
			r.log.Warn("The container runtime stays in the agent's cgroup and may end with it", "error", err)
		}
	}
}

// removeUnits removes the cgroups leaveUnit made, once their processes are gone.
func (r *Runtime) removeUnits() error {
	var errs []error
	for _, h := range hierarchies("/proc") {
		if err := os.Remove(filepath.Join(h.mount, r.unit())); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (r *Runtime) unit() string { return "nodectl-runtime-" + filepath.Base(r.run) }

// unitRoots returns where systemd's hierarchy is mounted, if this process is in
// a group of it other than the first.
func unitRoots(proc string) []string {
	var roots []string
	for _, f := range table(filepath.Join(proc, "self/cgroup")) {
		parts := strings.SplitN(strings.Join(f, " "), ":", 3)
		if len(parts) != 3 || parts[2] == "/" || strings.HasPrefix(parts[2], "/..") {
			continue
		}
		for _, h := range hierarchies(proc) {
			if h.root == "/" && h.name == parts[1] && (h.name == "" || h.name == "name=systemd") {
				roots = append(roots, h.mount)
			}
		}
	}
	return roots
}

// A hierarchy is one mounted tree of cgroups.
type hierarchy struct {
	mount string
	root  string // the group that is mounted there
	name  string // as in /proc/self/cgroup: "" is version 2
}

// hierarchies returns the cgroup trees this process sees.
func hierarchies(proc string) []hierarchy {
	var found []hierarchy
	for _, m := range mounts(proc) {
		switch m.kind {
		case "cgroup2":
			found = append(found, hierarchy{mount: m.path, root: m.root})
		case "cgroup":
			name := m.options[strings.LastIndex(m.options, ",")+1:]
			for _, o := range strings.Split(m.options, ",") {
				if strings.HasPrefix(o, "name=") {
					name = o
				}
			}
			found = append(found, hierarchy{mount: m.path, root: m.root, name: name})
		}
	}
	return found
}

// A mount is one line of mountinfo.
type mount struct{ path, root, kind, options string }

// mounts returns what is mounted, in the order it was.
func mounts(proc string) []mount {
	var found []mount
	for _, f := range table(filepath.Join(proc, "self/mountinfo")) {
		for i := 6; i+3 < len(f); i++ {
			if f[i] == "-" {
				found = append(found, mount{path: unescape(f[4]), root: unescape(f[3]), kind: f[i+1], options: f[i+3]})
				break
			}
		}
	}
	return found
}

// unescape undoes mountinfo's writing of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
