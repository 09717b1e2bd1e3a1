package growth

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write docs/growth.md")

// TestPage_IsTheTable holds docs/growth.md equal to the table.
func TestPage_IsTheTable(t *testing.T) {
	const file = "../../docs/growth.md"
	want := Page()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(got), want); diff != "" {
		t.Errorf("%s is not the table; go test ./test/growth -update writes it (-page +table):\n%s", file, diff)
	}
}

func TestCheck_NodeDiffersFromTheTable_IsFound(t *testing.T) {
	root := t.TempDir()
	for name, size := range map[string]int64{
		"journal.jsonl": 100, "journal.jsonl.tmp": 100, "events.jsonl": 3 * mib,
		"pods/a/record.json": 10, "pods/a/2/volumes/kubernetes.io~empty-dir/x/deep/file": 10, "pods/b/record.json": 10,
		"pods/a/containers/c/0": 1, "pods/a/containers/c/1": 1, "pods/a/containers/c/2": 1, "pods/a/containers/c/3": 1,
		"pods/a/odd": 1, ".images-used.json-123": 1,
	} {
		file := filepath.Join(root, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(file, size); err != nil {
			t.Fatal(err)
		}
	}
	for _, leaked := range []string{"pods/a/3.old/volumes", "bundles"} { // without files
		if err := os.MkdirAll(filepath.Join(root, filepath.FromSlash(leaked)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	got := Node{Dirs: map[Place]string{Root: root, Logs: filepath.Join(root, "none")}, Pods: map[string]bool{"a": true}, Objects: []string{
		"exited/a/c/1", "exited/a/c/2", "exited/a/d/3",
	}}.Check()
	if diff := cmp.Diff([]string{
		"<root-dir>/.images-used.json-123: no row of the table explains it",
		"<root-dir>/bundles: no row of the table explains it",
		"<root-dir>/events.jsonl: 3145728 bytes, the bound is 1114112",
		"<root-dir>/pods/a/3.old/volumes: no row of the table explains it",
		"<root-dir>/pods/a/3.old: no row of the table explains it",
		"<root-dir>/pods/a/containers/c: 4 of pods/<uid>/containers/<container>/<attempt>, the bound is 3",
		"<root-dir>/pods/a/odd: no row of the table explains it",
		"<root-dir>/pods/b/record.json: the node has no such pod",
		"<root-dir>/pods/b: the node has no such pod",
		"the runtime/exited/a/c: 2 of exited/<uid>/<container>/<id>, the bound is 1",
	}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// TestCheck_FilesOfPlugins_AreExplained: the UID of a claim is not that of a pod; the directories of
// CSI drivers belong to pods.
func TestCheck_FilesOfPlugins_AreExplained(t *testing.T) {
	root, kubelet := t.TempDir(), t.TempDir()
	for dir, names := range map[string][]string{
		root: {"resource-claims/c.json", "resource-claims/c.json.tmp", "kubelet/plugins/disk.test/csi.sock", "agent/dns.sock", "agent/dns.json"},
		kubelet: {
			"plugins/kubernetes.io/csi/disk.test/1/globalmount/vol_data.json", "pods/a/volumes/kubernetes.io~csi/pv-1/vol_data.json",
			"device-plugins/kubelet.sock", "device-plugins/gpu.sock", "pod-resources/kubelet.sock", "plugins_registry/disk.test-reg.sock", "pods/b/volumes/x", "other/x",
		},
	} {
		for _, name := range names {
			file := filepath.Join(dir, filepath.FromSlash(name))
			if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	got := Node{Dirs: map[Place]string{Root: root, Kubelet: kubelet}, Pods: map[string]bool{"a": true}}.Check()
	if diff := cmp.Diff([]string{
		"<kubelet-dir>/other/x: no row of the table explains it",
		"<kubelet-dir>/other: no row of the table explains it",
		"<kubelet-dir>/pods/b: the node has no such pod",
	}, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
