package podspec

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// walkTypes calls visit for every field of t and below, by path, and goes
// below a field where visit returns true. It reads the types by itself: it
// checks the tree that the package lays over them.
func walkTypes(t reflect.Type, path string, visit func(path string, t reflect.Type) bool) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			if f.Type != reflect.TypeFor[metav1.TypeMeta]() {
				walkTypes(f.Type, path, visit)
			}
			continue
		}
		at := strings.TrimPrefix(path+"."+name, ".")
		if !visit(at, f.Type) {
			continue
		}
		inner := f.Type
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			if inner.Kind() == reflect.Slice {
				at += "[]"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && inner != reflect.TypeFor[metav1.Time]() &&
			inner != reflect.TypeFor[resource.Quantity]() && inner != reflect.TypeFor[intstr.IntOrString]() {
			walkTypes(inner, at, visit)
		}
	}
}

func rowsByPath(t *testing.T) map[string]Field {
	rows := map[string]Field{}
	for _, f := range Fields() {
		if _, twice := rows[f.Path]; twice {
			t.Errorf("two rows for %s", f.Path)
		}
		rows[f.Path] = f
	}
	return rows
}

func TestRule0_EveryFieldHasARow(t *testing.T) {
	t.Parallel()
	rows := rowsByPath(t)
	used := map[string]bool{}
	walkTypes(reflect.TypeFor[v1.Pod](), "", func(path string, _ reflect.Type) bool {
		row, ok := rows[path]
		if !ok {
			t.Errorf("no row for %s", path)
			return false
		}
		used[path] = true
		return row.Support == Honoured
	})
	for path := range rows {
		if !used[path] {
			t.Errorf("row for %s: no type has this field, or a row above covers it", path)
		}
	}
}

func TestRule0_RowsAreExplained(t *testing.T) {
	t.Parallel()
	for _, f := range Fields() {
		switch {
		case f.Support == Inert && f.Note == "":
			t.Errorf("%s: inert without a reason", f.Path)
		case f.Check != nil && f.Note == "":
			t.Errorf("%s: a Check without a Note", f.Path)
		case f.Support != Honoured && f.Check != nil, f.Support != Rejected && f.Why != "":
			t.Errorf("%s: %s with a condition or message that is never used", f.Path, f.Support)
		}
	}
}

// fill sets v to something that is not empty; n makes two of them differ.
func fill(v reflect.Value, n int) {
	switch v.Interface().(type) {
	case resource.Quantity:
		v.Set(reflect.ValueOf(*resource.NewQuantity(int64(n), resource.DecimalSI)))
		return
	case intstr.IntOrString:
		v.Set(reflect.ValueOf(intstr.FromInt32(int32(n))))
		return
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Unix(int64(n), 0)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString(fmt.Sprintf("v%d", n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int32, reflect.Int64:
		v.SetInt(int64(n))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), n)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		item := reflect.New(v.Type().Elem()).Elem()
		fill(item, n)
		v.SetMapIndex(reflect.ValueOf("cpu").Convert(v.Type().Key()), item)
	case reflect.Struct:
		if v.NumField() > 0 && v.Field(0).CanSet() {
			fill(v.Field(0), n)
		}
	default:
		panic("no way to fill a " + v.Type().String())
	}
}

// at returns the value at a row's path in p, with everything above it made:
// one element in each list.
func at(p *v1.Pod, path string) reflect.Value {
	v := reflect.ValueOf(p).Elem()
	names := strings.Split(path, ".")
	for i, name := range names {
		name, list := strings.CutSuffix(name, "[]")
		for _, f := range jsonFields(v.Type(), nil) {
			if f.name == name {
				v = v.FieldByIndex(f.index)
				break
			}
		}
		if list {
			if v.Len() == 0 {
				v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			}
			v = v.Index(0)
		}
		if v.Kind() == reflect.Pointer && i < len(names)-1 {
			if v.IsNil() {
				v.Set(reflect.New(v.Type().Elem()))
			}
			v = v.Elem()
		}
	}
	return v
}

// TestRule0_RejectedRowsReject sets every rejected field, one at a time.
func TestRule0_RejectedRowsReject(t *testing.T) {
	t.Parallel()
	for _, f := range Fields() {
		var p v1.Pod
		v := at(&p, f.Path)
		if got := Unsupported(&p); len(got) > 0 {
			t.Errorf("%s: Unsupported rejects an empty value: %v", f.Path, got)
		}
		if v.Kind() == reflect.Struct && f.Support == Honoured {
			continue
		}
		fill(v, 1)
		got := Unsupported(&p)
		want := strings.ReplaceAll(f.Path, "[]", "[0]")
		switch {
		case f.Support == Rejected:
			if len(got) != 1 || got[0].Path != want || got[0].Msg == "" {
				t.Errorf("%s: %+v", f.Path, got)
			}
		case f.Support == Inert && len(got) > 0:
			t.Errorf("%s: %v", f.Path, got)
		case f.Support == Honoured && f.Check == nil && !strings.HasPrefix(f.Path, "spec.volumes") && v.Kind() != reflect.Pointer && len(got) > 0:
			t.Errorf("%s: %v", f.Path, got)
		}
	}
}

func TestRule0_ConditionsJudgeValues(t *testing.T) {
	t.Parallel()
	yes, no, empty, windows := true, false, "", v1.Windows
	for name, c := range map[string]struct {
		set  func(*v1.Pod)
		path string // of the problem; "" for none
	}{
		"share no":       {func(p *v1.Pod) { p.Spec.ShareProcessNamespace = &no }, ""},
		"share":          {func(p *v1.Pod) { p.Spec.ShareProcessNamespace = &yes }, ""},
		"host users":     {func(p *v1.Pod) { p.Spec.HostUsers = &yes }, ""},
		"own users":      {func(p *v1.Pod) { p.Spec.HostUsers = &no }, ""},
		"no token":       {func(p *v1.Pod) { p.Spec.AutomountServiceAccountToken = &no }, ""},
		"token":          {func(p *v1.Pod) { p.Spec.AutomountServiceAccountToken = &yes }, "spec.automountServiceAccountToken"},
		"linux":          {func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: v1.Linux} }, ""},
		"C_1_31 windows": {func(p *v1.Pod) { p.Spec.OS = &v1.PodOS{Name: windows} }, ""},
		"critical":       {func(p *v1.Pod) { p.Spec.PriorityClassName = "system-node-critical" }, ""},
		"class":          {func(p *v1.Pod) { p.Spec.PriorityClassName = "high" }, "spec.priorityClassName"},
		"no context":     {func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{} }, ""},
		"context":        {func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{RunAsNonRoot: &no} }, ""},
		"sysctl":         {func(p *v1.Pod) { p.Spec.SecurityContext = &v1.PodSecurityContext{Sysctls: []v1.Sysctl{{Name: "a"}}} }, ""},
		"no affinity":    {func(p *v1.Pod) { p.Spec.Affinity = &v1.Affinity{NodeAffinity: &v1.NodeAffinity{}} }, ""},
		"no selector":    {func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{} }, ""},
		"empty class":    {func(p *v1.Pod) { p.Spec.RuntimeClassName = &empty }, ""},
		"projected":      {func(p *v1.Pod) { volume(p).Projected = &v1.ProjectedVolumeSource{} }, ""},
		"a token": {func(p *v1.Pod) {
			volume(p).Projected = &v1.ProjectedVolumeSource{Sources: []v1.VolumeProjection{{ServiceAccountToken: &v1.ServiceAccountTokenProjection{Path: "t"}}}}
		}, "spec.volumes[0].projected.sources[0].serviceAccountToken"},
		"disk":            {func(p *v1.Pod) { volume(p).EmptyDir = &v1.EmptyDirVolumeSource{} }, ""},
		"memory":          {func(p *v1.Pod) { volume(p).EmptyDir = &v1.EmptyDirVolumeSource{Medium: "Memory"} }, ""},
		"cpu":             {func(p *v1.Pod) { limit(p, "cpu") }, ""},
		"gpu":             {func(p *v1.Pod) { limit(p, "x.com/gpu") }, ""},
		"device class":    {func(p *v1.Pod) { limit(p, "deviceclass.resource.kubernetes.io/fast") }, ""},
		"native resource": {func(p *v1.Pod) { limit(p, "kubernetes.io/gpu") }, "spec.containers[0].resources.limits[kubernetes.io/gpu]"},
		"message":         {func(p *v1.Pod) { container(p).TerminationMessagePath = "/dev/termination-log" }, ""},
		"other message":   {func(p *v1.Pod) { container(p).TerminationMessagePath = "/x" }, ""},
		"message in logs": {func(p *v1.Pod) { container(p).TerminationMessagePolicy = "FallbackToLogsOnError" }, ""},
		"C_1_24_4 tcp": {func(p *v1.Pod) {
			container(p).Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{TCPSocket: &v1.TCPSocketAction{Host: "a"}}}
		}, "spec.containers[0].lifecycle.preStop.tcpSocket"},
		"C_1_24_3 sleep": {func(p *v1.Pod) {
			container(p).Lifecycle = &v1.Lifecycle{PostStart: &v1.LifecycleHandler{Sleep: &v1.SleepAction{}}}
		}, ""},
	} {
		var p v1.Pod
		c.set(&p)
		got := Unsupported(&p)
		if c.path == "" && len(got) > 0 || c.path != "" && (len(got) != 1 || got[0].Path != c.path) {
			t.Errorf("%s: %+v, want %q", name, got, c.path)
		}
	}
}

func volume(p *v1.Pod) *v1.Volume {
	p.Spec.Volumes = make([]v1.Volume, 1)
	return &p.Spec.Volumes[0]
}

func container(p *v1.Pod) *v1.Container {
	p.Spec.Containers = make([]v1.Container, 1)
	return &p.Spec.Containers[0]
}

func limit(p *v1.Pod, name v1.ResourceName) {
	container(p).Resources.Limits = v1.ResourceList{name: resource.MustParse("1")}
}

// TestRule0_APIRowsNameFieldsOfTheTable sets the field of every row for pods
// from an API server.
func TestRule0_APIRowsNameFieldsOfTheTable(t *testing.T) {
	t.Parallel()
	rows := rowsByPath(t)
	for _, f := range APIFields() {
		if _, ok := rows[f.Path]; !ok && !refusedAbove(rows, f.Path) {
			t.Errorf("%s: the table has no such row", f.Path)
			continue
		}
		if f.Support == Inert && f.Note == "" || f.Check != nil && f.Note == "" {
			t.Errorf("%s: without a reason", f.Path)
		}
		if f.Check != nil {
			continue
		}
		var p v1.Pod
		v := at(&p, f.Path)
		if v.Kind() == reflect.Struct && f.Support == Honoured {
			continue
		}
		fill(v, 1)
		got := UnsupportedAPI(&p)
		if f.Support == Rejected != (len(got) == 1) || len(got) > 1 {
			t.Errorf("%s (%s): %+v", f.Path, f.Support, got)
		}
	}
}

// refusedAbove reports whether the table rejects a field above path: that row covers
// all fields below it.
func refusedAbove(rows map[string]Field, path string) bool {
	for at := strings.LastIndexByte(path, '.'); at > 0; at = strings.LastIndexByte(path, '.') {
		path = path[:at]
		if rows[path].Support == Rejected || rows[strings.TrimSuffix(path, "[]")].Support == Rejected {
			return true
		}
	}
	return false
}
