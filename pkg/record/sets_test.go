package record_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/record"
)

const (
	setLayer = "file:/etc/m"
	setFile  = "/etc/m/<web>&.yaml"
)

var setTime = time.Date(2026, 3, 4, 5, 6, 7, 8, time.UTC)

// fileSet returns a file with one pod, one of each config object and two workloads; n makes
// versions differ.
func fileSet(file string, n int) pod.LastGoodSet {
	origin := pod.Origin{Source: "file", Location: "/etc/m", File: file, Line: 7}
	key := pod.Key{Namespace: "default", Name: "web-n1"}
	conf := pod.Key{Namespace: "default", Name: "conf"}
	meta := metav1.ObjectMeta{Namespace: conf.Namespace, Name: conf.Name}
	return pod.LastGoodSet{
		File: file,
		Pods: []*pod.Spec{{
			Key: key, Origin: origin, Hash: fmt.Sprint("v1-", n), SandboxHash: "v1-b",
			ContainerHashes: map[string]string{"c": "v1-c"}, Pod: samplePod(key),
		}},
		Objects: []*pod.Object{
			{Key: conf, Kind: "Secret", Origin: origin, Hash: "v1-d", Object: &v1.Secret{ObjectMeta: meta, Data: map[string][]byte{"k": []byte(secret)}}},
			{Key: conf, Kind: "ConfigMap", Origin: origin, Hash: "v1-e", Object: &v1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"k": secret}}},
			{Key: conf, Kind: "PersistentVolumeClaim", Origin: origin, Hash: "v1-f", Object: &v1.PersistentVolumeClaim{ObjectMeta: meta,
				Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOnce}}}},
			{Key: conf, Kind: pod.KindDeployment, Origin: origin, Hash: fmt.Sprint("v1-g", n), Object: &appsv1.Deployment{
				TypeMeta: metav1.TypeMeta{APIVersion: "apps/v1", Kind: pod.KindDeployment}, ObjectMeta: meta,
				Spec: appsv1.DeploymentSpec{
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
					Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "web"}}, Spec: samplePod(key).Spec},
				},
			}},
			{Key: conf, Kind: pod.KindCronJob, Origin: origin, Hash: "v1-h", Object: &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "@daily"}}},
		},
	}
}

// newSets returns the sets of a root with a plain key file.
func newSets(root string) *record.Sets { return record.NewSets(root, record.NewKey(root, "")) }

func saveSet(t *testing.T, s *record.Sets, layer string, changed ...pod.LastGoodSet) {
	t.Helper()
	if err := s.Save(layer, setTime, changed); err != nil {
		t.Fatal(err)
	}
}

// setOf returns one layer as a new agent reads it.
func setOf(t *testing.T, root, layer string) record.Set {
	t.Helper()
	all, err := newSets(root).Load()
	if err != nil {
		t.Error(err)
	}
	return all[layer]
}

// hashesOf says which version of which file a set has.
func hashesOf(s record.Set) string {
	var out []string
	for _, f := range s.Files {
		for _, p := range f.Pods {
			out = append(out, f.File+"="+p.Hash)
		}
	}
	return strings.Join(out, " ")
}

func setFiles(t *testing.T, root string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, "sources", "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// fileOfSet returns the one file of a root that is not a header.
func fileOfSet(t *testing.T, root string) string {
	t.Helper()
	files := slices.DeleteFunc(setFiles(t, root), func(f string) bool { return filepath.Base(f) == "layer.json" })
	if len(files) != 1 {
		t.Fatalf("files of sets: %v", files)
	}
	return files[0]
}

func TestSetsRoundTripIsExact(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	s := newSets(root)
	if all, err := s.Load(); len(all) != 0 || err != nil {
		t.Fatalf("no root yet: %v, %v", all, err)
	}
	b, a := fileSet("b", 1), fileSet(setFile, 2)
	saveSet(t, s, setLayer, b, a, pod.LastGoodSet{File: "never was"})
	saveSet(t, s, "http:http://cfg/")
	want := map[string]record.Set{
		setLayer:           {Files: []pod.LastGoodSet{a, b}, At: setTime},
		"http:http://cfg/": {At: setTime}, // read successfully, and empty
	}
	same := cmp.Comparer(func(a, b *v1.Pod) bool { return equality.Semantic.DeepEqual(a, b) })
	got, err := newSets(root).Load()
	if diff := cmp.Diff(want, got, same); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err = record.ReadSets(root, record.NewKey(root, "")); err != nil || cmp.Diff(want, got, same) != "" {
		t.Errorf("looking: %v\n%s", err, cmp.Diff(want, got, same))
	}
	saveSet(t, s, setLayer, pod.LastGoodSet{File: "b"})
	if got := hashesOf(setOf(t, root, setLayer)); got != setFile+"=v1-2" {
		t.Errorf("with b gone: %s", got)
	}
	if left := setFiles(t, root); len(left) != 3 {
		t.Errorf("left: %v", left)
	}
}

func TestSetsAreClosedToOthers(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	saveSet(t, newSets(root), setLayer, fileSet(setFile, 1))
	n := 0
	filepath.WalkDir(root, func(path string, d os.DirEntry, _ error) error {
		info, err := d.Info()
		if err != nil {
			t.Fatal(err)
		}
		n++
		if want := map[bool]string{true: "drwx------", false: "-rw-------"}[d.IsDir()]; info.Mode().String() != want {
			t.Errorf("%s: %v, want %s", path, info.Mode(), want)
		}
		if strings.Contains(path, "web") {
			t.Errorf("%s tells what is in it", path)
		}
		return nil
	})
	if n != 5 {
		t.Errorf("%d entries, want the root, sources, the layer, its header and its file", n)
	}
}

func TestSaveOfAnUnchangedSetWritesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	inodes := func() (out []uint64) {
		for _, path := range setFiles(t, root) {
			var st unix.Stat_t
			if err := unix.Stat(path, &st); err != nil {
				t.Fatal(err)
			}
			out = append(out, st.Ino)
		}
		return out
	}
	saveSet(t, s, setLayer, fileSet("a", 1), fileSet("b", 1))
	first := inodes()
	// As after a restart of the agent: it reads before it writes.
	all, err := newSets(root).Load()
	if err != nil {
		t.Fatal(err)
	}
	saveSet(t, newSets(root), setLayer, all[setLayer].Files...)
	if got := inodes(); !slices.Equal(got, first) {
		t.Errorf("written again: %v, %v", first, got)
	}
	saveSet(t, s, setLayer, fileSet("a", 2))
	changed := 0
	for i, n := range inodes() {
		if n != first[i] {
			changed++
		}
	}
	if changed != 1 {
		t.Errorf("one of two files changed, %d were written", changed)
	}
	if err := s.Save(setLayer, setTime.Add(time.Hour), nil); err != nil {
		t.Fatal(err)
	}
	if at := setOf(t, root, setLayer).At; !at.Equal(setTime.Add(time.Hour)) {
		t.Errorf("the time alone: %v", at)
	}
}

func TestForgetRemovesLayersThatAreNotConfigured(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	if err := s.Forget(func(string) bool { return false }); err != nil {
		t.Fatalf("nothing there: %v", err)
	}
	saveSet(t, s, "keep", fileSet("a", 1))
	saveSet(t, s, "drop", fileSet("a", 1))
	saveSet(t, s, "no header", fileSet("b", 1))
	for _, path := range setFiles(t, root) { // a lost header does not hide the layer
		data, _ := os.ReadFile(path)
		if strings.Contains(string(data), `"no header","at"`) {
			os.Remove(path)
		}
	}
	orphan := filepath.Join(root, "sources", "orphan", "x")
	os.MkdirAll(filepath.Dir(orphan), 0o700)
	os.WriteFile(orphan, nil, 0o600)
	if err := s.Forget(func(l string) bool { return l == "keep" }); err != nil {
		t.Fatal(err)
	}
	all, err := s.Load()
	if len(all) != 1 || hashesOf(all["keep"]) != "a=v1-1" || err != nil {
		t.Errorf("left: %v, %v", all, err)
	}
	if left := setFiles(t, root); len(left) != 3 || !slices.Contains(left, orphan) {
		t.Errorf("left on disk: %v", left)
	}
}

func TestSaveRefusesWhatCannotBeReadBack(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	s := newSets(root)
	noPod, odd := fileSet("a", 1), fileSet("b", 1)
	noPod.Pods = []*pod.Spec{{Key: pod.Key{Namespace: "n", Name: "p"}}}
	odd.Objects = []*pod.Object{{Kind: "Ingress", Object: secret}}
	for _, bad := range []pod.LastGoodSet{noPod, odd} {
		if err := s.Save(bad.File, setTime, []pod.LastGoodSet{bad}); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", bad.File, err)
		}
	}
	if left := setFiles(t, root); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func BenchmarkSaveSet(b *testing.B) {
	s := newSets(b.TempDir())
	var all []pod.LastGoodSet
	for i := range 1000 {
		all = append(all, fileSet(fmt.Sprint(i), 0))
	}
	if err := s.Save(setLayer, setTime, all); err != nil {
		b.Fatal(err)
	}
	for n := 1; b.Loop(); n++ {
		if err := s.Save(setLayer, setTime, []pod.LastGoodSet{fileSet("7", n)}); err != nil {
			b.Fatal(err)
		}
	}
}
