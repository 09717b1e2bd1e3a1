package podconfig

import (
	"reflect"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

const (
	one = "file:/one"
	two = "file:/two"
	web = "http:https://cfg/pods"
)

func TestMergeFirstLayerWins(t *testing.T) {
	layers := []Layer{
		history(NewLayer(one, nil), set(file(one, "a", "B1", "C1"))),
		history(NewLayer(two, nil), set(file(two, "b", "A2", "B2"), file(two, "c", "B3"))),
		history(NewLayer(web, nil), set(file(web, "d", "B4", "D4"))),
	}
	m := Merge(layers)
	check(t, "pods", places(m.Pods.Slice()), "A2=b B1=a C1=a D4=d")
	check(t, "conflicts", conflictTexts(m.Conflicts),
		"B a:1 over b:2: earlier layer wins; B b:2 over c:1: first path in byte order; B a:1 over d:1: earlier layer wins")
	if len(m.Layers) != 3 || m.Layers[1].Pods != 2 || m.Layers[2].Location != "https://cfg/pods" {
		t.Errorf("layers %+v", m.Layers)
	}
	if m.Pod(pod.Key{Namespace: "default", Name: "b"}) != layers[0].specs()[0] {
		t.Error("Pod does not find the winner")
	}
}

func TestMergeObjects(t *testing.T) {
	holding := func(layer, name string, objects ...*pod.Object) source.Snapshot {
		return set(source.File{File: name, Objects: objects, Pods: file(layer, name, "X1").Pods})
	}
	m := Merge([]Layer{
		history(NewLayer(one, nil), holding(one, "a", object(one, "a", "x", "1"))),
		history(NewLayer(two, nil), holding(two, "b", object(two, "b", "x", "2"), object(two, "b", "w", "2"))),
	})
	if m.Objects.Len() != 2 || m.Objects.At(0).Name != "w" || m.Objects.At(1).Origin.File != "a" {
		t.Errorf("objects %v", m.Objects)
	}
	kinds := ""
	for _, c := range m.Conflicts {
		kinds += c.Kind + " "
	}
	check(t, "kinds", kinds, "ConfigMap Pod ")
}

func TestMerge_NoLayers_IsEmpty(t *testing.T) {
	m := Merge(nil)
	if m.Pods.Len()+len(m.Layers)+len(m.Conflicts) != 0 || !m.AllReady() {
		t.Errorf("C-1.2.15: %+v", m)
	}
	if Merge([]Layer{NewLayer(one, nil)}).AllReady() {
		t.Error("C-1.2.15: a layer that has not answered counts as ready")
	}
}

// Shows: C-1.2.10
func TestC_1_2_10_EmissionOrder(t *testing.T) {
	first := history(NewLayer(one, nil), set(file(one, "a", "A1", "B1", "C1", "E1s1")))
	second := history(NewLayer(two, nil), set(file(two, "b", "X1", "C2")))
	old := Merge([]Layer{first, second, NewLayer(web, nil)})
	moved := file(one, "a", "B2", "D1", "E1s2", "F1'")
	next := Merge([]Layer{
		first.Read(set(moved), noon),
		second.Read(set(file(two, "b", "C2")), noon),
		NewLayer(web, nil).Read(set(), noon),
	})
	check(t, "updates", textOf(Diff(old, next)),
		"REMOVE{A1} (file); ADD{D1,F1'} (file); UPDATE{B2} (file); RECONCILE{E1s2} (file); "+
			"REMOVE{X1} (file); UPDATE{C2} (file); ADD{} (http)")
	for _, u := range Diff(old, next) {
		switch u.Op {
		case UPDATE, RECONCILE, DELETE:
			if len(u.Old) != len(u.Pods) || u.Old[0].Key != u.Pods[0].Key || u.Old[0] == u.Pods[0] {
				t.Errorf("%s has no matching old specs", u.Op)
			}
		default:
			if u.Old != nil {
				t.Errorf("%s has old specs", u.Op)
			}
		}
	}
}

// TestC_1_2_16_FirstReadyMarker: the empty ADD is in the place of ADD, before
// RECONCILE, and only when no other update shows that the layer is ready.
//
// Shows: C-1.2.16
func TestC_1_2_16_FirstReadyMarker(t *testing.T) {
	second := history(NewLayer(two, nil), set(file(two, "b", "A1", "B1")))
	old := Merge([]Layer{NewLayer(one, nil), second})
	tests := []struct{ name, pods, want string }{
		{"nothing", "", "ADD{} (file)"},
		{"the same content", "A1", "ADD{} (file); RECONCILE{A1} (file)"},
		{"other content", "A2", "UPDATE{A2} (file)"},
		{"deletion", "A1'", "DELETE{A1'} (file)"},
		{"another pod", "C1", "ADD{C1} (file)"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			f := file(one, "a")
			if test.pods != "" {
				f = file(one, "a", test.pods)
			}
			updates := Diff(old, Merge([]Layer{NewLayer(one, nil).Read(set(f), noon), second}))
			check(t, "updates", textOf(updates), test.want)
			for _, u := range updates {
				check(t, "location", u.Location, "/one")
			}
		})
	}
	lost := Merge([]Layer{second, NewLayer(one, nil).Read(set(file(one, "a", "A2")), noon)})
	check(t, "all its pods lose", textOf(Diff(Merge([]Layer{second, NewLayer(one, nil)}), lost)), "ADD{} (file)")
}

// TestDiffOtherUID: the key is the pod, the UID its instance.
func TestDiffOtherUID(t *testing.T) {
	a, b := file(one, "a", "A1"), file(one, "a", "A1")
	b.Pods[0] = with(b.Pods[0], func(p *v1.Pod) { p.UID = "x" })
	l := NewLayer(one, nil).Read(set(a), noon)
	check(t, "updates", textOf(Diff(Merge([]Layer{l}), Merge([]Layer{l.Read(set(b), noon)}))), "UPDATE{A1} (file)")
}

func TestDiffMoves(t *testing.T) {
	a := Merge([]Layer{history(NewLayer(one, nil), set(file(one, "a", "A1", "B1")))})
	t.Run("to another file", func(t *testing.T) {
		b := Merge([]Layer{history(NewLayer(one, nil), set(file(one, "b", "A1", "B1")))})
		check(t, "updates", textOf(Diff(a, b)), "RECONCILE{A1,B1} (file)")
	})
	t.Run("to another line", func(t *testing.T) {
		b := Merge([]Layer{history(NewLayer(one, nil), set(file(one, "a", "B1", "A1")))})
		check(t, "updates", textOf(Diff(a, b)), "—")
		if b.Pods.At(0).Origin.Line != 2 {
			t.Error("the state does not know the new line")
		}
	})
	t.Run("to a layer that is not configured any more", func(t *testing.T) {
		b := Merge([]Layer{history(NewLayer(web, nil), set(file(web, "w", "C1")))})
		check(t, "updates", textOf(Diff(a, b)), "ADD{C1} (http); REMOVE{A1,B1} (file)")
	})
	t.Run("from nothing", func(t *testing.T) {
		check(t, "updates", textOf(Diff(nil, a)), "ADD{A1,B1} (file)")
	})
}

// TestC_1_2_8_EveryStatusFieldIsCompared walks the API type: a field that the quick
// comparison lacks would never lead to an update.
//
// Shows: C-1.2.8
func TestC_1_2_8_EveryStatusFieldIsCompared(t *testing.T) {
	status := reflect.TypeFor[v1.PodStatus]()
	for i := range status.NumField() {
		var s v1.PodStatus
		switch f := reflect.ValueOf(&s).Elem().Field(i); f.Kind() {
		case reflect.String:
			f.SetString("x")
		case reflect.Int64:
			f.SetInt(1)
		case reflect.Pointer:
			f.Set(reflect.New(f.Type().Elem()))
		case reflect.Slice:
			f.Set(reflect.MakeSlice(f.Type(), 1, 1))
		case reflect.Map:
			f.Set(reflect.ValueOf(v1.ResourceList{"cpu": resource.MustParse("1")}))
		default:
			t.Fatalf("%s is of a kind this test does not know: %s", status.Field(i).Name, f.Kind())
		}
		a := podOf("A1")
		b := with(a, func(p *v1.Pod) { p.Status = s })
		if sameStatus(a, b) || sameStatus(b, a) || !sameStatus(b, b) {
			t.Errorf("a change of status.%s is not seen", status.Field(i).Name)
		}
	}
}
