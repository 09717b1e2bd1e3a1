package podconfig

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/source"
)

// namingFile reads pods in the notation of podOf, each followed by "=" and the objects that it
// names: "A1=x,y.k,?z,!s,#d" names the ConfigMaps x, of y the key k, and z, which is optional; the
// Secret s; and the claim d.
func namingFile(layer, name string, things ...string) source.File {
	var specs []*pod.Spec
	var objects []*pod.Object
	for _, text := range things {
		if thing, content, is := strings.Cut(text, ":"); is {
			objects = append(objects, thingOf(layer, name, thing, content))
			continue
		}
		text, refs, _ := strings.Cut(text, "=")
		specs = append(specs, hashed(with(podOf(text), func(p *v1.Pod) {
			for ref := range strings.SplitSeq(refs, ",") {
				refer(p, ref)
			}
		})))
	}
	return source.File{File: name, Pods: in(layer, name, specs...), Objects: objects}
}

func refer(p *v1.Pod, ref string) {
	if ref == "" {
		return
	}
	ref, optional := strings.CutPrefix(ref, "?")
	maybe := &optional
	c := &p.Spec.Containers[0]
	name, key, keyed := strings.Cut(strings.TrimLeft(ref, "!#"), ".")
	of := v1.LocalObjectReference{Name: name}
	switch {
	case ref[0] == '#':
		p.Spec.Volumes = append(p.Spec.Volumes, v1.Volume{Name: name, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
	case ref[0] == '!' && keyed:
		c.Env = append(c.Env, v1.EnvVar{Name: ref, ValueFrom: &v1.EnvVarSource{SecretKeyRef: &v1.SecretKeySelector{LocalObjectReference: of, Key: key, Optional: maybe}}})
	case ref[0] == '!':
		c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{SecretRef: &v1.SecretEnvSource{LocalObjectReference: of, Optional: maybe}})
	case keyed:
		c.Env = append(c.Env, v1.EnvVar{Name: ref, ValueFrom: &v1.EnvVarSource{ConfigMapKeyRef: &v1.ConfigMapKeySelector{LocalObjectReference: of, Key: key, Optional: maybe}}})
	default:
		c.EnvFrom = append(c.EnvFrom, v1.EnvFromSource{ConfigMapRef: &v1.ConfigMapEnvSource{LocalObjectReference: of, Optional: maybe}})
	}
}

// thingOf reads a config object. "x" with content "1" is the ConfigMap x whose key k holds
// 1; "!s" is a Secret, "#d" a claim. An object whose content ends in "!" is immutable, and
// one with the content "-" has no key.
func thingOf(layer, file, thing, content string) *pod.Object {
	kind, location, _ := strings.Cut(layer, ":")
	content, immutable := strings.CutSuffix(content, "!")
	o := &pod.Object{
		Key: pod.Key{Namespace: "default", Name: strings.TrimLeft(thing, "!#")}, Hash: fmt.Sprint("v1-", content, immutable),
		Origin: pod.Origin{Source: kind, Location: location, File: file, Line: 1},
	}
	meta := metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name}
	values := map[string]string{"k": content}
	if content == "-" {
		values = nil
	}
	switch thing[0] {
	case '!':
		data := map[string][]byte{}
		for k, v := range values {
			data[k] = []byte(v)
		}
		o.Kind, o.Object = pod.KindSecret, &v1.Secret{ObjectMeta: meta, Data: data, Immutable: &immutable}
	case '#':
		o.Kind, o.Object = pod.KindClaim, &v1.PersistentVolumeClaim{ObjectMeta: meta, Spec: v1.PersistentVolumeClaimSpec{StorageClassName: &content}}
	default:
		o.Kind, o.Object = pod.KindConfigMap, &v1.ConfigMap{ObjectMeta: meta, Data: values, Immutable: &immutable}
	}
	return o
}

// boundText writes pods in the notation of podOf, each with the objects that it is bound to.
func boundText(pods []*pod.Spec) string {
	var out []string
	for _, s := range pods {
		text := notation(s)
		if s.Data != nil {
			var all []string
			for _, sum := range s.Data.Sums {
				all = append(all, sumText(s.Data, sum))
			}
			text += "{" + strings.Join(all, " ") + "}"
		}
		out = append(out, text)
	}
	return strings.Join(out, " ")
}

func sumText(d *pod.Data, sum pod.ObjectSum) string {
	o := d.Object(sum.Kind, sum.Name)
	switch {
	case o == nil:
		return sum.Name + "?" // the sum alone
	case sum.Kind == pod.KindClaim:
		return "#" + sum.Name + *d.Claim(sum.Name).Spec.StorageClassName
	}
	return sum.Name + string(o.Values()["k"])
}

// TestC_1_38_2_PodsAreBoundToWhatTheyName: pods and the objects they name, over files,
// layers and kinds of source. A pod that lacks an object is rejected, and its version
// from before stays (I9).
//
// Shows: C-1.38.2
func TestC_1_38_2_PodsAreBoundToWhatTheyName(t *testing.T) {
	t.Parallel()
	type step struct {
		layer string
		files []source.File
		err   error
		want  string
	}
	a := func(things ...string) source.File { return namingFile(one, "a", things...) }
	b := func(things ...string) source.File { return namingFile(one, "b", things...) }
	x := func(things ...string) source.File { return namingFile(two, "x", things...) }
	w := func(things ...string) source.File { return namingFile(web, "w", things...) }
	from := func(layer, want string, files ...source.File) step {
		return step{layer: layer, files: files, want: want}
	}
	quiet := step{layer: two} // a layer with an empty reading
	const none = "a:1 no file source defines configmap \"x\""
	for name, c := range map[string]struct {
		kept     []*pod.Spec
		steps    []step
		problems string
	}{
		"everything there": {nil, []step{quiet, from(one, "A1{x1 #d3 s2}", a("A1=x.k,!s,#d"), b("x:1", "!s:2", "#d:3"))}, ""},
		"it names nothing": {nil, []step{quiet, from(one, "A1", a("A1", "x:1"))}, ""},
		"left out until what it names is there": {nil, []step{quiet,
			from(one, "B1", a("A1=x", "B1")), from(one, "A1{x1} B1", a("A1=x", "B1"), b("x:1")),
		}, ""},
		"left out, with a problem": {nil, []step{quiet, from(one, "B1", a("A1=x,y.k,x.k", "B1"))},
			none + "\na:1 no file source defines configmap \"y\""},
		"a Secret, and a claim": {nil, []step{quiet, from(one, "", a("A1=!s,#d"))},
			"a:1 no file source defines secret \"s\"\na:1 no file source defines claim \"d\""},
		"another kind of the same name is another object": {nil, []step{quiet, from(one, "", a("A1=x", "!x:1", "#x:1"))}, none},
		"optional":                {nil, []step{quiet, from(one, "A1{y1}", a("A1=?x,?!s.k,?y.other", "y:1"))}, ""},
		"a key that is not there": {nil, []step{quiet, from(one, "", a("A1=x.other", "x:1"))}, "a:1 configmap \"x\", at a:1, has no key \"other\""},
		"a key is removed: the last good pod stays": {nil, []step{quiet, from(one, "A1{x1}", a("A1=x.k", "x:1")), from(one, "A1{x1}", a("A1=x.k", "x:-"))}, "a:1 configmap \"x\", at a:1, has no key \"k\""},
		"I9 the object is taken away": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x"), b("x:1")), from(one, "A1{x1}", a("A1=x")), from(one, "A1{x1}", a("A1=x"), b("y:1")),
		}, none},
		"I9 it comes back as another": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x"), b("x:1")), from(one, "A1{x1}", a("A1=x")), from(one, "A1{x2}", a("A1=x"), b("x:2")),
		}, ""},
		"I9 the object's file is broken": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x"), b("x:1")), from(one, "A1{x1}", a("A1=x"), broken("b")),
		}, "b:1 unexpected end of file"},
		"I9 an edit names what is missing": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x", "x:1")), from(one, "A1{x1}", a("A2=y", "x:2")), from(one, "A2{y3}", a("A2=y", "x:2", "y:3")),
		}, ""},
		"I9 the last good pods are unchanged": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x", "x:1")), from(one, "A1{x1}", a("A2=y", "x:2")), from(one, "A1{x2}", a("A1=x", "x:2")),
		}, ""},
		"its manifest is taken away": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x", "x:1")), from(one, "A1{x1}", a("A1=x")), from(one, "", a()), from(one, "", a("A1=x")),
		}, none},
		"the content changes": {nil, []step{quiet, from(one, "A1{x1} B1", a("A1=x", "B1", "x:1")), from(one, "A1{x2} B1", a("A1=x", "B1", "x:2"))}, ""},
		"an optional one comes and goes": {nil, []step{quiet,
			from(one, "A1", a("A1=?x")), from(one, "A1{x1}", a("A1=?x", "x:1")), from(one, "A1", a("A1=?x")),
		}, ""},
		"what is immutable stays": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x"), b("x:1!")), from(one, "A1{x1}", a("A1=x"), b("x:2!")), from(one, "A1{x1}", a("A1=x"), b("x:2")),
		}, "b:1 ConfigMap default/x is immutable: its previous version stays in use"},
		"an immutable object can be removed and created again": {nil, []step{quiet,
			from(one, "A1{s1}", a("A1=!s"), b("!s:1!")), from(one, "A1{s1}", a("A1=!s")), from(one, "A1{s2}", a("A1=!s"), b("!s:2!")),
		}, ""},
		"an immutable object gets its old content again": {nil, []step{quiet,
			from(one, "A1{x1}", a("A1=x"), b("x:1!")), from(one, "A1{x1}", a("A1=x"), b("x:2!")), from(one, "A1{x1}", a("A1=x"), b("x:1!")),
		}, ""},
		"the first layer that has it": {nil, []step{
			from(one, "", a("A1=x,y", "x:1")), from(two, "A1{x1 y2}", x("x:2", "y:2")), from(one, "A1{x2 y2}", a("A1=x,y")),
		}, ""},
		"another kind of source does not have it": {nil, []step{quiet, from(one, "", a("x:1")), from(web, "", w("A1=x"))},
			"w:1 configmap \"x\" is in a file, and pods of http sources cannot reference it"},
		"one object a kind of source":                        {nil, []step{quiet, from(one, "A1{x1}", a("A1=x", "x:1")), from(web, "A1{x1} B1{x2}", w("B1=x", "x:2"))}, ""},
		"while a layer has not answered there is no problem": {nil, []step{from(one, "B1", a("A1=x", "B1"))}, ""},
		"once it has answered":                               {nil, []step{from(one, "", a("A1=x")), from(two, "", x())}, none},
		"once it has failed":                                 {nil, []step{from(one, "", a("A1=x")), {layer: two, err: errors.New("timeout")}}, none + " (" + two + " could not be read)"},
		"its answer after all":                               {nil, []step{from(one, "", a("A1=x")), {layer: two, err: errors.New("timeout")}, from(two, "A1{x1}", x("x:1"))}, ""},
		"I9 running pods stay":                               {bound(a("A1=x").Pods[0], thingOf(one, "a", "x", "1")), []step{quiet, from(one, "A1{x?}", a("A2=y"))}, "a:1 no file source defines configmap \"y\""},
		"a pod that was removed does not come back":          {bound(a("A1=x").Pods[0], thingOf(one, "a", "x", "1")), []step{quiet, from(one, "", a()), from(one, "", a("A2=x"))}, none},
		"a running pod whose object exists":                  {bound(a("A1=x").Pods[0], thingOf(one, "a", "x", "1")), []step{quiet, from(one, "A1{x1}", a("A1=x", "x:1"))}, ""},
		"C-1.2.9 one that is being deleted has to stop":      {nil, []step{quiet, from(one, "A1'", a("A1'=x"))}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			config := New(Config{Recorded: c.kept})
			f := newFold([]Layer{NewLayer(one, c.kept), NewLayer(two, c.kept), NewLayer(web, c.kept)}, c.kept, nil)
			for i, s := range c.steps {
				f, _, _ = config.take(f, message{layer: slices.Index(layerNames, s.layer), snapshot: set(s.files...), err: s.err}, noon)
				if got := boundText(f.merged.Pods.Slice()); got != s.want {
					t.Errorf("step %d: %q, want %q", i, got, s.want)
				}
			}
			if diff := cmp.Diff(c.problems, problemText(f.merged.Problems)); diff != "" {
				t.Errorf("problems (-want +got):\n%s", diff)
			}
			for _, p := range f.merged.Problems {
				if p.Pod != (pod.Key{}) && (!strings.HasPrefix(p.Path, "spec.") || p.Hint == "") {
					t.Errorf("problem %+v", p)
				}
			}
		})
	}
}

// bound returns a pod as an agent stored it: bound to sums.
func bound(s *pod.Spec, objects ...*pod.Object) []*pod.Spec {
	return []*pod.Spec{podspec.Bind(s, &pod.Data{Sums: podspec.NewData(objects).Sums})}
}

// TestC_1_2_7_AnotherContentIsAnUpdate: other content of an object is an UPDATE of an
// otherwise equal pod; an unchanged reading keeps the same spec.
//
// Shows: C-1.2.7
func TestC_1_2_7_AnotherContentIsAnUpdate(t *testing.T) {
	t.Parallel()
	config := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil)}, nil, nil)
	var states []*Merged
	var batches []Batch
	for _, things := range [][]string{{"A1=x", "B1=y", "x:1", "y:1"}, {"A1=x", "B1=y", "x:2", "y:1"}, {"A1=x", "B1=y", "x:2", "y:1", "z:1"}, {"A1=x", "B1=y", "y:1"}} {
		var b Batch
		f, b, _ = config.take(f, message{snapshot: set(namingFile(one, "a", things...))}, noon)
		states, batches = append(states, f.merged), append(batches, b)
	}
	for i, want := range []string{"ADD{A1,B1} (file)", "UPDATE{A1} (file)", "—", "—"} {
		check(t, fmt.Sprintf("batch %d", i), textOf(batches[i].Updates), want)
	}
	was, now := batches[1].Updates[0].Old[0], batches[1].Updates[0].Pods[0]
	if was == now || was.Pod != now.Pod || was.Hash != now.Hash || was.Data.Same(now.Data) {
		t.Errorf("from %+v to %+v", was, now)
	}
	for i, m := range states[1:] {
		if m.Pod(pod.Key{Namespace: "default", Name: "b"}) != states[0].Pod(pod.Key{Namespace: "default", Name: "b"}) {
			t.Errorf("state %d has another spec of b", i+1)
		}
	}
}

// TestI9_ContentsKnownAgain_AreAReconcile: a pod was bound to checksums, and is now bound to
// contents with these checksums. The update is a RECONCILE, by which readers get the contents.
//
// Shows: I9
func TestI9_ContentsKnownAgain_AreAReconcile(t *testing.T) {
	t.Parallel()
	kept := bound(namingFile(one, "a", "A1=x").Pods[0], thingOf(one, "b", "x", "1"))
	config := New(Config{Recorded: kept})
	f := newFold([]Layer{NewLayer(one, kept)}, kept, nil)
	f, _, _ = config.take(f, message{snapshot: set(namingFile(one, "a", "A1=x"))}, noon)
	check(t, "before", boundText(f.merged.Pods.Slice()), "A1{x?}")
	f, b, _ := config.take(f, message{snapshot: set(namingFile(one, "a", "A1=x"), namingFile(one, "b", "x:1"))}, noon)
	check(t, "after", boundText(f.merged.Pods.Slice()), "A1{x1}")
	check(t, "updates", textOf(b.Updates), "RECONCILE{A1} (file)")
}

// TestC_1_38_2_PodsOfAnAPIServerWait: they are bound to the objects that exist.
//
// Shows: C-1.38.2
func TestC_1_38_2_PodsOfAnAPIServerWait(t *testing.T) {
	t.Parallel()
	const api = "api:https://server"
	config := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil), NewLayer(api, nil)}, nil, nil)
	f, _, _ = config.take(f, message{snapshot: set(namingFile(one, "a", "x:1", "y:1"))}, noon)
	f, _, _ = config.take(f, message{layer: 1, snapshot: set(namingFile(api, "p", "A1=x,y.k,!s", "y:2"))}, noon)
	check(t, "set", boundText(f.merged.Pods.Slice()), "A1{y2}")
	check(t, "problems", problemText(f.merged.Problems), "")
}

// TestI9_PodsOfAnAPIServerKeepWhatTheyHave: the deletion of an object there does not
// change a pod that is bound to it; its replacement does.
//
// Shows: I9
func TestI9_PodsOfAnAPIServerKeepWhatTheyHave(t *testing.T) {
	t.Parallel()
	const api = "api:https://server"
	config := New(Config{})
	f := newFold([]Layer{NewLayer(api, nil)}, nil, nil)
	p := namingFile(api, "p", "A1=y")
	for _, step := range []struct{ object, want string }{{"y:2", "A1{y2}"}, {"", "A1{y2}"}, {"y:3", "A1{y3}"}} {
		files := []source.File{p}
		if step.object != "" {
			files = append(files, namingFile(api, "o", step.object))
		}
		f, _, _ = config.take(f, message{snapshot: set(files...)}, noon)
		check(t, "with "+step.object, boundText(f.merged.Pods.Slice()), step.want)
	}
}

// While the source cannot read an optional object, a pod that was bound to it stays bound. The
// spec of a pod that was not bound to it names it in Unread.
func TestBind_OptionalObjectUnread_IsNotGone(t *testing.T) {
	t.Parallel()
	const api = "api:https://server"
	config := New(Config{})
	f := newFold([]Layer{NewLayer(api, nil)}, nil, nil)
	p, unread := namingFile(api, "p", "A1=?y"), []pod.ObjectID{{Kind: pod.KindConfigMap, Name: "y"}}
	for _, step := range []struct {
		object string
		unread []pod.ObjectID
		want   string
	}{{"", unread, "A1"}, {"", nil, "A1"}, {"y:1", nil, "A1{y1}"}, {"", unread, "A1{y1}"}, {"", nil, "A1"}} {
		s := *p.Pods[0]
		s.Unread = step.unread
		files := []source.File{{File: p.File, Pods: []*pod.Spec{&s}}}
		if step.object != "" {
			files = append(files, namingFile(api, "o", step.object))
		}
		f, _, _ = config.take(f, message{snapshot: set(files...)}, noon)
		set := f.merged.Pods.Slice()
		check(t, "set", boundText(set), step.want)
		if step.want == "A1" && !slices.Equal(set[0].Unread, step.unread) {
			t.Errorf("unread: %v, want %v", set[0].Unread, step.unread)
		}
	}
}

// TestVisibleDecidesWhichObjectsAPodSees: a pod sees the objects of its own kind of source.
// Visible is called for other kinds only, and adds to these objects.
func TestVisibleDecidesWhichObjectsAPodSees(t *testing.T) {
	t.Parallel()
	var asked []string
	config := New(Config{Visible: func(pods, objects string) bool {
		asked = append(asked, pods+" "+objects)
		return pods == "http" && objects == "file"
	}})
	f := newFold([]Layer{NewLayer(one, nil), NewLayer(web, nil)}, nil, config.visible)
	f, _, _ = config.take(f, message{snapshot: set(namingFile(one, "a", "x:1", "A1=x"))}, noon)
	f, _, _ = config.take(f, message{layer: 1, snapshot: set(namingFile(web, "w", "B1=x", "x:2"))}, noon)
	check(t, "set", boundText(f.merged.Pods.Slice()), "A1{x1} B1{x1}")
	check(t, "problems", problemText(f.merged.Problems), "")
	check(t, "calls of Visible", strings.Join(slices.Compact(slices.Sorted(slices.Values(asked))), ", "), "http file")
}

// TestC_1_3_8_RestoredPodsAreBound: after a restart with sources that have not answered,
// pods are bound as before, even to objects of another layer of the same kind. The first
// reading then decides.
//
// Shows: C-1.3.8
func TestC_1_3_8_RestoredPodsAreBound(t *testing.T) {
	t.Parallel()
	config := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil), NewLayer(two, nil)}, nil, nil)
	f, b := config.restore(f, 0, lastGoodOf(namingFile(one, "a", "A1=x", "B1=y", "x:1")))
	check(t, "one", textOf(b.Updates), "RESTORE{A1} (file)")
	f, b = config.restore(f, 1, lastGoodOf(namingFile(two, "b", "C1", "y:2")))
	check(t, "two", textOf(b.Updates), "RESTORE{B1} (file); RESTORE{C1} (file)")
	check(t, "set", boundText(f.merged.Pods.Slice()), "A1{x1} B1{y2} C1")
	f, b, _ = config.take(f, message{layer: 1, snapshot: set(namingFile(two, "b", "C1"))}, noon)
	check(t, "the object is gone", textOf(b.Updates), "ADD{} (file)")
	check(t, "set", boundText(f.merged.Pods.Slice()), "A1{x1} B1{y2} C1")
	check(t, "no problem while a layer has not answered", problemText(f.merged.Problems), "")
	f, _, _ = config.take(f, message{err: errors.New("timeout")}, noon)
	check(t, "problems", problemText(f.merged.Problems), "a:2 no file source defines configmap \"y\" ("+one+" could not be read)")
}

// TestBind_StoredPod_HasTheHashOfAFirstBinding: binding a pod that was stored bound gives the same
// hash as binding it for the first time.
func TestBind_StoredPod_HasTheHashOfAFirstBinding(t *testing.T) {
	t.Parallel()
	plain := hashed(with(podOf("A1"), func(p *v1.Pod) {
		p.Annotations = map[string]string{pod.AnnotationRestartOnChange: "true"}
		refer(p, "x")
	}))
	plain.SandboxHash, plain.ContainerHashes = "v2-sandbox", map[string]string{"main": "v2-main"}
	spec := in(one, "a", plain)[0]
	object := thingOf(one, "b", "x", "1")
	kept := bound(spec, object)
	config := New(Config{Recorded: kept})
	f := newFold([]Layer{NewLayer(one, kept)}, kept, nil)
	f, _, _ = config.take(f, message{snapshot: set(broken("a"), source.File{File: "b", Objects: []*pod.Object{object}})}, noon)
	want, got := podspec.Bind(spec, podspec.NewData([]*pod.Object{object})), f.merged.Pods.At(0)
	if want.ContainerHashes["main"] == "v2-main" || !maps.Equal(want.ContainerHashes, got.ContainerHashes) || want.SandboxHash != got.SandboxHash {
		t.Errorf("hashes %v, want %v", got.ContainerHashes, want.ContainerHashes)
	}
	check(t, "set", boundText(f.merged.Pods.Slice()), "A1{x1}")
}
