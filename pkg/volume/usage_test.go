package volume

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// A container fills an emptyDir with empty files and hard links, which use no blocks.
// Measuring ends after a fixed number of files.
//
// Shows: C-1.35.9, D1
func TestMeasure_NamesWithoutBlocks_EndsAtTheBound(t *testing.T) {
	const most = 200
	for what, fill := range map[string]func(dir string, i int) error{
		"empty files": func(dir string, i int) error {
			return os.WriteFile(filepath.Join(dir, fmt.Sprint(i)), nil, 0o600)
		},
		"hard links": func(dir string, i int) error {
			return os.Link(filepath.Join(dir, "first"), filepath.Join(dir, fmt.Sprint(i)))
		},
		"pipes": func(dir string, i int) error {
			return unix.Mkfifo(filepath.Join(dir, fmt.Sprint(i)), 0o600)
		},
	} {
		t.Run(what, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "first"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
			for i := 1; i < most; i++ {
				if err := fill(dir, i); err != nil {
					t.Fatal(err)
				}
			}
			if _, err := (&meter{ctx: t.Context(), left: most}).tree(dir, 1<<30); err != nil {
				t.Errorf("%d names: %v", most, err)
			}
			if err := fill(dir, most); err != nil {
				t.Fatal(err)
			}
			if _, err := (&meter{ctx: t.Context(), left: most}).tree(dir, 1<<30); !errors.Is(err, errTooMany) {
				t.Errorf("%d names: %v, want %v", most+1, err, errTooMany)
			}
		})
	}
}

// A container spreads files over many emptyDirs with a limit. The bound applies to the pod,
// so that one round ends, and the limits of other pods are enforced.
//
// Shows: C-1.35.9
func TestOver_NamesInManyVolumes_ShareOneBound(t *testing.T) {
	v := New(Config{RootDir: t.TempDir()})
	v.fileLimit = 250
	want := &pod.Spec{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}}
	for i := range 3 {
		name := fmt.Sprint("v", i)
		limit := resource.MustParse("1Gi")
		want.Pod.Spec.Volumes = append(want.Pod.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{SizeLimit: &limit}}})
	}
	if err := v.SetUp(t.Context(), want, pod.Place{}, 1); err != nil {
		t.Fatal(err)
	}
	_, all, err := v.place(want, 1)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range all {
		if over, err := v.ExceededLimit(t.Context(), want, 1, nil); over != "" || err != nil {
			t.Fatalf("with %d names: %q, %v", 100*i, over, err)
		}
		for n := range 100 {
			if err := os.WriteFile(filepath.Join(p.path, fmt.Sprint(n)), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if over, err := v.ExceededLimit(t.Context(), want, 1, nil); err != nil || !strings.Contains(over, `volume "v2" cannot be measured`) {
		t.Errorf("with 300 names: %q, %v", over, err)
	}
}

// A container fills a volume with files. Removing it, and changing its group, end with the
// agent, and the next TearDown continues.
//
// Shows: F4
func TestTake_ContextEnds_EndsAndTheNextGoesOn(t *testing.T) {
	v := New(Config{RootDir: t.TempDir()})
	want := &pod.Spec{Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}}
	want.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	if err := v.SetUp(t.Context(), want, pod.Place{}, 1); err != nil {
		t.Fatal(err)
	}
	dir, all, err := v.place(want, 1)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(all[0].path, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the agent stops")
	cancel(stop)
	group := int64(os.Getgid())
	for what, err := range map[string]error{
		"setGroup": setGroup(ctx, all[0].path, &group, nil, false),
		"TearDown": v.TearDown(ctx, "u", 1),
		"Forget":   v.Forget(ctx, pod.Key{Namespace: "n", Name: "p"}, "u"),
	} {
		if !errors.Is(err, stop) {
			t.Errorf("%s: %v, want %v", what, err, stop)
		}
	}
	if _, err := v.Sweep(ctx, func(string) bool { return false }); !errors.Is(err, stop) {
		t.Errorf("Sweep: %v, want %v", err, stop)
	}
	if _, err := os.Stat(filepath.Join(all[0].path, "file")); err != nil {
		t.Errorf("after the end of the context: %v", err)
	}
	if err := v.TearDown(t.Context(), "u", 1); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after another TearDown: %v", err)
	}
}

// The agent stops while it measures a large volume. Measuring ends with its context.
//
// Shows: C-1.35.9, F4, D1
func TestMeasure_ContextEnds_EndsWithItsCause(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "one"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := errors.New("the agent stops")
	cancel(stop)
	if _, err := (&meter{ctx: ctx, left: maxFileCount}).tree(dir, 1<<30); !errors.Is(err, stop) {
		t.Errorf("error %v, want %v", err, stop)
	}
}

// The limits of containers count writable layers, logs and emptyDirs: for all containers
// together, then for each. Files of a tmpfs do not count, and without layers nothing of it does.
//
// Shows: C-1.35.9
func TestOver_LimitsOfContainers_CountLayersLogsAndVolumes(t *testing.T) {
	v := New(Config{RootDir: t.TempDir(), PodLogsDir: t.TempDir()})
	limits := func(size string) v1.ResourceRequirements {
		return v1.ResourceRequirements{Limits: v1.ResourceList{v1.ResourceEphemeralStorage: resource.MustParse(size)}}
	}
	always := v1.ContainerRestartPolicyAlways
	want := &pod.Spec{Key: pod.Key{Namespace: "n", Name: "p"}, Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u"}}}
	want.Pod.Spec.Volumes = []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}}
	want.Pod.Spec.Containers = []v1.Container{{Name: "a", Resources: limits("1Mi")}, {Name: "b", Resources: limits("3Mi")}}
	want.Pod.Spec.InitContainers = []v1.Container{{Name: "side", RestartPolicy: &always, Resources: limits("1Mi")}}
	if err := v.SetUp(t.Context(), want, pod.Place{}, 1); err != nil {
		t.Fatal(err)
	}
	_, all, err := v.place(want, 1)
	if err != nil {
		t.Fatal(err)
	}
	const mib = 1 << 20
	write := func(path string, size int) {
		t.Helper()
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, make([]byte, size), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	volume, log := filepath.Join(all[0].path, "file"), filepath.Join(v.cfg.PodLogsDir, "n_p_u", "a", "0.log")
	for _, row := range []struct {
		volume, log int
		layers      map[string]int64
		want        string
	}{
		{3 * mib, mib / 2, map[string]int64{"a": mib / 4, "b": mib / 4}, ""},
		{0, mib / 2, map[string]int64{"a": 3 * mib / 4}, `Container a exceeded its local ephemeral storage limit "1Mi". `},
		{0, 0, map[string]int64{"side": 3 * mib / 2}, `Container side exceeded its local ephemeral storage limit "1Mi". `},
		{3 * mib, mib, map[string]int64{"a": 0, "b": 2 * mib}, "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. "},
		{6 * mib, 0, map[string]int64{}, "Pod ephemeral local storage usage exceeds the total limit of containers 5Mi. "},
		{6 * mib, 0, nil, ""},
	} {
		write(volume, row.volume)
		write(log, row.log)
		if got, err := v.ExceededLimit(t.Context(), want, 1, row.layers); err != nil || got != row.want {
			t.Errorf("volume %d, log %d, layers %v: %q, %v, want %q", row.volume, row.log, row.layers, got, err, row.want)
		}
	}
}
