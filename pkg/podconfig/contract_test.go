package podconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// The contract's section 1.2, case by case. A deviation is named in its test's
// comment.

// TestC_1_2_1_LayerIsReadyWithItsSet: the batch of a layer's first set says that the layer is
// ready; only one batch is First.
//
// Shows: C-1.2.1
func TestC_1_2_1_LayerIsReadyWithItsSet(t *testing.T) {
	c := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil)}, nil, nil)
	var got []string
	for _, s := range []source.Snapshot{set(file(one, "a", "A1")), set(file(one, "a", "A2"))} {
		var b Batch
		f, b, _ = c.take(f, message{snapshot: s}, noon)
		ready, _ := b.State.Ready(one)
		got = append(got, fmt.Sprintf("%s ready=%t first=%t", textOf(b.Updates), ready, b.First))
	}
	check(t, "batches", strings.Join(got, "; "), "ADD{A1} (file) ready=true first=true; UPDATE{A2} (file) ready=true first=false")
}

// TestC_1_2_2_FirstOfOneNameWins: within a file, by name alone; the others become
// conflicts. Deviation: a set consists of files here, and the file that already holds
// the pod goes first (F43).
//
// Shows: C-1.2.2
func TestC_1_2_2_FirstOfOneNameWins(t *testing.T) {
	other := with(podOf("A2"), func(p *v1.Pod) { p.UID = "x" })
	m := Merge([]Layer{NewLayer(one, nil).Read(set(source.File{File: "a", Pods: in(one, "a", podOf("A1"), other, podOf("A3"))}), noon)})
	check(t, "pods", places(m.Pods.Slice()), "A1=a")
	check(t, "conflicts", conflictTexts(m.Conflicts), "A a:1 over a:2: first in the file; A a:1 over a:3: first in the file")
}

// TestC_1_2_3_OneNameInTwoLayers. Deviation: the kubelet admits both, and its workers
// alternate; here the first layer wins, and the other one's pod is a conflict.
//
// Shows: C-1.2.3
func TestC_1_2_3_OneNameInTwoLayers(t *testing.T) {
	a, b := NewLayer(one, nil).Read(set(file(one, "a", "A1")), noon), NewLayer(web, nil).Read(set(file(web, "w", "A2", "B1")), noon)
	m := Merge([]Layer{a, b})
	check(t, "pods", places(m.Pods.Slice()), "A1=a B1=w")
	check(t, "conflicts", conflictTexts(m.Conflicts), "A a:1 over w:1: earlier layer wins")
}

// TestC_1_2_4_SourceAnnotationIsNoDifference. Deviation: package manifest sets the
// annotation on static pods; this package never writes to a pod.
//
// Shows: C-1.2.4
func TestC_1_2_4_SourceAnnotationIsNoDifference(t *testing.T) {
	read := func(value string) source.Snapshot {
		p := with(podOf("A1"), func(p *v1.Pod) { p.Annotations = map[string]string{pod.AnnotationConfigSource: value} })
		return set(source.File{File: "a", Pods: in(one, "a", p)})
	}
	before := NewLayer(one, nil).Read(read("file"), noon)
	after := before.Read(read("http"), noon)
	check(t, "updates", textOf(Diff(Merge([]Layer{before}), Merge([]Layer{after}))), "—")
	if before.specs()[0].Pod.Annotations[pod.AnnotationConfigSource] != "file" {
		t.Error("a pod was written to")
	}
}

// TestC_1_2_5_FoundByKey: a pod that is not found is an ADD, and one that is found is
// compared. Deviation: a pod is found by its key, not by its UID. So another UID under one
// key is an UPDATE, by which the pod's worker replaces the instance.
//
// Shows: C-1.2.5
func TestC_1_2_5_FoundByKey(t *testing.T) {
	read := func(pods ...*pod.Spec) source.Snapshot {
		return set(source.File{File: "a", Pods: in(one, "a", pods...)})
	}
	first := NewLayer(one, nil).Read(read(podOf("A1")), noon)
	second := first.Read(read(with(podOf("A1"), func(p *v1.Pod) { p.UID = "x" }), podOf("B1")), noon)
	check(t, "first", textOf(Diff(nil, Merge([]Layer{first}))), "ADD{A1} (file)")
	check(t, "second", textOf(Diff(Merge([]Layer{first}), Merge([]Layer{second}))), "ADD{B1} (file); UPDATE{A1} (file)")
}

// TestC_1_2_6_RemovedAsLastKnown: REMOVE carries the last desired spec itself.
//
// Shows: C-1.2.6
func TestC_1_2_6_RemovedAsLastKnown(t *testing.T) {
	before := history(NewLayer(one, nil), set(file(one, "a", "A1")), set(file(one, "a", "A2")))
	updates := Diff(Merge([]Layer{before}), Merge([]Layer{before.Read(set(), noon)}))
	check(t, "updates", textOf(updates), "REMOVE{A2} (file)")
	if updates[0].Pods[0] != before.specs()[0] {
		t.Error("the removed spec is another one")
	}
}

// compared is a difference between two readings of one pod, and the update it leads to.
var compared = []struct {
	name string
	edit func(*v1.Pod)
	want string
}{
	{"nothing", func(*v1.Pod) {}, "—"},
	{"spec", func(p *v1.Pod) { p.Spec.Containers[0].Image = "image:2" }, "UPDATE"},
	{"labels", func(p *v1.Pod) { p.Labels = map[string]string{"a": "2"} }, "UPDATE"},
	{"deletionTimestamp", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: noon} }, "DELETE"},
	{"deletionGracePeriodSeconds", func(p *v1.Pod) { p.DeletionGracePeriodSeconds = new(int64) }, "UPDATE"},
	{"an annotation is added", func(p *v1.Pod) { p.Annotations["new"] = "" }, "UPDATE"},
	{"an annotation is changed", func(p *v1.Pod) { p.Annotations["mine"] = "2" }, "UPDATE"},
	{"an annotation is removed", func(p *v1.Pod) { delete(p.Annotations, "mine") }, "UPDATE"},
	{"config.source", func(p *v1.Pod) { p.Annotations[pod.AnnotationConfigSource] = "api" }, "—"},
	{"config.mirror", func(p *v1.Pod) { p.Annotations[pod.AnnotationConfigMirror] = "x" }, "—"},
	{"config.seen", func(p *v1.Pod) { p.Annotations[pod.AnnotationConfigSeen] = "2026-01-02T12:00:00Z" }, "—"},
	{"config.hash", func(p *v1.Pod) { p.Annotations[pod.AnnotationConfigHash] = "x" }, "UPDATE"},
	{"ownerReferences", func(p *v1.Pod) { p.OwnerReferences = []metav1.OwnerReference{{Name: "o"}} }, "—"},
	{"finalizers", func(p *v1.Pod) { p.Finalizers = []string{"a/b"} }, "—"},
	{"resourceVersion", func(p *v1.Pod) { p.ResourceVersion = "2" }, "—"},
	{"generation", func(p *v1.Pod) { p.Generation = 2 }, "—"},
	{"creationTimestamp", func(p *v1.Pod) { p.CreationTimestamp = metav1.Time{Time: noon} }, "—"},
	{"status", func(p *v1.Pod) { p.Status.Message = "2" }, "RECONCILE"},
	{"status and content", func(p *v1.Pod) { p.Status.Message, p.Spec.NodeName = "2", "n2" }, "UPDATE"},
	{"status and deletion", func(p *v1.Pod) { p.Status.Message, p.DeletionTimestamp = "2", &metav1.Time{Time: noon} }, "DELETE"},
}

// TestC_1_2_7_C_1_2_8_WhatIsCompared: the content decides; if it is equal, the status;
// nothing else does. The specs have hashes, or have none.
//
// Shows: C-1.2.7, C-1.2.8
func TestC_1_2_7_C_1_2_8_WhatIsCompared(t *testing.T) {
	pod1 := with(podOf("A1"), func(p *v1.Pod) {
		p.Labels, p.Annotations = map[string]string{"a": "1"}, map[string]string{"mine": "1", pod.AnnotationConfigHash: "h"}
	})
	for _, test := range compared {
		for _, withHash := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, hash=%t", test.name, withHash), func(t *testing.T) {
				was, is := pod1, with(pod1, test.edit)
				if withHash {
					was, is = hashed(was), hashed(is)
				}
				l := NewLayer(one, nil).Read(set(source.File{File: "a", Pods: in(one, "a", was)}), noon)
				next := l.Read(set(source.File{File: "a", Pods: in(one, "a", is)}), noon)
				updates := Diff(Merge([]Layer{l}), Merge([]Layer{next}))
				got := "—"
				for i, u := range updates {
					if got = string(u.Op); i > 0 {
						t.Errorf("more than one update: %s", textOf(updates))
					}
				}
				check(t, "op", got, test.want)
				if test.want != "—" && next.specs()[0].Pod.Spec.NodeName != is.Pod.Spec.NodeName {
					t.Error("the state holds the old version")
				}
			})
		}
	}
}

// TestC_1_2_9_DeletionDecides between UPDATE and DELETE, at every change of a pod with
// a deletionTimestamp. Deviation: the new version stays as it was read; nothing of the
// old one is copied into it.
//
// Shows: C-1.2.9
func TestC_1_2_9_DeletionDecides(t *testing.T) {
	l := NewLayer(one, nil).Read(set(file(one, "a", "A1")), noon)
	var got []string
	for _, next := range []string{"A1'", "A1'", "A1'5", "A2'5", "A2", "A2s2"} {
		read := l.Read(set(file(one, "a", next)), noon)
		got = append(got, textOf(Diff(Merge([]Layer{l}), Merge([]Layer{read}))))
		l = read
	}
	check(t, "updates", strings.Join(got, "; "),
		"DELETE{A1'} (file); —; DELETE{A1'} (file); DELETE{A2'} (file); UPDATE{A2} (file); RECONCILE{A2s2} (file)")
}

// TestC_1_2_11_EmittedIsShared. Deviation: the kubelet copies pods before it sends
// them; here a Spec is immutable, so updates, state and layer share it.
// TestC_1_2_11_StatesAreImmutable checks that.
//
// Shows: C-1.2.11
func TestC_1_2_11_EmittedIsShared(t *testing.T) {
	f := file(one, "a", "A1")
	m := Merge([]Layer{NewLayer(one, nil).Read(set(f), noon)})
	if updates := Diff(nil, m); updates[0].Pods[0] != f.Pods[0] || m.Pods.At(0) != f.Pods[0] {
		t.Error("the spec was copied")
	}
}

// TestC_1_2_12_OneUIDUnderTwoNames. Deviation: in the kubelet both versions replace
// each other with two UPDATEs at every set; here they are two pods.
//
// Shows: C-1.2.12
func TestC_1_2_12_OneUIDUnderTwoNames(t *testing.T) {
	read := func(version string) source.Snapshot {
		b := with(podOf("B"+version), func(p *v1.Pod) { p.UID = "a" })
		return set(source.File{File: "a", Pods: in(one, "a", podOf("A1"), b)})
	}
	l := NewLayer(one, nil).Read(read("1"), noon)
	check(t, "first", textOf(Diff(nil, Merge([]Layer{l}))), "ADD{A1,B1} (file)")
	check(t, "again", textOf(Diff(Merge([]Layer{l}), Merge([]Layer{l.Read(read("1"), noon)}))), "—")
	check(t, "edited", textOf(Diff(Merge([]Layer{l}), Merge([]Layer{l.Read(read("2"), noon)}))), "UPDATE{B2} (file)")
}

// TestC_1_2_13_RenamedUnderOneUID. Deviation: the kubelet keeps the old name; here one
// pod is removed and another one added.
//
// Shows: C-1.2.13
func TestC_1_2_13_RenamedUnderOneUID(t *testing.T) {
	l := NewLayer(one, nil).Read(set(file(one, "a", "A1")), noon)
	b := with(podOf("B1"), func(p *v1.Pod) { p.UID = "a" })
	next := l.Read(set(source.File{File: "a", Pods: in(one, "a", b)}), noon)
	check(t, "updates", textOf(Diff(Merge([]Layer{l}), Merge([]Layer{next}))), "REMOVE{A1} (file); ADD{B1} (file)")
}

// TestC_1_2_15_AllReady: every configured layer by itself; a failure, an end and a
// restored set do not make it ready.
//
// Shows: C-1.2.15
func TestC_1_2_15_AllReady(t *testing.T) {
	ready := NewLayer(one, nil).Read(set(), noon)
	unanswered := NewLayer(two, nil)
	for name, other := range map[string]Layer{
		"silent": unanswered, "failed": unanswered.Failed(fmt.Errorf("x"), noon), "ended": unanswered.Ended(), "restored": unanswered.Restore(lastGoodOf(file(two, "a", "A1"))),
	} {
		m := Merge([]Layer{ready, other})
		first, _ := m.Ready(one)
		second, known := m.Ready(two)
		if _, configured := m.Ready("file:/three"); configured || !known || !first || second || m.AllReady() {
			t.Errorf("%s: ready %t and %t, all %t", name, first, second, m.AllReady())
		}
	}
	if !Merge([]Layer{ready, unanswered.Read(set(), noon).Failed(fmt.Errorf("x"), noon)}).AllReady() || !Merge(nil).AllReady() {
		t.Error("all layers are ready, and AllReady is false")
	}
}

// TestF43_OtherFilesOfAPodChange_CausesNoUpdate: other files with the pod cause no update when they
// are added, edited and removed in any order. The removal of the owner causes an UPDATE at most.
//
// Shows: F43
func TestF43_OtherFilesOfAPodChange_CausesNoUpdate(t *testing.T) {
	names := []string{"a", "b", "c"}
	for _, owner := range []string{"0", "b2", "z"} {
		for _, order := range permutations(names) {
			l := NewLayer(one, nil).Read(set(file(one, owner, "A1")), noon)
			before := Merge([]Layer{l})
			disk := map[string]source.File{owner: file(one, owner, "A1")}
			look := func() {
				l = l.Read(set(slices.Collect(valuesOf(disk))...), noon)
				m := Merge([]Layer{l})
				check(t, owner+" "+strings.Join(order, ""), textOf(Diff(before, m)), "—")
				if len(m.Conflicts) != len(disk)-1 {
					t.Errorf("%d conflicts of %d files", len(m.Conflicts), len(disk))
				}
			}
			for i, name := range order {
				disk[name] = file(one, name, fmt.Sprintf("A%d", i+1))
				look()
				disk[name] = file(one, name, fmt.Sprintf("A%d", i+2))
				look()
			}
			for _, name := range order[:2] {
				delete(disk, name)
				look()
			}
			delete(disk, owner)
			after := Merge([]Layer{l.Read(set(slices.Collect(valuesOf(disk))...), noon)})
			check(t, "owner gone", textOf(Diff(before, after)), "UPDATE{A4} (file)")
		}
	}
}

func valuesOf(disk map[string]source.File) func(func(source.File) bool) {
	return func(yield func(source.File) bool) {
		for _, f := range disk {
			if !yield(f) {
				return
			}
		}
	}
}

func permutations(names []string) [][]string {
	if len(names) == 0 {
		return [][]string{nil}
	}
	var out [][]string
	for i, name := range names {
		rest := slices.Delete(slices.Clone(names), i, i+1)
		for _, p := range permutations(rest) {
			out = append(out, append([]string{name}, p...))
		}
	}
	return out
}

// TestF49_ManifestIsRewrittenOften_LastVersionWins deletes a manifest and writes it again 1,000 times,
// with edits and mistakes. Readings miss some versions. After every reading the state is the last
// version, and the pod keeps its UID.
//
// Shows: F49
func TestF49_ManifestIsRewrittenOften_LastVersionWins(t *testing.T) {
	var b source.Builder
	c := New(Config{})
	f := newFold([]Layer{NewLayer(one, nil)}, nil, nil)
	var disk, wantImage, uid string
	const broken = "broken"
	have := make(map[pod.Key]*pod.Spec)
	seed := uint32(49)
	draw := func(n uint32) uint32 {
		seed = seed*1664525 + 1013904223
		return seed >> 8 % n
	}
	ops := make(map[Op]int)
	for flip := range 1000 {
		switch draw(4) {
		case 0:
			b.Remove("/m/a.yaml")
			disk = ""
		case 1: // half written: the last good version stays, if there is one
			disk = broken
			b.Put(source.File{File: "/m/a.yaml", Incomplete: true, Problems: []pod.Problem{{File: "/m/a.yaml", Msg: "cut off"}}}, nil)
		default:
			image := fmt.Sprintf("image:%d", draw(3))
			parsed, _ := manifest.Parse([]byte("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: main, image: '"+image+"'}]}\n"),
				manifest.Options{Node: "n1", Source: "file", Location: "/one", File: "/m/a.yaml", Static: true})
			b.Put(parsed, nil)
			disk = image
		}
		if draw(3) == 0 {
			continue // no reading
		}
		if disk != broken {
			wantImage = disk
		}
		var batch Batch
		f, batch, _ = c.take(f, message{snapshot: b.Snapshot()}, noon.Add(time.Duration(flip)*time.Second))
		for _, u := range batch.Updates {
			ops[u.Op]++
			for _, s := range u.Pods {
				if have[s.Key] = s; u.Op == REMOVE {
					delete(have, s.Key)
				}
				if uid == "" {
					uid = s.UID()
				}
				if s.UID() != uid {
					t.Fatalf("flip %d: UID %s, before %s", flip, s.UID(), uid)
				}
			}
		}
		image := ""
		for _, s := range have {
			image = s.Pod.Spec.Containers[0].Image
		}
		if image != wantImage || len(have) != f.merged.Pods.Len() {
			t.Fatalf("flip %d: %q is in the set, the last reading has %q", flip, image, wantImage)
		}
	}
	if ops[ADD] < 50 || ops[REMOVE] < 50 || ops[UPDATE] < 50 {
		t.Errorf("hardly anything happened: %v", ops)
	}
}
