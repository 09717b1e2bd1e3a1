package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nodectl/nodectl/pkg/agent/readonly"
	"github.com/nodectl/nodectl/pkg/config"
	"github.com/nodectl/nodectl/pkg/doctor"
)

// CheckStartable returns an error if an agent must not serve with this configuration or on this
// machine.
func CheckStartable(cfg config.Config) error {
	for _, check := range []func(config.Config) error{identity, ownRoot} {
		if err := check(cfg); err != nil {
			return err
		}
	}
	var err error
	if cfg.ProtectKernelDefaults {
		err = kernelDefaults("/proc/sys")
	}
	if err == nil && cfg.FailSwapOn {
		err = noSwap("/proc/swaps")
	}
	if err == nil && cfg.FailCgroupV1 {
		err = cgroup2("/sys/fs/cgroup")
	}
	return err
}

// identity returns an error if there are no credentials for the API server.
func identity(cfg config.Config) error {
	file, first := cfg.Kubeconfig, cfg.BootstrapKubeconfig
	switch {
	case file == "" && first != "":
		return readonly.Fail(readonly.Usage, errors.New("--bootstrap-kubeconfig needs --kubeconfig: the file that is written once there is a certificate"))
	case file == "" || exists(file):
		return nil
	case first == "":
		return readonly.Fail(readonly.Usage, fmt.Errorf("--kubeconfig: %s does not exist, and --bootstrap-kubeconfig is not set", file))
	case !exists(first):
		return readonly.Fail(readonly.Usage, fmt.Errorf("neither --kubeconfig %s nor --bootstrap-kubeconfig %s exists", file, first), "'kubeadm join' writes them")
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return !errors.Is(err, fs.ErrNotExist)
}

// ownRoot returns an error for the root directory of a kubelet: nodectl must not manage its pods.
func ownRoot(cfg config.Config) error {
	name := doctor.KubeletState(cfg.RootDir, func(path string) bool {
		_, err := os.Stat(path)
		return err == nil // another check reports a directory without access
	})
	if name == "" {
		return nil
	}
	return readonly.Fail(readonly.Usage, fmt.Errorf("--root-dir: %s is a kubelet's: %s is there", cfg.RootDir, name), "give nodectl a directory of its own; its default is /var/lib/nodectl")
}

// kernelDefaults compares the kernel's settings with those that a node needs.
func kernelDefaults(dir string) error {
	var wrong []string
	for _, s := range doctor.KernelDefaults() {
		data, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(s[0], ".", "/")))
		switch have := strings.TrimSpace(string(data)); {
		case err != nil:
			wrong = append(wrong, s[0]+" cannot be read")
		case have != s[1]:
			wrong = append(wrong, fmt.Sprintf("%s is %s, not %s", s[0], have, s[1]))
		}
	}
	if len(wrong) > 0 {
		return readonly.Fail(readonly.Failure, fmt.Errorf("--protect-kernel-defaults: %s", strings.Join(wrong, "; ")), "set them in /etc/sysctl.d")
	}
	return nil
}

// noSwap returns an error if swap is on. Kernels without swap do not have the file.
func noSwap(file string) error {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return readonly.Fail(readonly.Failure, fmt.Errorf("--fail-swap-on: %w", err))
	}
	lines := strings.Split(strings.TrimSpace(string(data)), "\n")
	if len(lines) > 1 { // the first one is the header
		device := strings.Fields(lines[1])[0]
		return readonly.Fail(readonly.Failure, fmt.Errorf("--fail-swap-on: swap is on: %s", device), "'swapoff -a', and take it out of /etc/fstab; or --fail-swap-on=false")
	}
	return nil
}

// cgroup2 returns an error on a machine with cgroup v1 (C-1.41.5).
func cgroup2(dir string) error {
	if !exists(filepath.Join(dir, "cgroup.controllers")) {
		return readonly.Fail(readonly.Failure, errors.New("--fail-cgroup-v1: this machine has no cgroup v2"), "boot with systemd.unified_cgroup_hierarchy=1, or --fail-cgroup-v1=false")
	}
	return nil
}
