package bundle

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// errNoSystemd says that systemd is not the init system of this machine.
var errNoSystemd = errors.New("systemd does not run")

// ownUnit returns nil if systemd can start containerd as a unit of its own, without the
// restrictions of the agent's unit, and else why it cannot.
func (r *Runtime) ownUnit() error {
	if _, err := os.Stat("/run/systemd/system"); err != nil { // as sd_booted(3)
		return errNoSystemd
	}
	own, err := namespaceOf("self", "mnt")
	if err != nil {
		return err
	}
	if systemds, err := namespaceOf(1, "mnt"); err != nil || systemds != own {
		return errors.New("systemd has another mount namespace than this process, whose mounts the runtime must see")
	}
	if strings.Contains(r.unpacked+r.run+r.programs, "$") {
		return errors.New("systemd would expand the $ in the names of the directories")
	}
	_, err = exec.LookPath("systemd-run")
	return err
}

// startUnit makes systemd start containerd and returns its process. from is the offset of
// its log.
func (r *Runtime) startUnit(ctx context.Context, bin string, from int64) (process, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return process{}, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, errors.New("systemd does not answer"))
	defer cancel()
	// A new name each time: the shims of the previous containerd keep the old unit.
	name := fmt.Sprintf("%s-%x", r.unit(), time.Now().UnixNano())
	cmd := exec.CommandContext(ctx, "systemd-run", r.unitArguments(name, bin, limit.Max)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return process{}, fmt.Errorf("systemd-run: %w: %s", cmp.Or(context.Cause(ctx), err), bytes.TrimSpace(out))
	}
	for { // it has executed containerd, which may be a zombie of systemd's by now
		p, ok, err := r.find()
		if ok {
			return p, nil
		}
		state, _ := exec.CommandContext(ctx, "systemctl", "is-active", name).Output()
		if err == nil && string(bytes.TrimSpace(state)) != "active" {
			err = errors.New(lastLogMessage(r.LogFile(), from))
		}
		if err != nil {
			return process{}, err
		}
		if err := pause(ctx, startPoll); err != nil {
			return process{}, err
		}
	}
}

// unitArguments returns systemd-run's arguments. Containers inherit the limits of the unit:
// files is how many they may open.
func (r *Runtime) unitArguments(name, bin string, files uint64) []string {
	args := []string{
		"--quiet", "--collect", "--no-ask-password", "--service-type=exec",
		"--unit=" + name, "--description=Container runtime of nodectl",
	}
	for _, property := range []string{
		"KillMode=process", // pods keep running when containerd ends
		"Delegate=yes",
		"OOMScoreAdjust=" + strconv.Itoa(oomScore("/proc")),
		"TasksMax=infinity",
		"LimitNOFILE=" + strconv.FormatUint(files, 10),
		"WorkingDirectory=/",
		"StandardOutput=append:" + r.LogFile(),
		"StandardError=append:" + r.LogFile(),
	} {
		args = append(args, "--property="+property)
	}
	for _, v := range environment(bin) {
		args = append(args, "--setenv="+v)
	}
	return append(append(args, "--", filepath.Join(bin, "containerd")), r.arguments()...)
}

// confinement names the restriction that a container started from this process would
// inherit, "" for none.
func confinement(proc string) string {
	own, first := statusOf(proc, "self"), statusOf(proc, "1")
	var found []string
	if v := own["NoNewPrivs"]; v != "" && v != "0" {
		found = append(found, "no_new_privs")
	}
	if v := own["Seccomp"]; v != "" && v != "0" { // a kernel without it does not name it
		found = append(found, "system call filter")
	}
	if own["CapBnd"] != first["CapBnd"] {
		found = append(found, "capability bounding set")
	}
	return strings.Join(found, ", ")
}

// statusOf returns the fields with one value from a process's status file.
func statusOf(proc, pid string) map[string]string {
	fields := map[string]string{}
	for _, f := range table(filepath.Join(proc, pid, "status")) {
		if len(f) == 2 {
			fields[strings.TrimSuffix(f[0], ":")] = f[1]
		}
	}
	return fields
}

// leaveUnit moves containerd out of the cgroup the agent was started in. systemd ends every
// process in a unit's cgroup when the unit stops, and a login's when the user logs out:
// pods would end with the agent. It leaves only systemd's own hierarchy, so that limits in
// other hierarchies still apply.
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

// removeUnits removes the cgroups that leaveUnit made, once their processes have ended.
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

// unitRoots returns where systemd's hierarchy is mounted, if this process is not in its
// root cgroup.
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
	root  string // the cgroup that is mounted there
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

// mounts returns the mounts, in the order they were made.
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

// unescape decodes mountinfo's escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}
