package e2e

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/test/node"
	"github.com/nodectl/nodectl/test/wait"
)

// onTmpfs reports whether a file is in memory.
func onTmpfs(path string) bool {
	var st unix.Statfs_t
	return unix.Statfs(path, &st) == nil && st.Type == unix.TMPFS_MAGIC
}

// entry describes a container's path: mode, owner, and content.
func (r running) entry(path string) string {
	at := r.inside(path)
	info, err := os.Stat(at)
	if err != nil {
		return errno(err)
	}
	of := info.Sys().(*syscall.Stat_t)
	text := fmt.Sprintf("%s %d:%d", info.Mode(), of.Uid, of.Gid)
	if info.Mode().IsRegular() {
		content, err := os.ReadFile(at)
		if err != nil {
			return errno(err)
		}
		text += " " + string(content)
	}
	return text
}

func errno(err error) string {
	var no syscall.Errno
	if errors.As(err, &no) {
		return no.Error()
	}
	return fmt.Sprint(err)
}

// TestC_1_37_EveryKindOfVolume: one pod with a volume of every kind that needs no API server; its
// containers see the same files as under the kubelet.
//
// Shows: C-1.37
func TestC_1_37_EveryKindOfVolume(t *testing.T) {
	s := parallelStage(t)
	s.must(os.MkdirAll(filepath.Join(s.scratch, "dir"), 0o755), os.WriteFile(filepath.Join(s.scratch, "dir/f"), []byte("of-the-host"), 0o644))
	s.write("objects.yaml", documents(configMap("conf", "one", "1", "two", "2"), secretOf("keys", "token", canary),
		"apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\nspec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}\n"))
	mounts := []string{
		"{name: disk, mountPath: /disk}", "{name: memory, mountPath: /memory}", "{name: host, mountPath: /host}",
		"{name: conf, mountPath: /conf}", "{name: keys, mountPath: /keys}", "{name: down, mountPath: /down}",
		"{name: all, mountPath: /all}", "{name: claim, mountPath: /claim}", "{name: image, mountPath: /image}",
		"{name: host, mountPath: /ro, readOnly: true}", "{name: conf, mountPath: /part, subPath: one}",
		"{name: disk, mountPath: /made, subPath: by/agent}", "{name: disk, mountPath: /expr, subPathExpr: of-$(POD)}",
	}
	s.write("web.yaml", strings.Replace(manifest("web", []string{
		container("main", "write, /disk/mine, x, write, /memory/mine, x, write, /claim/mine, x, write, /made/mine, x, forever",
			"env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.namespace}}}]", "volumeMounts: ["+strings.Join(mounts, ", ")+"]"),
	},
		"securityContext: {runAsUser: 1000, runAsGroup: 2000, fsGroup: 3000}",
		"volumes:",
		"- {name: disk, emptyDir: {}}",
		"- {name: memory, emptyDir: {medium: Memory, sizeLimit: 1Mi}}",
		"- {name: host, hostPath: {path: "+filepath.Join(s.scratch, "dir")+", type: Directory}}",
		"- {name: conf, configMap: {name: conf, defaultMode: 0400, items: [{key: one, path: a/one}, {key: two, path: two, mode: 0644}, {key: one, path: one}]}}",
		"- {name: keys, secret: {secretName: keys}}",
		"- {name: down, downwardAPI: {items: [{path: labels, fieldRef: {fieldPath: metadata.labels}}, {path: memory, resourceFieldRef: {containerName: main, resource: limits.memory, divisor: 1Mi}}]}}",
		"- {name: all, projected: {sources: [{configMap: {name: conf, items: [{key: one, path: c}]}}, {secret: {name: keys}}, {downwardAPI: {items: [{path: d, fieldRef: {fieldPath: metadata.name}}]}}]}}",
		"- {name: claim, persistentVolumeClaim: {claimName: data}}",
		"- {name: image, image: {reference: "+node.Stamp+", pullPolicy: Never}}",
	), "metadata: {", "metadata: {labels: {app: web}, ", 1))
	s.serve()
	main := s.awaitRunning("web", "main")["main"]
	s.awaitReady("web", true)
	s.eventually(func() error {
		_, err := os.Stat(main.inside("/made/mine"))
		return err
	})
	for path, want := range map[string]string{
		"/disk":        "dgrwxrwxrwx 0:3000",
		"/disk/mine":   "-rw-r--r-- 1000:3000 x\n",
		"/memory":      "dgtrwxrwxrwx 0:3000",
		"/host":        "drwxr-xr-x 0:0",
		"/host/f":      "-rw-r--r-- 0:0 of-the-host",
		"/conf":        "dgrwxrwxrwx 0:3000",
		"/conf/a/one":  "-r--r----- 0:3000 1",
		"/conf/two":    "-rw-r--r-- 0:3000 2",
		"/keys":        "dgtrwxrwxrwx 0:3000",
		"/keys/token":  "-rw-r--r-- 0:3000 " + canary,
		"/down/labels": "-rw-r--r-- 0:3000 app=\"web\"",
		"/all/c":       "-rw-r--r-- 0:3000 1",
		"/all/token":   "-rw-r--r-- 0:3000 " + canary,
		"/all/d":       "-rw-r--r-- 0:3000 " + s.full("web"),
		"/claim/mine":  "-rw-r--r-- 1000:3000 x\n",
		"/part":        "-r--r----- 0:3000 1",
		"/made":        "dgrwxrwxrwx 0:3000",
		"/ro/f":        "-rw-r--r-- 0:0 of-the-host",
	} {
		if got := main.entry(path); got != want {
			t.Errorf("%s is %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"/image/app", "/expr"} {
		if _, err := os.Stat(main.inside(path)); err != nil {
			t.Error(err)
		}
	}
	if _, err := os.Stat(main.inside("/disk/of-default")); err != nil {
		t.Errorf("subPathExpr: %v", err)
	}
	for path, tmpfs := range map[string]bool{"/disk": false, "/memory": true, "/conf": false, "/keys": true, "/down": true, "/all": true} {
		if got := onTmpfs(main.inside(path)); got != tmpfs {
			t.Errorf("%s is in memory: %v, want %v", path, got, tmpfs)
		}
	}
	var size unix.Statfs_t
	s.must(unix.Statfs(main.inside("/memory"), &size))
	if total := int64(size.Blocks) * size.Bsize; total != 1<<20 {
		t.Errorf("/memory has %d bytes, want 1Mi", total)
	}
	for path, want := range map[string]error{"/ro/x": unix.EROFS, "/conf/x": unix.EROFS, "/keys/x": unix.EROFS, "/all/x": unix.EROFS, "/image/x": unix.EROFS, "/host/x": nil} {
		if err := os.WriteFile(main.inside(path), nil, 0o600); !errors.Is(err, want) {
			t.Errorf("writing %s: %v, want %v", path, err, want)
		}
	}
	// A full memory volume is not a reason to evict (C-1.37).
	if err := os.WriteFile(main.inside("/memory/large"), make([]byte, 2<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("2 MiB in a volume of one: %v", err)
	}
	s.secretsStay(canary)

	// Only a command deletes the claim, and not while it is used.
	if r := s.run("delete", "volume", "data"); r.code != 1 || !strings.Contains(r.err, s.full("web")) {
		t.Errorf("a volume in use is deleted: %+v", r)
	}
	if r := s.run("get", "volumes", "-o", "json"); !holds(r.out, []string{`"data"`, s.full("web")}) {
		t.Errorf("get volumes: %+v", r)
	}
	s.awaitReady("web", true)
	s.remove("web.yaml")
	s.awaitGone("web")
	mine := filepath.Join(s.root, "volumes/default/data/data/mine")
	if text, err := os.ReadFile(mine); err != nil || string(text) != "x\n" {
		t.Errorf("the claim without its pod: %q, %v", text, err)
	}
	if r := s.run("get", "volumes"); !strings.Contains(r.out, "data") || strings.Contains(r.out, s.full("web")) {
		t.Errorf("get volumes: %+v", r)
	}
	if r := s.run("delete", "volume", "data"); r.code != 0 {
		t.Errorf("delete volume: %+v", r)
	}
	if _, err := os.Stat(filepath.Dir(filepath.Dir(mine))); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a deleted volume: %v", err)
	}
	s.nothingLeft()
}

// TestC_1_37_EmptyDirOverItsLimit: an emptyDir on disk, or a container's writable layer, that
// grows over its limit ends its pod, with that reason; other pods are not touched.
//
// Shows: C-1.37, C-1.35.9
func TestC_1_37_EmptyDirOverItsLimit(t *testing.T) {
	s := parallelStage(t)
	s.write("fat.yaml", manifest("fat", []string{container("main", "forever", "volumeMounts: [{name: d, mountPath: /d}]")},
		"volumes: [{name: d, emptyDir: {sizeLimit: 1Mi}}]"))
	s.write("layer.yaml", manifest("layer", []string{container("main", "forever", "resources: {limits: {ephemeral-storage: 1Mi}}")}))
	s.excuse("fat")
	s.excuse("layer")
	s.serve()
	kept := s.keep()
	main, layer := s.awaitRunning("fat", "main")["main"], s.awaitRunning("layer", "main")["main"]
	s.must(os.WriteFile(main.inside("/d/large"), make([]byte, 4<<20), 0o600))
	s.must(os.WriteFile(layer.inside("/large"), make([]byte, 4<<20), 0o600))
	st := s.awaitPhase("fat", v1.PodFailed, wait.WithoutStall) // the agent measures once a minute
	if st.Reason != "Evicted" || !strings.Contains(st.Message, `"d"`) || !strings.Contains(st.Message, "1Mi") {
		t.Errorf("status: %s", describe(st))
	}
	s.eventually(func() error {
		_, err := s.runningNow("fat")
		return err
	})
	if st := s.awaitPhase("layer", v1.PodFailed, wait.WithoutStall); st.Reason != "Evicted" || !strings.Contains(st.Message, "exceeds the total limit of containers 1Mi") {
		t.Errorf("status: %s", describe(st))
	}
	s.untouched("keep", kept)
}

// TestC_1_37_MountPropagation: the node and a container with HostToContainer see the mounts of a
// privileged container in a Bidirectional volume; a container with None does not. When the pod is
// removed, so is its mount, and no file behind it.
//
// Shows: C-1.37
func TestC_1_37_MountPropagation(t *testing.T) {
	s := parallelStage(t)
	dir := filepath.Join(s.scratch, "shared")
	s.must(os.Mkdir(dir, 0o755), unix.Mount(dir, dir, "", unix.MS_BIND, ""), unix.Mount("", dir, "", unix.MS_SHARED, ""), os.Mkdir(dir+"/sub", 0o755))
	t.Cleanup(func() { s.must(unix.Unmount(dir+"/sub", unix.MNT_DETACH), unix.Unmount(dir, unix.MNT_DETACH)) })
	mount := func(how string) string {
		return "volumeMounts: [{name: d, mountPath: /d, mountPropagation: " + how + "}]"
	}
	s.write("web.yaml", manifest("web", []string{
		container("both", "wait, /d/go, mount, /d/sub, write, /d/sub/f, x, forever", mount("Bidirectional"), "securityContext: {privileged: true}"),
		container("in", "forever", mount("HostToContainer")),
		container("none", "forever", mount("None")),
	}, "volumes: [{name: d, hostPath: {path: "+dir+"}}]"))
	s.serve()
	now := s.awaitRunning("web", "both", "in", "none")
	s.must(os.WriteFile(dir+"/go", nil, 0o600))
	s.eventually(func() error {
		_, err := os.Stat(dir + "/sub/f")
		return err
	})
	s.awaitLog("web", "in", 0, "started")
	s.awaitLog("web", "none", 0, "started")
	if got := now["in"].entry("/d/sub/f"); !strings.HasSuffix(got, " x\n") {
		t.Errorf("HostToContainer sees %q", got)
	}
	if got := now["none"].entry("/d/sub/f"); got != unix.ENOENT.Error() {
		t.Errorf("None sees %q", got)
	}
	s.remove("web.yaml")
	s.awaitGone("web")
	if text, err := os.ReadFile(dir + "/sub/f"); err != nil || string(text) != "x\n" {
		t.Errorf("what was mounted on the node: %q, %v", text, err)
	}
}

func (s *stage) subPathRace(turns int) {
	t := s.T
	host := filepath.Join(s.scratch, "host")
	s.must(os.Mkdir(host, 0o755), os.WriteFile(filepath.Join(host, "word"), []byte("host-canary\n"), 0o644))
	victims := []string{"v0", "v1", "v2", "v3"}
	text := func(turn int) string {
		all := []string{
			container("a", "swap, /d/a, "+host, "volumeMounts: [{name: d, mountPath: /d}]"),
			container("b", "swap, /d/b, ../../../../../../../../../../../.."+host, "volumeMounts: [{name: d, mountPath: /d}]"),
		}
		for i, v := range victims {
			all = append(all, container(v, "show, /in/word, show, /in/host/word, forever", "env: [{name: TURN, value: '"+strconv.Itoa(turn)+"'}]",
				"volumeMounts: [{name: d, mountPath: /in, subPath: "+[]string{"a", "b", "a/word", "b"}[i]+"}]"))
		}
		return manifest("web", all, "volumes: [{name: d, emptyDir: {}}]", "terminationGracePeriodSeconds: 1")
	}
	s.excuse("web")
	s.write("web.yaml", text(0))
	s.serve()
	made := func() int {
		n := 0
		for _, l := range s.lives.of(s.name) {
			if strings.HasPrefix(l.name, "v") {
				n++
			}
		}
		return n
	}
	for turn := 1; turn <= turns; turn++ {
		before := made()
		s.write("web.yaml", text(turn)) // all are made again, unless a subPath is a link just then
		wait.Until(t, "another container is made", func() (int, bool) { n := made(); return n, n > before })
	}
	logs, err := filepath.Glob(filepath.Join(s.logs, "*/v*/*.log"))
	s.must(err)
	for _, f := range logs {
		if text, err := os.ReadFile(f); err != nil || strings.Contains(string(text), "host-canary") {
			t.Errorf("a subPath left its volume: %s: %s (%v)", f, text, err)
		}
	}
	for _, name := range []string{"a", "b"} {
		if n := len(s.ended("web", name)); n > 0 {
			t.Errorf("container %s, which makes the links, has ended %d times", name, n)
		}
	}
	// The volume may still contain links to the node.
	found, _ := filepath.Glob(filepath.Join(s.root, "pods/*/*/volumes/kubernetes.io~empty-dir/d"))
	if len(found) != 1 {
		t.Fatalf("emptyDirs: %v", found)
	}
	for _, name := range []string{"l0", "l1"} {
		s.must(os.Symlink(host, filepath.Join(found[0], name)))
	}
	s.remove("web.yaml")
	s.awaitGone("web")
	if text, err := os.ReadFile(filepath.Join(host, "word")); err != nil || string(text) != "host-canary\n" {
		t.Errorf("the node's file after the pod has gone: %q, %v", text, err)
	}
	s.nothingLeft()
}
