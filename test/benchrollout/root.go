package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// rolloutDir is where hack/rollout puts its root file system.
func rolloutDir() string { return filepath.Join(node.Repo(), "bin/rollout") }

// unpacked is the reason why podman and compose are absent, "" if they are there.
func unpacked() string {
	if reason, err := os.ReadFile(filepath.Join(rolloutDir(), "missing")); err == nil {
		return strings.TrimSpace(string(reason))
	}
	if _, err := os.Stat(filepath.Join(rolloutDir(), "root/usr/bin/podman")); err != nil {
		return err.Error() + ": run hack/rollout/build"
	}
	return ""
}

// root is the root file system of Debian's packages. Its programs run in it, with the kernel's file
// systems of the machine, and with a state that is empty at first.
type root struct {
	dir     string
	archive string // the images' directory below dir
}

// openRoot mounts what the programs need. Their state is in a directory of the lab.
func openRoot(l *arm.Lab, name string) (r *root, err error) {
	r = &root{dir: filepath.Join(rolloutDir(), "root"), archive: "/tmp/images"}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	state := filepath.Join(l.Dir, name)
	if err := os.MkdirAll(state, 0o700); err != nil {
		return r, err
	}
	for _, m := range []struct {
		from, to, fs string
		flags        uintptr
	}{
		{r.dir, "", "", unix.MS_BIND}, // podman changes how the mount of its root propagates
		{"proc", "proc", "proc", 0},
		{"/sys", "sys", "", unix.MS_BIND | unix.MS_REC},
		{"/dev", "dev", "", unix.MS_BIND | unix.MS_REC},
		{"tmpfs", "run", "tmpfs", 0},
		{"tmpfs", "tmp", "tmpfs", 0},
		{state, "var/lib", "", unix.MS_BIND},
	} {
		if err := unix.Mount(m.from, filepath.Join(r.dir, m.to), m.fs, m.flags, ""); err != nil {
			return r, fmt.Errorf("mount %s: %w", m.to, err)
		}
	}
	return r, os.MkdirAll(filepath.Join(r.dir, r.archive), 0o700)
}

// close unmounts everything.
func (r *root) close() error {
	err := arm.Unmount(r.dir)
	if slices.Contains(node.Mounts(), r.dir) {
		err = errors.Join(err, unix.Unmount(r.dir, unix.MNT_DETACH))
	}
	return err
}

// command is a program of the root file system. It does not outlive the bench.
func (r *root) command(program string, args ...string) *exec.Cmd {
	// The path is one of the new root, which exec.Command cannot look up.
	cmd := &exec.Cmd{Path: program, Args: append([]string{program}, args...), Dir: "/"}
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8", "DOCKER_HOST=" + dockerSocket}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: r.dir, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	return cmd
}

// run runs a program of the root file system to its end, with a text as its input.
func (r *root) run(ctx context.Context, input, program string, args ...string) error {
	cmd := r.command(program, args...)
	cmd.Stdin = strings.NewReader(input)
	// Monitors of containers stay, and keep the standard output: a file does not wait for them.
	out, err := os.CreateTemp("", "benchrollout-")
	if err != nil {
		return err
	}
	defer os.Remove(out.Name())
	defer out.Close()
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	if err := cmd.Wait(); err != nil {
		text, readErr := os.ReadFile(out.Name())
		return errors.Join(fmt.Errorf("%s %s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, arm.Tail(string(text))), readErr)
	}
	return ctx.Err()
}

// load gives a container engine the images of the bench.
func (r *root) load(ctx context.Context, engine string) error {
	images, err := node.Images()
	if err != nil {
		return err
	}
	for _, a := range images {
		if a.Ref != good(0).image && a.Ref != stampImage {
			continue
		}
		text, err := os.ReadFile(a.File)
		if err != nil {
			return err
		}
		inRoot := filepath.Join(r.archive, filepath.Base(a.File))
		if err := os.WriteFile(filepath.Join(r.dir, inRoot), text, 0o600); err != nil {
			return err
		}
		if err := r.run(ctx, "", engine, "load", "--input", inRoot); err != nil {
			return err
		}
	}
	return nil
}
