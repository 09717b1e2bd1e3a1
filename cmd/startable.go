package cmd

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// startable reports why serve must not start: with what it was given, or on this
// machine.
func (p *program) startable() error {
	for _, check := range []func() error{p.identity, p.ownRoot, p.kernelDefaults, p.swap, p.cgroupVersion} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// identity reports that there is nothing to speak to the API server with.
func (p *program) identity() error {
	file, first := p.cfg.Kubeconfig, p.cfg.BootstrapKubeconfig
	switch {
	case file == "" && first != "":
		return failed(exitUsage, errors.New("--bootstrap-kubeconfig needs --kubeconfig: the file that is written once there is a certificate"))
	case file == "" || exists(file):
		return nil
	case first == "":
		return failed(exitUsage, fmt.Errorf("--kubeconfig: %s is not there, and no --bootstrap-kubeconfig to ask for one with", file))
	case !exists(first):
		return failed(exitUsage, fmt.Errorf("neither --kubeconfig %s nor --bootstrap-kubeconfig %s is there", file, first), "'kubeadm join' writes them")
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// ownRoot refuses a root directory that a kubelet keeps its pods in: what is there
// is not nodectl's to judge.
func (p *program) ownRoot() error {
	for _, name := range []string{"cpu_manager_state", "memory_manager_state"} {
		if exists(filepath.Join(p.cfg.RootDir, name)) {
			return failed(exitUsage, fmt.Errorf("--root-dir: %s is a kubelet's: %s is there", p.cfg.RootDir, name), "give nodectl a directory of its own; its default is /var/lib/nodectl")
		}
	}
	return nil
}

// kernelDefaults holds the kernel's settings against those the kubelet needs,
// where that was asked for.
func (p *program) kernelDefaults() error {
	if !p.cfg.ProtectKernelDefaults {
		return nil
	}
	var wrong []string
	for _, s := range [][2]string{
		{"vm/overcommit_memory", "1"}, {"vm/panic_on_oom", "0"}, {"kernel/panic", "10"}, {"kernel/panic_on_oops", "1"},
		{"kernel/keys/root_maxkeys", "1000000"}, {"kernel/keys/root_maxbytes", "25000000"},
	} {
		data, err := os.ReadFile("/proc/sys/" + s[0])
		if have := strings.TrimSpace(string(data)); err != nil || have != s[1] {
			wrong = append(wrong, fmt.Sprintf("%s is %q, not %s", strings.ReplaceAll(s[0], "/", "."), have, s[1]))
		}
	}
	if len(wrong) > 0 {
		return failed(exitFailure, fmt.Errorf("--protect-kernel-defaults: %s", strings.Join(wrong, "; ")), "set them in /etc/sysctl.d")
	}
	return nil
}

// swap refuses a machine that swaps, where that was asked for.
func (p *program) swap() error {
	if !p.cfg.FailSwapOn {
		return nil
	}
	data, err := os.ReadFile("/proc/swaps")
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return failed(exitFailure, fmt.Errorf("--fail-swap-on: %w", err))
	}
	lines := bufio.NewScanner(bytes.NewReader(data))
	lines.Scan() // the head
	if lines.Scan() {
		device, _, _ := strings.Cut(lines.Text(), " ")
		return failed(exitFailure, fmt.Errorf("--fail-swap-on: swap is on: %s", device), "'swapoff -a', and take it out of /etc/fstab; or --fail-swap-on=false")
	}
	return nil
}

// cgroupVersion refuses cgroup v1, where that was asked for (C-1.41.5).
func (p *program) cgroupVersion() error {
	if p.cfg.FailCgroupV1 && !exists("/sys/fs/cgroup/cgroup.controllers") {
		return failed(exitFailure, errors.New("--fail-cgroup-v1: this machine has no cgroup v2"), "boot with systemd.unified_cgroup_hierarchy=1, or --fail-cgroup-v1=false")
	}
	return nil
}
