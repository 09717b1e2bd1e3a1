package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/bundle"
	"github.com/nodectl/nodectl/test/arm"
	"github.com/nodectl/nodectl/test/node"
)

// newPlace starts a node for an agent. clean removes everything that the agent and its pods
// left on the machine, except for the agent's log, which it copies to keep.
func newPlace(ctx context.Context, keep, agent string) (p *place, clean func() error, err error) {
	n, err := node.Start(ctx)
	if err != nil {
		return nil, nil, err
	}
	sweep()
	if err := importAll(ctx, n); err != nil {
		return nil, nil, errors.Join(err, n.Close())
	}
	dir := fmt.Sprintf("%s%d-%s", prefix, os.Getpid(), agent)
	p = &place{
		node: n, dir: dir, manifests: filepath.Join(dir, "manifests"), root: filepath.Join(dir, "root"),
		logs: n.LogsDir, cgroup: n.CgroupParent, repo: node.Repo(),
	}
	was := arm.ReadSettings()
	clean = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
		defer cancel()
		text, _ := os.ReadFile(filepath.Join(dir, agent+".log"))
		errs := []error{os.WriteFile(filepath.Join(keep, agent+".log"), text, 0o644), n.RemovePods(ctx)}
		errs = append(errs, was.Restore(), arm.Unmount(p.dir), p.unlink(), removeCgroups(p.cgroup), n.Close(), os.RemoveAll(dir))
		return errors.Join(errs...)
	}
	for _, d := range []string{p.manifests, p.root, filepath.Join(p.root, "seccomp/parity")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			return nil, nil, errors.Join(err, clean())
		}
	}
	if err := os.WriteFile(filepath.Join(p.root, "seccomp/parity/allow.json"), []byte(`{"defaultAction": "SCMP_ACT_ALLOW"}`), 0o600); err != nil {
		return nil, nil, errors.Join(err, clean())
	}
	// A kubelet needs its cgroup to exist; nodectl gets the same.
	if err := arm.MakeCgroup(p.cgroup); err != nil {
		return nil, nil, errors.Join(err, clean())
	}
	return p, clean, nil
}

// importAll imports the examples' images too: one case needs a second image.
func importAll(ctx context.Context, n *node.Node) error {
	images, err := node.Images()
	for _, a := range images {
		if a.Ref != node.Stamp && err == nil {
			_, err = bundle.ImportFile(ctx, n.Endpoint, a.File)
		}
	}
	return err
}

// paths are the names of this place, for what compares it with another.
func (p *place) paths() map[string]string {
	return map[string]string{
		filepath.Join(p.dir, "cases"): "$CASES", p.manifests: "$MANIFESTS", p.root: "$ROOT", p.logs: "$LOGS", p.cgroup: "$CGROUP",
		p.node.RunDir: "$RUN", p.node.RootDir: "$RUNTIME", strings.TrimSuffix(p.node.Subnet, "0/24"): "$SUBNET.",
	}
}

// unlink removes the links to logs, which all kubelets have in one directory.
func (p *place) unlink() error {
	err := arm.Unlink(p.logs)
	_ = os.Remove(arm.LinksDir) // it fails if another kubelet has links there
	return err
}

// removeCgroups removes a cgroup and all below it, in every hierarchy. A cgroup with
// processes stays, and is an error.
func removeCgroups(path string) error {
	var errs []error
	for _, root := range node.CgroupRoots() {
		var dirs []string
		_ = filepath.WalkDir(filepath.Join(root, path), func(dir string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, dir)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			err := os.Remove(dir)
			for i := 0; errors.Is(err, unix.EBUSY) && i < 100; i++ {
				time.Sleep(20 * time.Millisecond) // the kernel is still removing a process
				err = os.Remove(dir)
			}
			if err != nil && !os.IsNotExist(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

// prefix begins the name of an agent's directory; the process that compares and
// the agent follow.
const prefix = "/tmp/parity-"

// sweep removes what killed comparisons left: test/node ends their containers, but does not
// know the cgroups below its own, nor their directories.
func sweep() {
	dead := func(name, prefix string) bool {
		pid, _, _ := strings.Cut(strings.TrimPrefix(name, prefix), "-")
		n, err := strconv.Atoi(pid)
		return err == nil && unix.Kill(n, 0) != nil
	}
	for _, root := range node.CgroupRoots() {
		dirs, _ := filepath.Glob(filepath.Join(root, "ndt-*", "kubepods"))
		for _, dir := range dirs {
			if name := filepath.Base(filepath.Dir(dir)); dead(name, "ndt-") {
				_ = removeCgroups("/" + name) // another process may be sweeping it too
			}
		}
	}
	dirs, _ := filepath.Glob(prefix + "*-*")
	for _, dir := range dirs {
		if dead(dir, prefix) {
			_ = arm.Unmount(dir)
			_ = os.RemoveAll(dir)
		}
	}
	links, _ := filepath.Glob(arm.LinksDir + "/*")
	for _, l := range links {
		if to, err := os.Readlink(l); err == nil && strings.HasPrefix(to, "/tmp/ndt-") && dead(to, "/tmp/ndt-") {
			_ = os.Remove(l)
		}
	}
}
