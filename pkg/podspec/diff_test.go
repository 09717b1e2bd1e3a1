package podspec

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

// diffed is a pod with one of everything that paths are spelled for.
func diffed() *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: "web", Namespace: "default",
			Labels:      map[string]string{"team": "a"},
			Annotations: map[string]string{"note": "x", pod.AnnotationConfigHash: "1", pod.AnnotationConfigSeen: "1"},
		},
		Spec: v1.PodSpec{
			NodeSelector: map[string]string{"kubernetes.io/arch": "amd64"},
			Tolerations:  []v1.Toleration{{Key: "k", Operator: v1.TolerationOpExists}},
			Volumes: []v1.Volume{
				{Name: "data", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}},
			},
			Containers: []v1.Container{
				{
					Name: "nginx", Image: "nginx:1.27.1", Args: []string{"-a", "-b"},
					Env:   []v1.EnvVar{{Name: "LOG", Value: "info"}, {Name: "PORT", Value: "80"}},
					Ports: []v1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 81}},
					Resources: v1.ResourceRequirements{
						Limits: v1.ResourceList{v1.ResourceCPU: resource.MustParse("500m")},
					},
					LivenessProbe: &v1.Probe{ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Port: intstr.FromInt32(80)}}},
				},
				{Name: "log", Image: "log:1"},
			},
		},
	}
}

func TestDifferences(t *testing.T) {
	tests := []struct {
		name string
		edit func(*v1.Pod)
		want string // "path: old -> new" a line
	}{
		{"nothing", func(*v1.Pod) {}, ""},
		{"image", func(p *v1.Pod) { p.Spec.Containers[0].Image = "nginx:1.27.3" },
			"spec.containers[nginx].image: nginx:1.27.1 -> nginx:1.27.3"},
		{"env value, added and gone", func(p *v1.Pod) {
			p.Spec.Containers[0].Env = []v1.EnvVar{{Name: "NEW", Value: "<&>"}, {Name: "LOG", Value: "debug"}}
		}, `spec.containers[nginx].env[LOG].value: info -> debug
spec.containers[nginx].env[PORT]: {"name":"PORT","value":"80"} -> 
spec.containers[nginx].env[NEW]:  -> {"name":"NEW","value":"<&>"}`},
		{"one name twice goes by index", func(p *v1.Pod) {
			p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, v1.EnvVar{Name: "LOG", Value: "debug"})
		}, `spec.containers[nginx].env[2]:  -> {"name":"LOG","value":"debug"}`},
		{"order of a list of names", func(p *v1.Pod) {
			c := p.Spec.Containers
			c[0], c[1] = c[1], c[0]
		}, `spec.containers: ["nginx","log"] -> ["log","nginx"]`},
		{"insertion is no change of order", func(p *v1.Pod) {
			p.Spec.Containers = append([]v1.Container{{Name: "first"}}, p.Spec.Containers...)
		}, `spec.containers[first]:  -> {"name":"first","resources":{}}`},
		{"lists without names", func(p *v1.Pod) {
			p.Spec.Containers[0].Args = []string{"-a", "-c", ""}
			p.Spec.Containers[0].Ports = p.Spec.Containers[0].Ports[:1]
			p.Spec.Tolerations[0].Key = "l"
		}, `spec.containers[nginx].args[1]: -b -> -c
spec.containers[nginx].args[2]:  -> ""
spec.containers[nginx].ports[1]: {"containerPort":81} -> 
spec.tolerations[0].key: k -> l`},
		{"labels", func(p *v1.Pod) { p.Labels = map[string]string{"team": "b", "app": "x"} },
			"metadata.labels[app]:  -> x\nmetadata.labels[team]: a -> b"},
		{"annotations, without the kubelet's", func(p *v1.Pod) {
			p.Annotations = map[string]string{"note": "line\nline", pod.AnnotationConfigHash: "2", pod.AnnotationConfigSource: "file", pod.AnnotationConfigMirror: "2"}
		}, "metadata.annotations[note]: x -> line\nline"},
		{"deletion", func(p *v1.Pod) {
			at, grace := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)), int64(30)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &at, &grace
		}, "metadata.deletionTimestamp:  -> 2026-01-02T03:04:05Z\nmetadata.deletionGracePeriodSeconds:  -> 30"},
		{"metadata that is not compared (A22)", func(p *v1.Pod) { p.ResourceVersion, p.Finalizers = "7", []string{"x/y"} }, ""},
		{"quantity", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits[v1.ResourceCPU] = resource.MustParse("1") },
			"spec.containers[nginx].resources.limits[cpu]: 500m -> 1"},
		{"the same quantity", func(p *v1.Pod) { p.Spec.Containers[0].Resources.Limits[v1.ResourceCPU] = resource.MustParse("0.5") }, ""},
		{"port by number and by name", func(p *v1.Pod) { p.Spec.Containers[0].LivenessProbe.HTTPGet.Port = intstr.FromString("80") },
			`spec.containers[nginx].livenessProbe.httpGet.port: 80 -> "80"`},
		{"kind of a volume", func(p *v1.Pod) {
			p.Spec.Volumes[0].VolumeSource = v1.VolumeSource{HostPath: &v1.HostPathVolumeSource{Path: "/x"}}
		}, "spec.volumes[data].hostPath:  -> {\"path\":\"/x\"}\nspec.volumes[data].emptyDir: {} -> "},
		{"pointers", func(p *v1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64) },
			"spec.terminationGracePeriodSeconds:  -> 0"},
		{"map of the spec", func(p *v1.Pod) { delete(p.Spec.NodeSelector, "kubernetes.io/arch") },
			"spec.nodeSelector[kubernetes.io/arch]: amd64 -> "},
		{"empty lists and maps of the spec", func(p *v1.Pod) {
			p.Spec.HostAliases, p.Spec.Overhead = []v1.HostAlias{}, v1.ResourceList{}
		}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			p := diffed()
			test.edit(p)
			if got := spell(Differences(diffed(), p)); got != test.want {
				t.Errorf("got:\n%s\nwant:\n%s", got, test.want)
			}
		})
	}
}

func spell(changes []FieldChange) string {
	var lines []string
	for _, c := range changes {
		lines = append(lines, fmt.Sprintf("%s: %s -> %s", c.Path, c.Old, c.New))
	}
	return strings.Join(lines, "\n")
}

func TestDifferencesWithoutPod(t *testing.T) {
	if d := append(Differences(nil, diffed()), Differences(diffed(), nil)...); len(d) != 0 {
		t.Errorf("differences with a missing pod: %v", d)
	}
	a, b := diffed(), diffed()
	a.Labels, b.Labels = nil, map[string]string{}
	if got, want := spell(Differences(a, b)), "metadata.labels:  -> {}"; got != want {
		t.Errorf("A23: got %q, want %q", got, want)
	}
}

// randomValue fills v by chance, so deep that every kind of field is reached.
func randomValue(t *rapid.T, v reflect.Value, depth int) {
	switch x := v.Addr().Interface().(type) {
	case *resource.Quantity:
		*x = *resource.NewMilliQuantity(rapid.Int64Range(0, 3000).Draw(t, "quantity"), resource.DecimalSI)
		return
	case *intstr.IntOrString:
		*x = intstr.Parse(rapid.SampledFrom([]string{"80", "81", "http"}).Draw(t, "port"))
		return
	case *metav1.Time:
		*x = metav1.NewTime(time.Unix(rapid.Int64Range(0, 3).Draw(t, "time"), 0).UTC())
		return
	}
	some := func() bool { return depth > 0 && rapid.IntRange(0, 4).Draw(t, "some") == 0 }
	switch v.Kind() {
	case reflect.String:
		v.SetString(rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64Range(0, 2).Draw(t, "number"))
	case reflect.Pointer:
		if some() {
			v.Set(reflect.New(v.Type().Elem()))
			randomValue(t, v.Elem(), depth-1)
		}
	case reflect.Slice:
		if some() {
			v.Set(reflect.MakeSlice(v.Type(), rapid.IntRange(0, 2).Draw(t, "length"), 2))
			for i := range v.Len() {
				randomValue(t, v.Index(i), depth-1)
			}
		}
	case reflect.Map:
		if some() {
			v.Set(reflect.MakeMap(v.Type()))
			key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			randomValue(t, key, depth-1)
			randomValue(t, elem, depth-1)
			v.SetMapIndex(key, elem)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			randomValue(t, v.Field(i), depth)
		}
	}
}

// edit changes one field somewhere in v.
func edit(t *rapid.T, v reflect.Value) {
	for v.Kind() == reflect.Struct {
		v = v.Field(rapid.IntRange(0, v.NumField()-1).Draw(t, "field"))
	}
	randomValue(t, v, 4)
}

// TestC_1_2_7_DifferencesAreExact: there is a difference exactly where the
// kubelet's comparison sees one, and none is written twice.
//
// Shows: C-1.2.7
func TestC_1_2_7_DifferencesAreExact(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := diffed()
		for range rapid.IntRange(0, 3).Draw(t, "fields") {
			edit(t, reflect.ValueOf(&a.Spec).Elem())
		}
		if rapid.Bool().Draw(t, "container") && len(a.Spec.Containers) > 0 {
			edit(t, reflect.ValueOf(&a.Spec.Containers[0]).Elem())
		}
		b := a.DeepCopy()
		if d := Differences(a, b); len(d) != 0 {
			t.Fatalf("a pod differs from its copy:\n%s", spell(d))
		}
		edit(t, reflect.ValueOf(&b.Spec).Elem())
		if len(b.Spec.Containers) > 0 {
			edit(t, reflect.ValueOf(&b.Spec.Containers[0]).Elem())
		}
		d := Differences(a, b)
		if equal := equality.Semantic.DeepEqual(a.Spec, b.Spec); equal != (len(d) == 0) {
			t.Fatalf("equal: %t, differences:\n%s", equal, spell(d))
		}
		seen := make(map[string]bool)
		for _, c := range d {
			if c.Old == c.New || seen[c.Path] {
				t.Fatalf("%s: %q -> %q", c.Path, c.Old, c.New)
			}
			seen[c.Path] = true
		}
		if again := spell(Differences(a, b)); again != spell(d) {
			t.Fatalf("another order:\n%s", again)
		}
	})
}

// TestDifferencesSeeEveryField sets each field of a PodSpec in turn.
func TestDifferencesSeeEveryField(t *testing.T) {
	for i := range reflect.TypeFor[v1.PodSpec]().NumField() {
		field := reflect.TypeFor[v1.PodSpec]().Field(i)
		p := &v1.Pod{}
		setSomething(t, reflect.ValueOf(&p.Spec).Elem().Field(i))
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		d := Differences(&v1.Pod{}, p)
		if len(d) == 0 || !strings.HasPrefix(d[0].Path, "spec."+name) || d[0].New == "" {
			t.Errorf("spec.%s: %v", name, d)
		}
	}
}

func setSomething(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(reflect.ValueOf("x").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
	default:
		t.Fatalf("a field of kind %s", v.Kind())
	}
}
