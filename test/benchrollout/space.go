package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
)

// nodeAddress is the address of the node in the network namespace of a run, by RFC 5737.
const nodeAddress = "192.0.2.1"

// inside is set in the environment of the process that measures.
const inside = "NODECTL_BENCHROLLOUT_INSIDE"

// prepare gives new namespaces a loopback device, an address and a default route for the node, and a
// /sys that shows the network devices of the namespace, with the cgroups of the machine.
const prepare = `ip link set lo up && ip link add eth0 type veth peer name eth0-peer &&
	ip address add ` + nodeAddress + `/24 dev eth0 && ip link set eth0 up && ip link set eth0-peer up && ip route add default dev eth0 &&
	dir=$(mktemp -d) && mount --move /sys/fs/cgroup "$dir" && umount --lazy /sys && mount -t sysfs sysfs /sys &&
	mount --move "$dir" /sys/fs/cgroup && rmdir "$dir" && exec "$0" "$@"`

// isolate runs this program again, in namespaces of its own for network devices and mounts: rules of
// the packet filter, routes and mounts of all arms are gone with it. fine is false if the program
// exits with 1, after it has reported why.
func isolate(ctx context.Context) (fine bool, err error) {
	program, err := os.Executable()
	if err != nil {
		return false, err
	}
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", prepare, program}, os.Args[1:]...)...)
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS} // mounts become private, too
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("run in namespaces of its own: %w", err)
	}
	return true, nil
}
