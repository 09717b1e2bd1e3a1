package arm

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/report"
)

// Machine returns the facts on which figures depend: the machine, the runtime and its settings, the
// tree, and the agents' programs.
func (l *Lab) Machine(ctx context.Context, agents ...*Agent) (map[string]string, error) {
	v, err := l.Node.Runtime.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, err
	}
	programs, err := node.Programs()
	if err != nil {
		return nil, err
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, err
	}
	m := map[string]string{
		"kernel":     unix.ByteSliceToString(u.Release[:]),
		"cpu":        fmt.Sprintf("%d × %s", runtime.NumCPU(), cpuModel()),
		"memory":     memory(),
		"cgroup":     cgroupMode(),
		"runtime":    v.RuntimeName + " " + v.RuntimeVersion,
		"runc":       firstLine(filepath.Join(programs, "runc"), "--version"),
		"go":         runtime.Version(),
		"commit":     commit(),
		"containerd": l.settingsOfRuntime(),
	}
	for _, a := range agents {
		if m[a.Name], err = describe(a.Binary); err != nil {
			return nil, err
		}
		if a.kubelet {
			if m["kubelet version"], err = a.Version(); err != nil {
				return nil, err
			}
		}
	}
	return m, nil
}

// describe returns a program's size and the beginning of its checksum.
func describe(program string) (string, error) {
	text, err := os.ReadFile(program)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(text)
	return fmt.Sprintf("%.1f MB, sha256 %s", float64(len(text))/report.MB, hex.EncodeToString(sum[:6])), nil
}

// settingsOfRuntime names containerd's settings that affect the figures.
func (l *Lab) settingsOfRuntime() string {
	var found []string
	text, _ := os.ReadFile(filepath.Join(l.Node.RunDir, "config.toml"))
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "stats_collect_period = '") || strings.HasPrefix(line, "  snapshotter =") {
			found = append(found, strings.TrimSpace(line))
		}
	}
	slices.Sort(found)
	return strings.Join(slices.Compact(found), ", ")
}

func commit() string {
	out, err := exec.Command("git", "-C", node.Repo(), "describe", "--always", "--dirty", "--abbrev=12").Output()
	if err != nil {
		if info, ok := debug.ReadBuildInfo(); ok {
			return info.Main.Version
		}
	}
	return string(bytes.TrimSpace(out))
}

func firstLine(program string, args ...string) string {
	out, _ := exec.Command(program, args...).Output()
	l, _, _ := strings.Cut(string(out), "\n")
	return strings.TrimPrefix(l, "runc version ")
}

func cpuModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	_, after, _ := strings.Cut(string(text), "model name")
	l, _, _ := strings.Cut(after, "\n")
	return strings.Trim(l, "\t :")
}

func memory() string {
	text, _ := os.ReadFile("/proc/meminfo")
	return fmt.Sprintf("%.1f GB", float64(statusBytes("\n"+string(text), "MemTotal:"))/1e9)
}

func cgroupMode() string {
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err == nil {
		return "v2"
	}
	return "v1"
}
