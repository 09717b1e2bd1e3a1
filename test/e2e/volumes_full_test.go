//go:build full

package e2e

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

// TestHostileObjects: keys with paths out of the volume are rejected where they are read. A
// ConfigMap of one MiB works and a larger one is rejected. A FIFO in the place of a file of
// variables blocks no other pod.
//
// Shows: D1
func TestHostileObjects(t *testing.T) {
	s := parallelStage(t)
	s.write("dots.yaml", configMap("dots", "..", "x"))
	s.write("slash.yaml", secretOf("slash", "a/../../b", "x"))
	s.write("path.yaml", manifest("path", []string{container("main", "forever")}, "volumes: [{name: c, configMap: {name: most, items: [{key: k, path: ../../x}]}}]"))
	s.write("most.yaml", configMap("most", "k", strings.Repeat("m", 1<<20-1)))
	s.write("more.yaml", configMap("more", "k", strings.Repeat("m", 1<<20+1)))
	s.write("big.yaml", manifest("big", []string{container("main", "forever", "volumeMounts: [{name: c, mountPath: /c}]")}, "volumes: [{name: c, configMap: {name: most}}]"))
	s.write("fifo.yaml", manifest("fifo", []string{
		container("main", "forever", "env: [{name: A, valueFrom: {fileKeyRef: {volumeName: d, path: vars, key: A}}}]"),
	}, "initContainers:", container("make", "wait, /d/vars", "volumeMounts: [{name: d, mountPath: /d}]"), "volumes: [{name: d, emptyDir: {}}]"))
	s.excuse("path", "fifo")
	a := s.serve()
	s.awaitRejected("file", "dots.yaml", "..")
	s.awaitRejected("file", "slash.yaml", "config key")
	s.awaitRejected("file", "path.yaml", "..")
	s.awaitRejected("file", "more.yaml")
	main := s.awaitRunning("big", "main")["main"]
	if got, err := os.ReadFile(main.inside("/c/k")); err != nil || len(got) != 1<<20-1 {
		t.Errorf("the largest ConfigMap has %d bytes in the container, %v", len(got), err)
	}
	s.awaitRunning("fifo", "make")
	found, _ := filepath.Glob(filepath.Join(s.root, "pods/*/*/volumes/kubernetes.io~empty-dir/d"))
	if len(found) != 1 {
		t.Fatalf("emptyDirs: %v", found)
	}
	s.must(unix.Mkfifo(filepath.Join(found[0], "vars"), 0o644))
	st := s.awaitStatus("fifo", "cannot be made", func(st v1.PodStatus) bool { return waiting(st, "main").Reason == "CreateContainerConfigError" })
	if m := waiting(st, "main").Message; !strings.Contains(m, "vars") {
		t.Errorf("status: %s", describe(st))
	}
	s.keep() // the agent goes on
	a.leave()
	s.serve()
}

// mountsBelow returns the mount points below a directory.
func mountsBelow(dir string) (all []string) {
	for _, m := range node.Mounts() {
		if strings.HasPrefix(m, dir+"/") {
			all = append(all, m)
		}
	}
	return all
}

// TestC_1_37_VolumesOfInstances: when an edit replaces a pod, the new one has its own
// volumes, except for its claim. No directory and no mount of the old one is left, also if
// the agent was killed meanwhile. runonce --down leaves nothing but the claim.
//
// Shows: C-1.37
func TestC_1_37_VolumesOfInstances(t *testing.T) {
	s := parallelStage(t)
	s.interrupts()
	s.write("objects.yaml", documents(secretOf("keys", "token", canary),
		"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"))
	text := func(host string) string {
		return manifest("web", []string{
			container("main", "append, /d/n, append, /m/n, append, /c/n, forever",
				"volumeMounts: [{name: d, mountPath: /d}, {name: m, mountPath: /m}, {name: s, mountPath: /s}, {name: s, mountPath: /t, subPath: token}, {name: c, mountPath: /c}, {name: c, mountPath: /p, subPath: a/b}]"),
		}, "hostname: "+host, "hostNetwork: true",
			"volumes: [{name: d, emptyDir: {}}, {name: m, emptyDir: {medium: Memory}}, {name: s, secret: {secretName: keys}}, {name: c, persistentVolumeClaim: {claimName: data}}]")
	}
	s.write("web.yaml", text("one"))
	s.runonce(0, "--until", "ready")
	was := s.awaitRunning("web", "main")
	uid := s.uid("web")
	mounts := len(mountsBelow(s.root))
	for i, host := range []string{"two", "three", "four", "five"} {
		a := s.serve()
		s.untouched("web", was)
		before := len(s.front.Mutations())
		s.write("web.yaml", text(host))
		if i%2 == 1 {
			s.eventually(func() error { // in the middle of the replacement
				if n := len(s.front.Mutations()) - before; n < i {
					return fmt.Errorf("the agent has made %d calls for the new pod", n)
				}
				return nil
			})
			a.killNow()
			a = s.serve()
		}
		s.eventually(func() error {
			now, err := s.runningNow("web", "main")
			if err == nil && now["main"].id == was["main"].id {
				err = errors.New("the pod was not replaced")
			}
			if err == nil {
				_, err = os.Stat(now["main"].inside("/c/n"))
			}
			if err == nil {
				was = now
			}
			return err
		})
		s.awaitReady("web", true)
		s.awaitLog("web", "main", was["main"].attempt, "started")
		for _, f := range []string{"/d/n", "/m/n"} {
			s.eventually(func() error {
				got, err := os.ReadFile(was["main"].inside(f))
				if n := strings.Count(string(got), "\n"); err != nil || n != 1 {
					err = fmt.Errorf("%s has lines of %d instances, %v", f, n, err)
				}
				return err
			})
		}
		s.eventually(func() error {
			left, err := filepath.Glob(filepath.Join(s.root, "pods", uid, "[0-9]*"))
			if err == nil && (len(left) != 1 || len(mountsBelow(s.root)) != mounts) {
				err = fmt.Errorf("instances %v, mounts %v, want %d", left, mountsBelow(s.root), mounts)
			}
			return err
		})
		a.leave()
	}
	kept := filepath.Join(s.root, "volumes/default/data/data/n")
	if text, err := os.ReadFile(kept); err != nil || strings.Count(string(text), "\n") != 5 {
		t.Errorf("the claim has %q, %v", text, err)
	}
	s.excuse("web")
	s.runonce(0, "--down")
	s.nothingLeft()
	if left := s.podGroups(); len(left) > 0 {
		t.Errorf("cgroups are left: %v", left)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the claim: %v", err)
	}
}

// TestC_1_37_SubPathRace: a container replaces the target of another's subPath by links to
// the node, as fast as it can. The other one sees nothing of the node, however often it is
// made, and no removal follows these links to the node.
//
// Shows: C-1.37
func TestC_1_37_SubPathRace(t *testing.T) { parallelStage(t).subPathRace(4) }
