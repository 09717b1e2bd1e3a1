package podspec

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pod"
)

// namesObjects are the API's types that name a ConfigMap, a Secret or a claim; the value is the
// name of its Name field.
var namesObjects = map[reflect.Type]string{
	reflect.TypeFor[v1.ConfigMapVolumeSource]():             "Name",
	reflect.TypeFor[v1.SecretVolumeSource]():                "SecretName",
	reflect.TypeFor[v1.ConfigMapProjection]():               "Name",
	reflect.TypeFor[v1.SecretProjection]():                  "Name",
	reflect.TypeFor[v1.ConfigMapEnvSource]():                "Name",
	reflect.TypeFor[v1.SecretEnvSource]():                   "Name",
	reflect.TypeFor[v1.ConfigMapKeySelector]():              "Name",
	reflect.TypeFor[v1.SecretKeySelector]():                 "Name",
	reflect.TypeFor[v1.PersistentVolumeClaimVolumeSource](): "ClaimName",
	reflect.TypeFor[v1.LocalObjectReference]():              "Name",
	reflect.TypeFor[v1.SecretReference]():                   "Name",
}

// drivers are volumes that no row of the table of fields honours: their own name rejects them.
// Package csi itself reads the objects that a volume of a CSI driver names.
var drivers = []string{
	"rbd", "flexVolume", "cephfs", "iscsi", "csi", "scaleIO", "storageos", "azureFile", "cinder", "ephemeral",
	"gcePersistentDisk", "awsElasticBlockStore", "gitRepo", "nfs", "glusterfs", "flocker", "fc", "azureDisk",
	"vsphereVolume", "quobyte", "photonPersistentDisk", "portworxVolume",
}

// fillAll sets one of everything in v, and names of objects to their paths, which it
// returns.
func fillAll(v reflect.Value, path string, out map[string]string) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillAll(v.Elem(), path, out)
	case reflect.Slice:
		if v.Type().Elem() == reflect.TypeFor[v1.Volume]() { // each kind is a volume of its own
			kinds := reflect.TypeFor[v1.VolumeSource]()
			v.Set(reflect.MakeSlice(v.Type(), kinds.NumField(), kinds.NumField()))
			for i := range kinds.NumField() {
				if name, _, _ := strings.Cut(kinds.Field(i).Tag.Get("json"), ","); !slices.Contains(drivers, name) {
					fillAll(v.Index(i).FieldByName("VolumeSource").Field(i), fmt.Sprintf("%s[%d].%s", path, i, name), out)
				}
			}
			return
		}
		if v.Type().Elem().Kind() == reflect.Struct {
			v.Set(reflect.MakeSlice(v.Type(), 1, 1))
			fillAll(v.Index(0), path+"[0]", out)
		}
	case reflect.Struct:
		if _, plain := elem(v.Type()); plain {
			return
		}
		if name, is := namesObjects[v.Type()]; is && v.Type() != reflect.TypeFor[v1.LocalObjectReference]() || is && !embeds(path, out) {
			object := fmt.Sprintf("o%d", len(out))
			v.FieldByName(name).SetString(object)
			out[path] = object
		}
		for _, f := range jsonFields(v.Type(), nil) {
			fillAll(v.FieldByIndex(f.index), path+"."+f.name, out)
		}
	}
}

// embeds reports whether path is one that is written down already: a selector embeds
// the reference that it is.
func embeds(path string, out map[string]string) bool { return out[path] != "" }

// TestC_1_38_RefsNamesEveryReference sets everything a PodSpec has, and finds each
// type of the API that names an object among the Refs.
//
// Shows: C-1.38
func TestC_1_38_RefsNamesEveryReference(t *testing.T) {
	t.Parallel()
	var p v1.Pod
	want := map[string]string{}
	fillAll(reflect.ValueOf(&p.Spec).Elem(), "spec", want)
	got := map[string]string{}
	for _, r := range pod.Refs(&p) {
		if strings.HasSuffix(r.Path, ".key") {
			continue // an item of a volume that is named itself
		}
		got[r.Path] = r.Name
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-the API +Refs):\n%s", diff)
	}
	if len(want) < 17 {
		t.Errorf("only %d references found: %v", len(want), want)
	}
	for _, name := range drivers {
		honoured := slices.ContainsFunc(Fields(), func(f Field) bool { return f.Path == "spec.volumes[]."+name && f.Support == Honoured })
		if honoured {
			t.Errorf("volume %s is honoured, but this test leaves out its references", name)
		}
	}
}

func mapOf(name string, data map[string]string) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindConfigMap, Object: &v1.ConfigMap{Data: data}}
}

func secretOf(name string, data map[string]string) *pod.Object {
	s := &v1.Secret{Data: map[string][]byte{}}
	for k, v := range data {
		s.Data[k] = []byte(v)
	}
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindSecret, Object: s}
}

func claimOf(name, size string) *pod.Object {
	return &pod.Object{Key: pod.Key{Namespace: "default", Name: name}, Kind: pod.KindClaim, Object: &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{
		Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}},
	}}}
}

// shop is a pod with an init container, a sidecar and two containers: "app" mounts
// the ConfigMap m and reads the Secret s, "init" mounts the ConfigMap i, "side" reads
// the ConfigMap o where there is one, "free" mounts the claim d.
func shop(restart string) *pod.Spec {
	always, maybe := v1.ContainerRestartPolicyAlways, true
	from := func(name string) v1.LocalObjectReference { return v1.LocalObjectReference{Name: name} }
	p := &v1.Pod{Spec: v1.PodSpec{
		InitContainers: []v1.Container{
			{Name: "init", Image: "i", VolumeMounts: []v1.VolumeMount{{Name: "init", MountPath: "/x"}}},
			{Name: "side", Image: "s", RestartPolicy: &always, EnvFrom: []v1.EnvFromSource{{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: from("o"), Optional: &maybe}}}},
		},
		Containers: []v1.Container{
			{Name: "app", Image: "a", VolumeMounts: []v1.VolumeMount{{Name: "conf", MountPath: "/x"}},
				EnvFrom: []v1.EnvFromSource{{SecretRef: &v1.SecretEnvSource{LocalObjectReference: from("s")}}}},
			{Name: "free", Image: "f", VolumeMounts: []v1.VolumeMount{{Name: "data", MountPath: "/x"}}},
		},
		Volumes: []v1.Volume{
			{Name: "conf", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: from("m")}}},
			{Name: "init", VolumeSource: v1.VolumeSource{ConfigMap: &v1.ConfigMapVolumeSource{LocalObjectReference: from("i")}}},
			{Name: "data", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "d"}}},
		},
		ImagePullSecrets: []v1.LocalObjectReference{from("pull")},
	}}
	p.Namespace, p.Name, p.UID = "default", "shop", "uid"
	if restart != "" {
		p.Annotations = map[string]string{pod.AnnotationRestartOnChange: restart}
	}
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p}
	Fingerprint(s, p)
	return s
}

func stock(m, s, i, o, d, pull string) []*pod.Object {
	out := []*pod.Object{mapOf("m", map[string]string{"k": m}), secretOf("s", map[string]string{"k": s}), mapOf("i", map[string]string{"k": i}), claimOf("d", d)}
	if o != "" {
		out = append(out, mapOf("o", map[string]string{"k": o}))
	}
	if pull != "" {
		out = append(out, secretOf("pull", map[string]string{"k": pull}))
	}
	return out
}

// TestBindChangesExactlyTheHashesItSays: with the annotation, and only with it, a change of an
// object that a container uses is a change of that container; for an init container it is a change
// of the pod.
func TestBindChangesExactlyTheHashesItSays(t *testing.T) {
	t.Parallel()
	start := stock("1", "1", "1", "", "1Gi", "")
	for name, c := range map[string]struct {
		now  []*pod.Object
		want []string // whose hash differs; "" for the sandbox's
	}{
		"nothing":                   {stock("1", "1", "1", "", "1Gi", ""), nil},
		"a mounted one":             {stock("2", "1", "1", "", "1Gi", ""), []string{"app"}},
		"one of the environment":    {stock("1", "2", "1", "", "1Gi", ""), []string{"app"}},
		"an init container's":       {stock("1", "1", "2", "", "1Gi", ""), []string{"", "init"}},
		"an optional one that came": {stock("1", "1", "1", "2", "1Gi", ""), []string{"side"}},
		"a claim":                   {stock("1", "1", "1", "", "2Gi", ""), nil},
		"a pull secret":             {stock("1", "1", "1", "", "1Gi", "2"), nil},
		"all":                       {stock("2", "2", "2", "2", "2Gi", "2"), []string{"", "app", "init", "side"}},
	} {
		for _, annotation := range []string{"true", "", "yes"} {
			spec := shop(annotation)
			was, now := Bind(spec, NewData(start)), Bind(spec, NewData(c.now))
			var got []string
			if was.SandboxHash != now.SandboxHash {
				got = append(got, "")
			}
			for _, container := range slices.Sorted(maps.Keys(spec.ContainerHashes)) {
				if was.ContainerHash(container) != now.ContainerHash(container) {
					got = append(got, container)
				}
			}
			want := c.want
			if annotation != "true" {
				want = nil
				if !maps.Equal(now.ContainerHashes, spec.ContainerHashes) || now.SandboxHash != spec.SandboxHash {
					t.Errorf("%s, annotation %q: Bind changes hashes", name, annotation)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, annotation %q: changes %q, want %q", name, annotation, got, want)
			}
			if now.Hash != spec.Hash || now.Pod != spec.Pod {
				t.Errorf("%s: Bind changes the pod or its hash", name)
			}
		}
	}
}

// TestBindingTwiceIsBindingOnce: whatever a spec was bound to before, also as a
// record knows it.
func TestBindingTwiceIsBindingOnce(t *testing.T) {
	t.Parallel()
	spec := shop("true")
	one, two := NewData(stock("1", "1", "1", "1", "1Gi", "")), NewData(stock("2", "2", "2", "2", "2Gi", ""))
	once := Bind(spec, one)
	kept := *Bind(spec, two)
	kept.Data = &pod.Data{Sums: kept.Data.Sums, Unbound: kept.Data.Unbound}
	for name, again := range map[string]*pod.Spec{"bound": Bind(Bind(spec, two), one), "as a record knows it": Bind(&kept, one), "the same": Bind(once, one)} {
		if !maps.Equal(again.ContainerHashes, once.ContainerHashes) || again.SandboxHash != once.SandboxHash || !again.Data.Same(once.Data) {
			t.Errorf("%s: %v %s, want %v %s", name, again.ContainerHashes, again.SandboxHash, once.ContainerHashes, once.SandboxHash)
		}
	}
	if free := Bind(once, nil); !maps.Equal(free.ContainerHashes, spec.ContainerHashes) || free.SandboxHash != spec.SandboxHash || free.Data != nil {
		t.Errorf("Bind(nil): %+v", free)
	}
	if free := Bind(spec, NewData([]*pod.Object{mapOf("other", nil)})); !maps.Equal(free.ContainerHashes, spec.ContainerHashes) {
		t.Error("an object that no container uses changes their hashes")
	}
}

// TestC_1_38_SameIsSameContent: only the parts of an object that a pod uses count.
//
// Shows: C-1.38
func TestC_1_38_SameIsSameContent(t *testing.T) {
	t.Parallel()
	with := func(o *pod.Object, edit func(any)) *pod.Object { edit(o.Object); return o }
	base := func() *pod.Object { return secretOf("s", map[string]string{"k": "v"}) }
	yes := true
	same := map[string]*pod.Object{
		"labels":    with(base(), func(o any) { o.(*v1.Secret).Labels = map[string]string{"a": "b"} }),
		"immutable": with(base(), func(o any) { o.(*v1.Secret).Immutable = &yes }),
		"hash":      func() *pod.Object { o := base(); o.Hash = "another reading"; return o }(),
	}
	other := map[string]*pod.Object{
		"value": secretOf("s", map[string]string{"k": "w"}),
		"key":   secretOf("s", map[string]string{"l": "v"}),
		"more":  secretOf("s", map[string]string{"k": "v", "l": ""}),
		"type":  with(base(), func(o any) { o.(*v1.Secret).Type = v1.SecretTypeDockerConfigJson }),
		"name":  secretOf("t", map[string]string{"k": "v"}),
		"kind":  mapOf("s", map[string]string{"k": "v"}),
	}
	a := NewData([]*pod.Object{base()})
	for name, o := range same {
		if !a.Same(NewData([]*pod.Object{o})) {
			t.Errorf("%s: Same returns false for the same content", name)
		}
	}
	for name, o := range other {
		if a.Same(NewData([]*pod.Object{o})) {
			t.Errorf("%s: Same returns true for other content", name)
		}
	}
	if a.Same(nil) || !(*pod.Data)(nil).Same(nil) || !a.Same(&pod.Data{Sums: a.Sums}) {
		t.Error("Same is wrong for nil, or for sums without objects")
	}
}

// TestI8_DataDifferencesShowNoSecret: the shown differences of objects, with more or less known of
// them.
//
// Shows: I8
func TestI8_DataDifferencesShowNoSecret(t *testing.T) {
	t.Parallel()
	const canary = "canary-7f3a"
	sums := func(objects []*pod.Object) *pod.Data { return &pod.Data{Sums: NewData(objects).Sums} }
	was, now := stock("old", canary, "1", "", "1Gi", ""), stock("new text", canary+canary, "1", "", "2Gi", "")
	binary := &pod.Object{Key: pod.Key{Namespace: "default", Name: "m"}, Kind: pod.KindConfigMap, Object: &v1.ConfigMap{BinaryData: map[string][]byte{"k": {0xff, 0xfe}}}}
	for name, c := range map[string]struct {
		old, new *pod.Data
		want     []string
	}{
		"the same": {NewData(was), NewData(was), nil},
		"known": {NewData(was), NewData(now), []string{
			"configmap/m.data[k]: old -> new text",
			"persistentvolumeclaim/d.spec.resources.requests[storage]: 1Gi -> 2Gi",
			"secret/s.data[k]: (redacted, 11 bytes) -> (redacted, 22 bytes)",
		}},
		"by sums": {sums(was), NewData(now), []string{
			"configmap/m.data[k]: (3 bytes) -> (8 bytes)",
			"persistentvolumeclaim/d: (exists) -> (exists)",
			"secret/s.data[k]: (redacted, 11 bytes) -> (redacted, 22 bytes)",
		}},
		"no text": {NewData(was[:1]), NewData([]*pod.Object{binary}), []string{"configmap/m.data[k]: (3 bytes) -> (2 bytes)"}},
		"a key came, a key went": {NewData([]*pod.Object{mapOf("m", map[string]string{"a": "1"})}), NewData([]*pod.Object{mapOf("m", map[string]string{"b": "2"})}), []string{
			"configmap/m.data[a]: 1 -> ", "configmap/m.data[b]:  -> 2",
		}},
		"an optional one came":           {NewData(was), NewData(stock("old", canary, "1", "x", "1Gi", "")), []string{"configmap/o.data[k]:  -> x"}},
		"one with nothing in it came":    {nil, NewData([]*pod.Object{mapOf("o", nil)}), []string{"configmap/o:  -> (exists)"}},
		"a Secret went":                  {NewData(was[1:2]), nil, []string{"secret/s.data[k]: (redacted, 11 bytes) -> "}},
		"what the pod does not name":     {nil, NewData([]*pod.Object{mapOf("other", nil)}), nil},
		"sizes alone, of the same size":  {&pod.Data{Sums: []pod.ObjectSum{{Kind: pod.KindSecret, Name: "s", Keys: map[string]pod.KeySum{"k": {Bytes: 11}}}}}, NewData(was[1:2]), nil},
		"sizes alone, of another size":   {&pod.Data{Sums: []pod.ObjectSum{{Kind: pod.KindSecret, Name: "s", Keys: map[string]pod.KeySum{"k": {Bytes: 1}}}}}, NewData(was[1:2]), []string{"secret/s.data[k]: (redacted, 1 bytes) -> (redacted, 11 bytes)"}},
		"sizes alone, one key not there": {&pod.Data{Sums: []pod.ObjectSum{{Kind: pod.KindSecret, Name: "s"}}}, NewData(was[1:2]), []string{"secret/s.data[k]:  -> (redacted, 11 bytes)"}},
	} {
		old, new := *shop(""), *shop("")
		old.Data, new.Data = c.old, c.new
		var got []string
		for _, f := range DataDifferences(&old, &new) {
			got = append(got, fmt.Sprintf("%s: %s -> %s", f.Path, f.Old, f.New))
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if strings.Contains(fmt.Sprint(got), canary) {
			t.Errorf("%s: the differences show a secret: %v", name, got)
		}
	}
}

// TestRestartByDataNamesTheObject: the restarts with their reasons, even if one of the two has no
// hashes.
func TestRestartByDataNamesTheObject(t *testing.T) {
	t.Parallel()
	bare := func(s *pod.Spec) *pod.Spec {
		out := *s
		out.SandboxHash, out.ContainerHashes = "", nil
		return &out
	}
	was := stock("1", "1", "1", "", "1Gi", "")
	for name, c := range map[string]struct {
		annotation string
		now        []*pod.Object
		want       string
	}{
		"nothing":             {"true", was, "false [] "},
		"not asked for":       {"", stock("2", "2", "2", "", "2Gi", ""), "false [] "},
		"a container's":       {"true", stock("2", "1", "1", "", "1Gi", ""), "false [app] configmap/m changed"},
		"two of a container":  {"true", stock("2", "2", "1", "", "1Gi", ""), "false [app] configmap/m, secret/s changed"},
		"a sidecar's":         {"true", stock("1", "1", "1", "1", "1Gi", ""), "false [side] configmap/o changed"},
		"an init container's": {"true", stock("1", "1", "2", "", "1Gi", ""), "true [] configmap/i changed"},
		"a claim":             {"true", stock("1", "1", "1", "", "2Gi", ""), "false [] "},
	} {
		spec := shop(c.annotation)
		old, now := Bind(spec, NewData(was)), Bind(spec, NewData(c.now))
		for how, old := range map[string]*pod.Spec{"by hash": old, "by content": bare(old)} {
			whole, containers, why := RestartByData(old, now)
			if got := fmt.Sprint(whole, " ", containers, " ", why); got != c.want {
				t.Errorf("%s, %s: %q, want %q", name, how, got, c.want)
			}
		}
	}
}
