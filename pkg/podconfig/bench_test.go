package podconfig

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// rich returns pod number i as file holds it: two containers with probes,
// resources, environment and volumes, in a version.
func rich(i int, file string, version int) *pod.Spec {
	return hashed(in(one, file, with(podOf("A1"), func(p *v1.Pod) {
		p.Name, p.UID = fmt.Sprintf("pod-%06d", i), types.UID(fmt.Sprint(i))
		p.Status.Phase = v1.PodPending // as manifest leaves it
		p.Labels = map[string]string{"app": "web", "tier": "front", "team": "shop"}
		p.Annotations = map[string]string{"owner": "shop@example.org", pod.AnnotationConfigSource: "file"}
		p.Spec.Volumes = []v1.Volume{{Name: "data"}, {Name: "cache"}}
		c := v1.Container{
			Name: "main", Image: fmt.Sprintf("registry/web:%d", version), Command: []string{"/bin/web", "--port=8080"},
			Env:          []v1.EnvVar{{Name: "A", Value: "1"}, {Name: "B", Value: "2"}, {Name: "C", Value: "3"}},
			Ports:        []v1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/data"}, {Name: "cache", MountPath: "/cache"}},
			Resources:    v1.ResourceRequirements{Requests: v1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")}},
			LivenessProbe: &v1.Probe{PeriodSeconds: 10, ProbeHandler: v1.ProbeHandler{
				HTTPGet: &v1.HTTPGetAction{Path: "/healthz"},
			}},
		}
		side := c
		side.Name = "side"
		p.Spec.Containers = []v1.Container{c, side}
	}))[0])
}

// richFiles returns files of so many pods each, n pods in all.
func richFiles(n, each int) []source.File {
	var files []source.File
	for i := range n / each {
		f := source.File{File: fmt.Sprintf("pods-%06d.yaml", i)}
		for j := range each {
			f.Pods = append(f.Pods, rich(i*each+j, f.File, 1))
		}
		files = append(files, f)
	}
	return files
}

// feed is a source's Builder before a PodConfig.
type feed struct {
	builder source.Builder
	config  *PodConfig
	fold    fold
}

func newFeed() *feed {
	return &feed{config: New(Config{}), fold: newFold([]Layer{NewLayer(one, nil), NewLayer(two, nil)}, nil, nil)}
}

// take merges a reading and returns how many pods its updates have.
func (f *feed) take(s source.Snapshot) int {
	var b Batch
	f.fold, b, _ = f.config.take(f.fold, message{snapshot: s}, noon)
	count := 0
	for _, u := range b.Updates {
		count += len(u.Pods)
	}
	return count
}

// put puts one file in, as a source does, and merges.
func (f *feed) put(file source.File) int {
	f.builder.Put(file, nil)
	return f.take(f.builder.Snapshot())
}

// filled returns a feed that holds files.
func filled(files []source.File) *feed {
	f := newFeed()
	for _, file := range files {
		f.builder.Put(file, nil)
	}
	f.take(f.builder.Snapshot())
	return f
}

// BenchmarkUnchanged merges a layer of n rich pods in which nothing changed: with the
// source's old values, and decoded again.
func BenchmarkUnchanged(b *testing.B) {
	for _, c := range []struct{ n, each int }{{1_000, 1}, {1_000, 1_000}, {10_000, 1}} {
		f := filled(richFiles(c.n, c.each))
		same, again := f.builder.Snapshot(), [2]source.Snapshot{set(richFiles(c.n, c.each)...), set(richFiles(c.n, c.each)...)}
		for name, readings := range map[string][2]source.Snapshot{"handed on": {same, same}, "decoded again": again} {
			b.Run(fmt.Sprintf("%s/%d, %d a file", name, c.n, c.each), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if count := f.take(readings[i%2]); count != 0 {
						b.Fatalf("%d pods are in the updates", count)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*c.n), "ns/pod")
			})
		}
	}
}

// BenchmarkOneOfMany is one changed pod, from the decoded file to the PodUpdate.
func BenchmarkOneOfMany(b *testing.B) {
	for _, c := range []struct{ n, each int }{{1_000, 1}, {10_000, 1}, {100_000, 1}, {10_000, 10_000}} {
		b.Run(fmt.Sprintf("%d, %d a file", c.n, c.each), func(b *testing.B) {
			files := richFiles(c.n, c.each)
			f := filled(files)
			edits := [2]source.File{}
			middle := files[len(files)/2]
			for version := range edits {
				edits[version] = source.File{File: middle.File, Pods: append([]*pod.Spec{}, middle.Pods...)}
				edits[version].Pods[c.each/2] = rich(c.n/c.each/2*c.each+c.each/2, middle.File, 3-version)
			}
			runtime.GC()
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if count := f.put(edits[i%2]); count != 1 {
					b.Fatalf("%d pods are in the updates", count)
				}
			}
		})
	}
}

// BenchmarkDrop adds files of one pod each, one by one, to an empty layer.
func BenchmarkDrop(b *testing.B) {
	for _, n := range []int{300, 1_000, 3_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			files := richFiles(n, 1)
			var bytes uint64
			for b.Loop() {
				bytes += dropBytes(b, files)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*n), "ns/pod")
			b.ReportMetric(float64(bytes)/float64(b.N*n), "B/pod")
		})
	}
}

// dropBytes adds files one by one and returns the bytes that this allocates.
func dropBytes(t testing.TB, files []source.File) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f := newFeed()
	for _, file := range files {
		if count := f.put(file); count != 1 {
			t.Fatalf("%d pods are in the updates", count)
		}
	}
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// BenchmarkFirstOfMany is the first reading of 10,000 pods.
func BenchmarkFirstOfMany(b *testing.B) {
	s := set(richFiles(10_000, 1)...)
	b.ReportAllocs()
	for b.Loop() {
		if m := Merge([]Layer{NewLayer(one, nil).Read(s, noon)}); m.Pods.Len() != 10_000 {
			b.Fatal("pods are missing")
		}
	}
}

// TestRead_FileIsAddedToMany_CostIsConstant: adding a file to many costs as much as adding
// it to few.
func TestRead_FileIsAddedToMany_CostIsConstant(t *testing.T) {
	perPod := func(n int) float64 { return float64(dropBytes(t, richFiles(n, 1))) / float64(n) }
	few, many := perPod(300), perPod(3_000)
	if many > 1.3*few || many > 21_000 {
		t.Errorf("%.0f bytes a pod among 3,000, %.0f among 300", many, few)
	}
}

// TestRead_NothingChanged_CostIsConstant: a reading in which nothing changed costs the same few
// allocations whatever it holds, and the layer none. This holds if its source shares earlier
// readings, and if it decodes everything again.
func TestRead_NothingChanged_CostIsConstant(t *testing.T) {
	allocs := func(n, each int, again bool) (layer, merge float64) {
		f := filled(richFiles(n, each))
		s := f.builder.Snapshot()
		if again {
			s = set(richFiles(n, each)...)
		}
		l := f.fold.layers[0]
		var next Layer
		layer = testing.AllocsPerRun(5, func() { next = l.Read(s, noon) })
		if next.changedPods != nil || !next.pods.definitions.Is(l.pods.definitions) {
			t.Error("something changed")
		}
		return layer, testing.AllocsPerRun(5, func() { f.take(s) })
	}
	_, want := allocs(300, 1, false)
	for _, n := range []int{100, 1_000} {
		for _, each := range []int{1, n} {
			for _, again := range []bool{false, true} {
				layer, merge := allocs(n, each, again)
				if layer != 0 || merge > want {
					t.Errorf("%d pods, %d a file, decoded again %t: the layer makes %.0f allocations, want 0; the merge %.0f, want at most %.0f", n, each, again, layer, merge, want)
				}
			}
		}
	}
}
