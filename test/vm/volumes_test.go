//go:build vm

package vm

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
)

const canary = "canary-3f9c"

// objects are the objects of the pod that has every kind of volume.
const objects = `apiVersion: v1
kind: ConfigMap
metadata: {name: conf}
data: {one: "1", two: "2"}
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {token: ` + canary + `}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
`

// writeVolumes puts that pod's manifests in place. Each of its starts writes a line
// into the claim, onto the disk and into memory.
func writeVolumes(t testing.TB) {
	t.Helper()
	if err := os.WriteFile(manifests+"/objects.yaml", []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	mounts := make([]string, 0, 6)
	for _, v := range []string{"claim", "disk", "memory", "conf", "keys", "all"} {
		mounts = append(mounts, "{name: "+v+", mountPath: /"+v+"}")
	}
	write(t, "volumes", "append, /claim/starts, append, /disk/starts, append, /memory/starts, forever",
		"resources: {limits: {cpu: 50m, memory: 32Mi}}, volumeMounts: ["+strings.Join(mounts, ", ")+"]",
		"securityContext: {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000}",
		"volumes:",
		"- {name: claim, persistentVolumeClaim: {claimName: data}}",
		"- {name: disk, emptyDir: {}}",
		"- {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}",
		"- {name: conf, configMap: {name: conf, defaultMode: 0440, items: [{key: one, path: a/one}, {key: two, path: two}]}}",
		"- {name: keys, secret: {secretName: keys}}",
		"- {name: all, projected: {sources: [{configMap: {name: conf, items: [{key: one, path: c}]}}, {secret: {name: keys}}, "+
			"{downwardAPI: {items: [{path: d, fieldRef: {fieldPath: metadata.name}}]}}]}}")
}

// checkVolumes reads from the host the files that the pod's process sees after this number of
// starts. Each start has left its line in the claim; the volume in memory has only the lines since
// the boot.
func checkVolumes(t testing.TB, starts, sinceBoot int) {
	t.Helper()
	awaitPod(t, "volumes", "ready", ready)
	pid := process(t, "volumes")
	in := fmt.Sprintf("/proc/%d/root", pid)
	for file, want := range map[string]int{"claim": starts, "memory": sinceBoot} {
		if n := strings.Count(read(t, in+"/"+file+"/starts"), "\n"); n != want {
			t.Errorf("%s has the lines of %d starts, want %d", file, n, want)
		}
	}
	for file, want := range map[string]string{
		"conf/a/one": "1 440", "conf/two": "2 440", "keys/token": canary + " 644",
		"all/c": "1 644", "all/token": canary + " 644", "all/d": "volumes-" + nodeName + " 644",
	} {
		var s unix.Stat_t
		if err := unix.Stat(in+"/"+file, &s); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		if got := fmt.Sprintf("%s %o", read(t, in+"/"+file), s.Mode&0o777); got != want || s.Gid != 3000 {
			t.Errorf("%s is %q of group %d, want %q of group 3000", file, got, s.Gid, want)
		}
	}
	for path, want := range map[string][]string{ // the requested options of the mount and its tmpfs
		"/memory": {"rw", "tmpfs", "size=1024k"},
		"/keys":   {"ro", "tmpfs", "size=32768k"},
		"/all":    {"ro", "tmpfs", "size=32768k"},
		"/conf":   {"ro", "ext4"},
		"/disk":   {"rw", "ext4"},
		"/claim":  {"rw", "ext4"},
	} {
		has := mountOf(t, pid, path)
		for _, w := range want {
			if !slices.Contains(has, w) {
				t.Errorf("%s is mounted as %v, want %s", path, has, w)
			}
		}
		// The kernel knows it from 6.4 on; before, memory is used without it.
		if slices.Contains(want, "tmpfs") && slices.Contains(has, "noswap") != !strings.HasPrefix(release(t), "6.1.") {
			t.Errorf("%s is mounted as %v on %s", path, has, release(t))
		}
	}
}

// mountOf returns the options and the type of the mount that a process sees at path.
func mountOf(t testing.TB, pid int, path string) (has []string) {
	t.Helper()
	for line := range strings.Lines(read(t, fmt.Sprintf("/proc/%d/mountinfo", pid))) {
		at, of, _ := strings.Cut(strings.TrimSpace(line), " - ")
		f, g := strings.Fields(at), strings.Fields(of)
		if f[4] == path {
			has = append(strings.Split(f[5], ","), g[0])
			has = append(has, strings.Split(g[2], ",")...)
		}
	}
	return has
}

func release(t testing.TB) string { return read(t, "/proc/sys/kernel/osrelease") }

// process returns the first process of a pod's container main.
func process(t testing.TB, name string) int {
	t.Helper()
	id, _, _ := strings.Cut(lives(t)[name+"-"+nodeName+"/main"], " ")
	all := (&node.Node{}).Processes(id)
	if id == "" || len(all) == 0 {
		t.Fatalf("%s has no process", name)
	}
	return all[0].Pid
}

// gone removes manifests of pods, and returns when nothing of them runs.
func gone(t testing.TB, names ...string) {
	t.Helper()
	for _, name := range names {
		if err := os.Remove(filepath.Join(manifests, name+".yaml")); err != nil {
			t.Error(err)
		}
	}
	eventually(t, func() error {
		for life := range lives(t) {
			for _, name := range names {
				if strings.Contains(life, name+"-"+nodeName) {
					return fmt.Errorf("%s is still there", life)
				}
			}
		}
		return nil
	})
}

// TestC_1_38_Volumes: one pod with volumes of every kind, and another agent after it.
//
// Shows: C-1.38
func TestC_1_38_Volumes(t *testing.T) {
	serving(t)
	writeVolumes(t)
	checkVolumes(t, 1, 1)
	before := lives(t)
	systemctl(t, "restart", "nodectl")
	awaitPod(t, "volumes", "ready", ready)
	checkVolumes(t, 1, 1)
	untouched(t, before)
	if said := output(t, "journalctl", "--no-pager"); strings.Contains(said, canary) {
		t.Error("the Secret is in the journal")
	}
	gone(t, "volumes", "objects")
	eventually(t, func() error {
		for _, m := range node.Mounts() {
			if strings.HasPrefix(m, root+"/pods/") && strings.HasSuffix(m, "/keys") {
				return fmt.Errorf("mount left: %s", m)
			}
		}
		return nil
	})
	output(t, "nodectl", "delete", "volume", "data")
}

// TestC_1_42_UsersOfItsOwn: a pod with hostUsers: false has a block of users of this
// node, and sees its volumes as its own. tmpfs takes such a view from Linux 6.3 on:
// before, the pod says that it cannot be.
//
// Shows: C-1.42
func TestC_1_42_UsersOfItsOwn(t *testing.T) {
	serving(t)
	if err := os.WriteFile(manifests+"/objects.yaml", []byte(objects), 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, "users", "append, /disk/starts, forever", "volumeMounts: [{name: disk, mountPath: /disk}, {name: conf, mountPath: /conf}]",
		"hostUsers: false", "volumes:", "- {name: disk, emptyDir: {}}", "- {name: conf, configMap: {name: conf}}")
	write(t, "hidden", "forever", "volumeMounts: [{name: keys, mountPath: /keys}]",
		"hostUsers: false", "volumes:", "- {name: keys, secret: {secretName: keys}}")
	// said is the reported reason why a pod does not run.
	said := func(p *v1.Pod) string {
		if c := p.Status.ContainerStatuses; len(c) == 1 && c[0].State.Waiting != nil {
			return c[0].State.Waiting.Message
		}
		return ""
	}
	decided := func(p *v1.Pod) bool { return ready(p) || said(p) != "" }
	if p := awaitPod(t, "users", "runs", decided); !ready(p) {
		t.Fatalf("%s: %+v", said(p), p.Status)
	}
	pid := process(t, "users")
	var inside, outside, length int
	if _, err := fmt.Sscan(read(t, fmt.Sprintf("/proc/%d/uid_map", pid)), &inside, &outside, &length); err != nil {
		t.Fatal(err)
	}
	if inside != 0 || outside < 65536 || outside%65536 != 0 || length != 65536 {
		t.Errorf("users %d are the node's %d, %d of them", inside, outside, length)
	}
	for file, owner := range map[string]int{"/disk/starts": 0, "/conf/one": 0} { // on the disk they are root's
		var s unix.Stat_t
		if err := unix.Stat(fmt.Sprintf("/proc/%d/root%s", pid, file), &s); err != nil || int(s.Uid) != outside+owner {
			t.Errorf("%s is user %d's (%v), want %d", file, s.Uid, err, outside+owner)
		}
	}
	p := awaitPod(t, "hidden", "runs or says why not", decided)
	switch why := said(p); {
	case !strings.HasPrefix(release(t), "6.1."):
		if !ready(p) {
			t.Errorf("hidden: %s", why)
		}
	case ready(p) || !strings.Contains(why, "idmap"):
		t.Errorf("hidden: %q, %+v", why, p.Status)
	default:
		t.Log(why)
	}
	gone(t, "users", "hidden", "objects")
}
