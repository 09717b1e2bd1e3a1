package record_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
)

func workloadKey(kind, name string) pod.ObjectKey {
	return pod.ObjectKey{Kind: kind, Key: pod.Key{Namespace: "default", Name: name}}
}

// states returns the states that load calls its function with.
func states(load func(func(pod.ObjectKey, string, []byte)) error) (map[string]string, error) {
	all := make(map[string]string)
	err := load(func(of pod.ObjectKey, layer string, state []byte) {
		all[of.Kind+" "+of.Key.String()+" of "+layer] = string(state)
	})
	return all, err
}

func TestWorkloads_SaveAndRemove_AreSeenByTheNextAgent(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := record.NewWorkloads(root)
	long := strings.Repeat("a", 253)
	for _, s := range []struct{ kind, name, state string }{
		{"Deployment", "web", `{"revisions":[]}`}, {"Job", "web", `{}`}, {"Deployment", long, `{"a":1}`}, {"Job", "../x", `{}`}, {"Deployment", "web", `{"b":2}`},
	} {
		if err := w.Save(workloadKey(s.kind, s.name), "file:/m", []byte(s.state)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Remove(workloadKey("Job", "web")); err != nil {
		t.Error(err)
	}
	if err := w.Remove(workloadKey("Job", "none")); err != nil {
		t.Errorf("a state that does not exist: %v", err)
	}
	want := map[string]string{
		"Deployment default/web of file:/m": `{"b":2}`, "Deployment default/" + long + " of file:/m": `{"a":1}`, "Job default/../x of file:/m": `{}`,
	}
	got, err := states(record.NewWorkloads(root).Load)
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("%v, (-want +got):\n%s", err, diff)
	}
	looked, err := states(func(each func(pod.ObjectKey, string, []byte)) error { return record.ReadWorkloads(root, each) })
	if diff := cmp.Diff(want, looked); diff != "" || err != nil {
		t.Errorf("%v, (-want +looked):\n%s", err, diff)
	}
	if _, err := os.Stat(filepath.Join(root, "workloads", "Deployment_default_web.json")); err != nil {
		t.Error(err)
	}
}

// TestWorkloads_FilesAreClosedToOthers: a template may hold secrets.
func TestWorkloads_FilesAreClosedToOthers(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := record.NewWorkloads(root).Save(workloadKey("Job", "a"), "file:/m", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]os.FileMode{"workloads": os.ModeDir | 0o700, "workloads/Job_default_a.json": 0o600} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

func TestWorkloads_DamagedFile_IsSetAside(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := record.NewWorkloads(root)
	for _, name := range []string{"a", "b", "c"} {
		if err := w.Save(workloadKey("Job", name), "file:/m", []byte(`{"secret":"`+secret+`"}`)); err != nil {
			t.Fatal(err)
		}
	}
	dir := filepath.Join(root, "workloads")
	path := func(name string) string { return filepath.Join(dir, fmt.Sprintf("Job_default_%s.json", name)) }
	data, err := os.ReadFile(path("a"))
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"a": data[:len(data)-3], "b": data} { // cut off, another workload's
		if err := os.WriteFile(path(name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	look := func(each func(pod.ObjectKey, string, []byte)) error { return record.ReadWorkloads(root, each) }
	for i, load := range []func(func(pod.ObjectKey, string, []byte)) error{look, w.Load} {
		got, err := states(load)
		if len(got) != 1 || err == nil || strings.Contains(err.Error(), secret) || !strings.Contains(err.Error(), path("a")) || !strings.Contains(err.Error(), path("b")) {
			t.Errorf("load %d: %v, %v", i, got, err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	aside := 0
	for _, e := range entries {
		if strings.Contains(e.Name(), ".corrupt-") {
			aside++
		}
	}
	if aside != 2 || len(entries) != 3 {
		t.Errorf("%d files, %d set aside", len(entries), aside)
	}
	if _, err := states(w.Load); err != nil {
		t.Errorf("the next agent: %v", err)
	}
}

// TestWorkloads_NewerVersion_IsNamedAndStays: an older nodectl does not set it aside.
func TestWorkloads_NewerVersion_IsNamedAndStays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	w := record.NewWorkloads(root)
	if err := w.Save(workloadKey("Job", "a"), "file:/m", []byte("{}")); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(root, "workloads", "Job_default_a.json")
	payload := `{"kind":"Job"}`
	newer := fmt.Sprintf(`{"version":2,"sha256":"%x","workload":%s}`+"\n", sha256.Sum256([]byte("2\n"+payload)), payload)
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if got, err := states(w.Load); len(got) != 0 || err == nil || !strings.Contains(err.Error(), "version 2 is not supported") {
			t.Errorf("%v, %v", got, err)
		}
	}
}

func TestWorkloads_SaveFails_OldStateStays(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "workloads"), nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	if err := record.NewWorkloads(root).Save(workloadKey("Job", "a"), "file:/m", []byte("{}")); err == nil {
		t.Error("saved into a file")
	}
}
