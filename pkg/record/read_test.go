package record

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A file or a copied directory of an operator among the pods is not shown as a pod.
func TestReadRecords_ForeignFilesAmongThePods_AreSkipped(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := New(root)
	if err := r.Save(pod.Record{Key: pod.Key{Namespace: "default", Name: "a"}, UID: "u1", Instance: 1}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "pods", "note.txt"), []byte("a note"), 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := ReadRecords(root); len(all) != 1 || err != nil {
		t.Errorf("with a file beside the pods: %v, %v", all, err)
	}
	copied := filepath.Join(root, "pods", "u1.copy")
	if err := os.CopyFS(copied, os.DirFS(filepath.Join(root, "pods", "u1"))); err != nil {
		t.Fatal(err)
	}
	all, err := ReadRecords(root)
	if len(all) != 1 || all[0].UID != "u1" {
		t.Errorf("got %v, want the pod once", all)
	}
	if err == nil || !strings.Contains(err.Error(), copied) {
		t.Errorf("got %v, want an error that names the copy", err)
	}
}

func TestLookChangesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if all, err := ReadRecords(root); len(all) != 0 || err != nil {
		t.Fatalf("an empty root: %v, %v", all, err)
	}
	r := New(root)
	if err := r.Save(pod.Record{Key: pod.Key{Namespace: "default", Name: "a"}, UID: "u1", Instance: 1}); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(root, "pods", "u2", fileName)
	if err := os.MkdirAll(filepath.Dir(damaged), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(damaged, []byte("half a rec"), 0o600); err != nil {
		t.Fatal(err)
	}
	all, err := ReadRecords(root)
	if len(all) != 1 || all[0].UID != "u1" {
		t.Errorf("got %v, want the one good record", all)
	}
	if err == nil || !strings.Contains(err.Error(), damaged) || strings.Contains(err.Error(), "half a rec") {
		t.Errorf("got %v, want an error with the name of the damaged file, without its content", err)
	}
	if data, err := os.ReadFile(damaged); err != nil || string(data) != "half a rec" {
		t.Errorf("the damaged file was touched: %q, %v", data, err)
	}
}
