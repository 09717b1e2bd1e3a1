package record_test

import (
	"bytes"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/record"
)

const secret = "hunter2"

// sample returns a record with every field set.
func sample() pod.Record {
	key := pod.Key{Namespace: "default", Name: "web-n1"}
	return pod.Record{
		Key:       key,
		UID:       "5f1c",
		Instance:  3,
		Attempts:  map[string]uint32{"": 2, "c": 7},
		StartTime: time.Date(2026, 1, 2, 3, 4, 5, 678901234, time.UTC),
		StopSince: time.Date(2026, 1, 2, 4, 4, 5, 1, time.FixedZone("x", 3600)),
		StopGrace: ptr.To[int64](7), StopAsked: true, StopReason: "the node was drained",
		Terminal: v1.PodFailed,

		TerminalReason:  "DeadlineExceeded",
		TerminalMessage: "too long",
		Streaks:         map[string]int{"c": 3},
		Devices:         map[string][]pod.DeviceAllocation{"c": {{Resource: "x.com/gpu", Devices: []string{"d1"}, Envs: map[string]string{"A": "b"}}}},
		RestartingAll:   true,
		Eviction: &pod.Eviction{
			Instance: 3, At: time.Date(2026, 1, 2, 4, 4, 5, 2, time.UTC), Grace: 1, Condition: v1.NodeMemoryPressure, Count: 2, Over: true,
		},
		ContainerNotes: map[string]pod.ContainerNotes{
			"c1": {PostStart: pod.HookDue, PreStop: true, Killed: string(pod.Liveness), Grace: ptr.To[int64](5), Resources: "cpu=1/2"},
		},
		Want: &pod.Spec{
			Key:             key,
			Origin:          pod.Origin{Source: "file", Location: "/etc/m", File: "/etc/m/<web>&.yaml", Line: 12},
			Hash:            "v1-aa",
			SandboxHash:     "v1-bb",
			ContainerHashes: map[string]string{"c": "v1-cc", "init": "v1-dd"},
			Placed:          map[string]pod.Placement{"c": {CPUs: "2-3", Memory: []pod.Block{{NUMAAffinity: []int{0}, Type: v1.ResourceMemory, Size: 1 << 20}}}},
			Earlier:         map[string]string{"c": "v1-ee"},
			DependsOn:       []pod.Dependency{{Name: "db", Until: pod.Ready}},
			Pod:             samplePod(key),
			Data: &pod.Data{
				Sums: []pod.ObjectSum{
					{Kind: pod.KindConfigMap, Name: "a", Hash: "v2-1"},
					{Kind: pod.KindSecret, Name: "b", Hash: "v2-2", Keys: map[string]pod.KeySum{"k": {Bytes: 3, Sum: "4"}, "l": {}}},
				},
				Unbound: map[string]string{"": "v2-5", "c": "v2-6"},
			},
		},
	}
}

func samplePod(key pod.Key) *v1.Pod {
	port := intstr.FromString("web")
	return &v1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: key.Namespace, Name: key.Name, UID: "5f1c",
			Labels:                     map[string]string{"a": "b"},
			Annotations:                map[string]string{"k": "<>&\u2028\x01", pod.AnnotationConfigHash: "v1-aa"},
			CreationTimestamp:          metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
			DeletionGracePeriodSeconds: ptr.To[int64](0),
		},
		Spec: v1.PodSpec{
			RestartPolicy:                 v1.RestartPolicyOnFailure,
			TerminationGracePeriodSeconds: ptr.To[int64](0),
			EnableServiceLinks:            ptr.To(false),
			SecurityContext:               &v1.PodSecurityContext{},
			Tolerations:                   []v1.Toleration{{Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute}},
			Volumes: []v1.Volume{
				{Name: "e", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: ptr.To(resource.MustParse("1.5Gi"))}}},
				{Name: "h", VolumeSource: v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x", Type: ptr.To(v1.HostPathUnset)}}},
			},
			InitContainers: []v1.Container{{Name: "init", Image: "i"}},
			Containers: []v1.Container{{
				Name: "c", Image: "img:1", Command: []string{"a", ""},
				Env:   []v1.EnvVar{{Name: "PASSWORD", Value: secret}, {Name: "EMPTY"}},
				Ports: []v1.ContainerPort{{Name: "web", ContainerPort: 80, Protocol: v1.ProtocolTCP}},
				Resources: v1.ResourceRequirements{
					Limits:   v1.ResourceList{v1.ResourceCPU: resource.MustParse("0.1"), v1.ResourceMemory: resource.MustParse("64Mi")},
					Requests: v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m")},
				},
				ReadinessProbe: &v1.Probe{PeriodSeconds: 10, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: port, Scheme: v1.URISchemeHTTP}}},
				VolumeMounts:   []v1.VolumeMount{{Name: "e", MountPath: "/e", MountPropagation: ptr.To(v1.MountPropagationNone)}},
			}},
		},
	}
}

// same compares records: Pods by the API's equality, times as instants.
func same(a, b pod.Record) string {
	return cmp.Diff(a, b, cmpopts.IgnoreUnexported(pod.Data{}), cmp.Comparer(func(a, b *v1.Pod) bool { return equality.Semantic.DeepEqual(a, b) }))
}

func recordPath(root, uid string) string { return filepath.Join(root, "pods", uid, "record.json") }

func mustSave(t *testing.T, r *record.Records, rec pod.Record) {
	t.Helper()
	if err := r.Save(rec); err != nil {
		t.Fatal(err)
	}
}

func TestRoundTripIsExact(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	want := sample()
	for _, v := range []any{want, *want.Eviction, *want.Want, want.Want.Origin, *want.Want.Data, want.Want.Data.Sums[1], want.Want.Data.Sums[1].Keys["k"]} {
		for i, f := range reflect.VisibleFields(reflect.TypeOf(v)) {
			// Positions are only for messages right after reading. A pod with Unread starts nothing
			// before its source has answered.
			if f.IsExported() && f.Name != "Positions" && f.Name != "Unread" && reflect.ValueOf(v).FieldByIndex(f.Index).IsZero() {
				t.Errorf("field %d of %T, %s, is not in the sample: is it in the file?", i, v, f.Name)
			}
		}
	}
	mustSave(t, record.New(root), want)
	r := record.New(root) // as after a restart
	got, ok, err := r.Load(want.Key, want.UID)
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	if diff := same(want, got); diff != "" {
		t.Error(diff)
	}
	bare := pod.Record{Key: pod.Key{Namespace: "a", Name: "b"}, UID: "bare"}
	mustSave(t, r, bare)
	all, err := r.All()
	if err != nil || len(all) != 2 {
		t.Fatalf("%d records, %v", len(all), err)
	}
	if diff := same(bare, all[0]) + same(want, all[1]); diff != "" {
		t.Error(diff)
	}
}

func TestRecordsAreClosedToOthers(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	mustSave(t, record.New(root), sample())
	for path, want := range map[string]string{
		root: "drwx------", root + "/pods": "drwx------", root + "/pods/5f1c": "drwx------", recordPath(root, "5f1c"): "-rw-------",
	} {
		if info, err := os.Stat(path); err != nil || info.Mode().String() != want {
			t.Errorf("%s: %v (%v), want %s", path, info.Mode(), err, want)
		}
	}
	if left, _ := os.ReadDir(filepath.Join(root, "pods", "5f1c")); len(left) != 1 {
		t.Errorf("beside the record lies %v", left)
	}
}

func TestSaveOfTheSameWritesNothing(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := record.New(root)
	rec := sample()
	inode := func() uint64 {
		var st unix.Stat_t
		if err := unix.Stat(recordPath(root, rec.UID), &st); err != nil {
			t.Fatal(err)
		}
		return st.Ino
	}
	mustSave(t, r, rec)
	first := inode()
	again, _, _ := r.Load(rec.Key, rec.UID)
	mustSave(t, r, again)
	if inode() != first {
		t.Error("an equal record was written again")
	}
	rec.Instance++
	mustSave(t, r, rec)
	if inode() == first {
		t.Error("a changed record was written in place, not replaced")
	}
}

func TestLoadByKey(t *testing.T) {
	t.Parallel()
	r := record.New(t.TempDir())
	rec := sample()
	if _, ok, err := r.Load(rec.Key, rec.UID); ok || err != nil {
		t.Errorf("nothing there: %t, %v", ok, err)
	}
	mustSave(t, r, rec)
	for name, uid := range map[string]string{"ItsUID": rec.UID, "NoUID": "", "NewUID": "new"} {
		got, ok, err := r.Load(rec.Key, uid)
		if !ok || err != nil || got.UID != rec.UID {
			t.Errorf("%s: %t, %v, UID %q; want the record of %s", name, ok, err, got.UID, rec.UID)
		}
	}
	newer := sample()
	newer.UID, newer.Instance = "9999", rec.Instance+1
	mustSave(t, r, newer)
	if got, _, _ := r.Load(rec.Key, ""); got.UID != "9999" {
		t.Errorf("two pods of one key: got UID %s, want the newer", got.UID)
	}
	if _, ok, err := r.Load(pod.Key{Namespace: "other", Name: "pod"}, ""); ok || err != nil {
		t.Errorf("another pod: %t, %v", ok, err)
	}
}

func TestLoadAfterForget(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := record.New(root)
	rec := sample()
	mustSave(t, r, rec)
	if _, ok, _ := r.Load(rec.Key, ""); !ok {
		t.Fatal("not found by key")
	}
	if err := os.RemoveAll(filepath.Join(root, "pods", rec.UID)); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"", rec.UID} {
		if _, ok, err := r.Load(rec.Key, uid); ok || err != nil {
			t.Errorf("UID %q after the directory went: %t, %v", uid, ok, err)
		}
	}
}

// Shows: F43
func TestF43_OneUIDBelongsToOneKey(t *testing.T) {
	t.Parallel()
	r := record.New(t.TempDir())
	rec, other := sample(), sample()
	other.Name = "other"
	mustSave(t, r, rec)
	if err := r.Save(other); err == nil {
		t.Error("the record of another pod was overwritten")
	}
	if _, ok, err := r.Load(other.Key, rec.UID); ok || err == nil || !strings.Contains(err.Error(), "belongs to pod default/web-n1") {
		t.Errorf("another pod's record: %t, %v", ok, err)
	}
	if got, ok, err := r.Load(rec.Key, rec.UID); !ok || err != nil || got.Key != rec.Key {
		t.Errorf("the owner's: %t, %v", ok, err)
	}
	other.UID = "uid-2" // an earlier instance of the other pod is to be stopped by its own spec
	mustSave(t, r, other)
	if got, ok, err := r.Load(other.Key, rec.UID); !ok || err == nil || got.UID != "uid-2" {
		t.Errorf("the record of the former UID: %t, %q, %v", ok, got.UID, err)
	}
}

// The owner of a UID is known from a record that this nodectl cannot read, too.
func TestOwner_RecordOfAnotherVersionOrDamaged_HasOne(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"as it was saved": func(b []byte) []byte { return b },
		"newer version":   func(b []byte) []byte { return bytes.Replace(b, []byte(`"version":1`), []byte(`"version":7`), 1) },
		"other checksum":  func(b []byte) []byte { return bytes.Replace(b, []byte(`"instance":`), []byte(`"instance":1`), 1) },
	} {
		r, _ := damage(t, change)
		if key, known, err := r.Owner(sample().UID); err != nil || !known || key != sample().Key {
			t.Errorf("%s: %v, %t, %v", name, key, known, err)
		}
	}
	r, root := damage(t, func([]byte) []byte { return []byte("no record") })
	if key, known, err := r.Owner(sample().UID); err != nil || known {
		t.Errorf("no record: %v, %t, %v", key, known, err)
	}
	if _, known, err := r.Owner("absent"); err != nil || known {
		t.Errorf("absent: %t, %v", known, err)
	}
	path := filepath.Join(root, "pods", sample().UID, "record.json")
	if err := errors.Join(os.Remove(path), os.Mkdir(path, 0o700)); err != nil {
		t.Fatal(err)
	}
	if _, known, err := r.Owner(sample().UID); err == nil || known {
		t.Errorf("that cannot be read: %t, %v", known, err)
	}
}

func TestUIDIsOnePlainName(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := record.New(filepath.Join(root, "in"))
	for _, uid := range []string{"", ".", "..", "../../x", "a/b", "a\x00b"} {
		rec := sample()
		rec.UID = uid
		if err := r.Save(rec); err == nil {
			t.Errorf("saved under UID %q", uid)
		}
		if _, ok, err := r.Load(rec.Key, uid); ok || uid != "" && err == nil {
			t.Errorf("loaded under UID %q: %t, %v", uid, ok, err)
		}
	}
	if left, _ := os.ReadDir(root); len(left) != 0 {
		t.Errorf("something was made: %v", left)
	}
}

// damage saves a record, damages its file and returns the agent that finds it.
func damage(t *testing.T, change func([]byte) []byte) (r *record.Records, root string) {
	t.Helper()
	root = t.TempDir()
	mustSave(t, record.New(root), sample())
	path := recordPath(root, "5f1c")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, change(data), 0o600); err != nil {
		t.Fatal(err)
	}
	return record.New(root), root
}

// Shows: F12
func TestF12_DamagedIsSetAsideAndAbsent(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func([]byte) []byte{
		"Empty":     func([]byte) []byte { return nil },
		"Truncated": func(b []byte) []byte { return b[:len(b)/2] },
		"Flipped":   func(b []byte) []byte { b[len(b)/2] ^= 4; return b },
		"Longer":    func(b []byte) []byte { return append(b, '\n') },
		"Zeros":     func(b []byte) []byte { return make([]byte, len(b)) },
		"NoRecord":  func([]byte) []byte { return []byte("PASSWORD=" + secret) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, root := damage(t, change)
			other := sample()
			other.Name, other.UID = "other", "other"
			mustSave(t, r, other)
			rec := sample()
			got, ok, err := r.Load(rec.Key, rec.UID)
			if ok || got.Want != nil || err == nil || !strings.Contains(err.Error(), "is damaged") || strings.Contains(err.Error(), secret) {
				t.Errorf("load: %t, %v; want absent, an error, and nothing of what is in it", ok, err)
			}
			aside, _ := filepath.Glob(recordPath(root, rec.UID) + ".corrupt-*")
			if _, err := os.Stat(recordPath(root, rec.UID)); len(aside) != 1 || !os.IsNotExist(err) {
				t.Errorf("set aside: %v, the file itself: %v", aside, err)
			}
			if _, ok, err := r.Load(rec.Key, rec.UID); ok || err != nil {
				t.Errorf("load again: %t, %v; want absent without an error", ok, err)
			}
			mustSave(t, r, rec)
			if all, err := r.All(); len(all) != 2 || err != nil {
				t.Errorf("after a new Save: %d records, %v", len(all), err)
			}
		})
	}
}

// TestLoad_RecordIsDamagedAgainAndAgain_NewestTenAreKept: a disk that fails does not fill itself.
func TestLoad_RecordIsDamagedAgainAndAgain_NewestTenAreKept(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r, rec := record.New(root), sample()
	mustSave(t, r, rec)
	path := recordPath(root, rec.UID)
	for turn := range 13 {
		if err := os.WriteFile(path, []byte{byte('a' + turn)}, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok, err := r.Load(rec.Key, rec.UID); ok || err == nil {
			t.Errorf("load: %t, %v", ok, err)
		}
	}
	aside, _ := filepath.Glob(path + ".corrupt-*")
	kept := ""
	for _, file := range aside {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		kept += string(text)
	}
	if kept != "defghijklm" {
		t.Errorf("kept %s, want the newest ten", kept)
	}
}

// Shows: F12
func TestF12_AllReturnsWhatIsReadable(t *testing.T) {
	t.Parallel()
	r, root := damage(t, func(b []byte) []byte { return b[1:] })
	other := sample()
	other.Name, other.UID = "other", "other"
	mustSave(t, r, other)
	for _, stray := range []string{"file", "dir/x"} {
		path := filepath.Join(root, "pods", stray)
		os.MkdirAll(filepath.Dir(path), 0o700)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	all, err := r.All()
	if len(all) != 1 || all[0].UID != "other" || err == nil || !strings.Contains(err.Error(), "5f1c") {
		t.Errorf("got %d records, %v; want the good one, and the bad one named", len(all), err)
	}
	if all, err := r.All(); len(all) != 1 || err != nil {
		t.Errorf("again: %d, %v", len(all), err)
	}
	if all, err := record.New(filepath.Join(root, "none")).All(); len(all) != 0 || err != nil {
		t.Errorf("no directory at all: %d, %v", len(all), err)
	}
}

// A reader finds a whole record, wherever the save ends.
//
// Shows: F12
func TestF12_SaveIsAtomic(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	r := record.New(root)
	rec := sample()
	// A killed agent's leftovers do not matter.
	mustSave(t, r, rec)
	if err := os.WriteFile(recordPath(root, rec.UID)+".tmp", bytes.Repeat([]byte("x"), 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		reader := record.New(root)
		last := 0
		for {
			got, ok, err := reader.Load(rec.Key, rec.UID)
			if !ok || err != nil || got.Instance < last {
				t.Errorf("while saving: %t, %v, instance %d after %d", ok, err, got.Instance, last)
				return
			}
			last = got.Instance
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 300 {
		rec.Instance++
		mustSave(t, r, rec)
	}
	close(stop)
	wg.Wait()
	if left, _ := os.ReadDir(filepath.Join(root, "pods", rec.UID)); len(left) != 1 {
		t.Errorf("left: %v", left)
	}
}

func BenchmarkSave(b *testing.B) {
	r := record.New(b.TempDir())
	rec := sample()
	for b.Loop() {
		rec.Instance++
		if err := r.Save(rec); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkFirstSave(b *testing.B) {
	r := record.New(b.TempDir())
	rec := sample()
	for i := 0; b.Loop(); i++ {
		rec.UID = fmt.Sprint(i)
		if err := r.Save(rec); err != nil {
			b.Fatal(err)
		}
	}
}

// TestI8_RecordsKeepSumsAlone: a record identifies the objects of a pod after a restart,
// but does not contain them.
//
// Shows: I8
func TestI8_RecordsKeepSumsAlone(t *testing.T) {
	t.Parallel()
	root := filepath.Join(t.TempDir(), "root")
	const canary = "canary-7f3a"
	key := pod.Key{Namespace: "default", Name: "web-n1"}
	of := func(value string) []*pod.Object {
		name := pod.Key{Namespace: "default", Name: "db"}
		return []*pod.Object{
			{Key: name, Kind: pod.KindSecret, Object: &v1.Secret{Data: map[string][]byte{"password": []byte(value)}}},
			{Key: name, Kind: pod.KindConfigMap, Object: &v1.ConfigMap{Data: map[string]string{"motd": value}}},
		}
	}
	spec := &pod.Spec{Key: key, Hash: "v1-a", Pod: samplePod(key)}
	rec := pod.Record{Key: key, UID: "5f1c", Instance: 1, Want: podspec.Bind(spec, podspec.NewData(of(canary)))}
	mustSave(t, record.New(root), rec)
	text, err := os.ReadFile(recordPath(root, "5f1c"))
	if err != nil {
		t.Fatal(err)
	}
	for _, form := range []string{canary, base64.StdEncoding.EncodeToString([]byte(canary))} {
		if strings.Contains(string(text), form) {
			t.Errorf("the record has %q in it", form)
		}
	}
	got, ok, err := record.New(root).Load(key, "5f1c")
	if !ok || err != nil {
		t.Fatal(ok, err)
	}
	data := got.Want.Data
	if !data.Same(podspec.NewData(of(canary))) || data.Same(podspec.NewData(of("another"))) || data.HasContents() {
		t.Errorf("data %+v", data)
	}
	hash := func(d *pod.Data) string {
		sum, _ := d.Hash(func(pod.ObjectID) bool { return true })
		return sum
	}
	if hash(data) != hash(podspec.NewData(of(canary))) {
		t.Error("the hash is another after a restart")
	}
}

// TestLoad_ListOfDependenciesWithoutBound_IsCut: records and sets of an older nodectl keep
// only as many dependencies as a manifest may have now.
func TestLoad_ListOfDependenciesWithoutBound_IsCut(t *testing.T) {
	root := t.TempDir()
	rec := sample()
	rec.Want.DependsOn = nil
	for i := range 10 * pod.MaxDependencies {
		rec.Want.DependsOn = append(rec.Want.DependsOn, pod.Dependency{Name: fmt.Sprint("p", i), Until: pod.Started})
	}
	mustSave(t, record.New(root), rec)
	all, err := record.New(root).All()
	if err != nil || len(all) != 1 || len(all[0].Want.DependsOn) != pod.MaxDependencies || all[0].Want.DependsOn[0].Name != "p0" {
		t.Errorf("records %+v, %v", all, err)
	}
	saveSet(t, newSets(root), setLayer, pod.LastGoodSet{File: setFile, Pods: []*pod.Spec{rec.Want}})
	if files := setOf(t, root, setLayer).Files; len(files) != 1 || len(files[0].Pods[0].DependsOn) != pod.MaxDependencies {
		t.Errorf("set %+v", files)
	}
}
