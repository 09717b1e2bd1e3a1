package podconfig

import (
	"errors"
	"slices"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

const dir = "file:/m"

// specs returns the pods of a layer.
func (l Layer) specs() []*pod.Spec {
	var out []*pod.Spec
	for c := range l.pods.winners.All() {
		out = append(out, c.value)
	}
	return out
}

func TestLayerKeepsLastGood(t *testing.T) {
	unread := broken("a") // one value: readings share their unchanged parts
	tests := []struct {
		name      string
		snapshots []source.Snapshot
		want      string
	}{
		{
			name:      "I9 F40 a file that broke keeps all its pods",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1", "B1"), file(dir, "b", "C1")), set(broken("a"), file(dir, "b", "C2"))},
			want:      "A1=a B1=a C2=b",
		},
		{
			name:      "I9 a rejected pod stays, the other pods of the file change but stay",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1", "B1", "C1")), set(rejecting(file(dir, "a", "B2"), "a"))},
			want:      "A1=a B2=a C1=a",
		},
		{
			name: "I9 broken in two ways, one after the other",
			snapshots: []source.Snapshot{
				set(file(dir, "a", "A1", "B1")), set(broken("a")),
				set(rejecting(file(dir, "a", "B2"), "a")), set(broken("a")),
			},
			want: "A1=a B2=a",
		},
		{
			name:      "a file broken from the beginning holds nothing",
			snapshots: []source.Snapshot{set(broken("a"), rejecting(file(dir, "b", "B1"), "c"))},
			want:      "B1=b",
		},
		{
			name:      "a fixed file defines everything again",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1", "B1")), set(broken("a")), set(file(dir, "a", "A2"))},
			want:      "A2=a",
		},
		{
			name:      "a rejected pod that is deleted from the file is removed",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1", "B1")), set(rejecting(file(dir, "a", "B1"), "a")), set(file(dir, "a", "B1"))},
			want:      "B1=a",
		},
		{
			name:      "a file that is gone takes its pods along",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "B1")), set(file(dir, "b", "B1"))},
			want:      "B1=b",
		},
		{
			name:      "a broken file that is gone takes its pods along",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "B1")), set(broken("a"), file(dir, "b", "B1")), set(file(dir, "b", "B1"))},
			want:      "B1=b",
		},
		{
			name:      "moved to another file",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1")), set(file(dir, "b", "A1"))},
			want:      "A1=b",
		},
		{
			name:      "I9 moved to another file and rejected there",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1")), set(rejecting(file(dir, "b"), "a"))},
			want:      "A1=a",
		},
		{
			name: "I9 written again with a mistake, then the old file is deleted",
			snapshots: []source.Snapshot{
				set(file(dir, "a", "A1")), set(file(dir, "a", "A1"), rejecting(file(dir, "b"), "a")), set(rejecting(file(dir, "b"), "a")),
			},
			want: "A1=a",
		},
		{
			name: "moved, rejected, and then taken out",
			snapshots: []source.Snapshot{
				set(file(dir, "a", "A1")), set(rejecting(file(dir, "b"), "a")), set(rejecting(file(dir, "b", "C1"), "a")), set(file(dir, "b", "C1")),
			},
			want: "C1=b",
		},
		{
			name: "moved, rejected, and then fixed",
			snapshots: []source.Snapshot{
				set(file(dir, "a", "A1")), set(rejecting(file(dir, "b"), "a")), set(broken("b")), set(file(dir, "b", "A2")),
			},
			want: "A2=b",
		},
		{
			name:      "the only pod, rejected and then taken out",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1")), set(rejecting(file(dir, "a"), "a")), set(file(dir, "a"))},
			want:      "",
		},
		{
			name:      "I9 read twice while broken, then partly fixed",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1")), set(unread), set(unread), set(rejecting(file(dir, "a", "B1"), "a"))},
			want:      "A1=a B1=a",
		},
		{
			name:      "files out of order and twice",
			snapshots: []source.Snapshot{set(file(dir, "b", "B1"), file(dir, "a", "A1"), file(dir, "b", "C1"))},
			want:      "A1=a B1=b C1=b",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := history(NewLayer(dir, nil), test.snapshots...)
			check(t, "pods", places(l.specs()), test.want)
			if got := l.State().Pods; got != len(l.specs()) {
				t.Errorf("State().Pods = %d, want %d", got, len(l.specs()))
			}
		})
	}
}

// A manifest that is broken when an agent starts keeps the pod that runs. So an upgrade or
// a reboot with a typo in a file stops no pod (I2, I9).
//
// Shows: I9
func TestI9_BrokenAtTheFirstReadingKeepsWhatRuns(t *testing.T) {
	kept := slices.Concat(file(dir, "a", "A1", "B1").Pods, file(dir, "gone", "C1").Pods, file("file:/elsewhere", "a", "D1").Pods)
	first := NewLayer(dir, kept)
	check(t, "not read yet", places(first.specs()), "")
	check(t, "broken", places(first.Read(set(broken("a")), noon).specs()), "A1=a B1=a")
	check(t, "rejected", places(first.Read(set(rejecting(file(dir, "a", "B2"), "a")), noon).specs()), "A1=a B2=a")
	check(t, "mended", places(first.Read(set(broken("a")), noon).Read(set(file(dir, "a", "A2")), noon).specs()), "A2=a")
	check(t, "read well", places(first.Read(set(file(dir, "a", "A2")), noon).specs()), "A2=a")
	check(t, "broken later", places(first.Read(set(), noon).Read(set(broken("a")), noon).specs()), "")
}

// Shows: F43
func TestF43_DuplicateKeepsOwner(t *testing.T) {
	inA := file(dir, "b", "A9").Pods
	tests := []struct {
		name      string
		kept      []*pod.Spec
		snapshots []source.Snapshot
		want      string
		conflicts string
	}{
		{
			name:      "at first the first path in byte order",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "A2"))},
			want:      "A1=a", conflicts: "A a:1 over b:1: first path in byte order",
		},
		{
			name: "at first the file it runs from", kept: inA,
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "A2"))},
			want:      "A2=b", conflicts: "A b:1 over a:1: the definition in use stays",
		},
		{
			name: "a file it once ran from and that does not hold it has no say", kept: inA,
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "c", "A2"))},
			want:      "A1=a", conflicts: "A a:1 over c:1: first path in byte order",
		},
		{
			name: "what ran before the first reading decides nothing later", kept: inA,
			snapshots: []source.Snapshot{set(), set(file(dir, "a", "A1"), file(dir, "b", "A2"))},
			want:      "A1=a", conflicts: "A a:1 over b:1: first path in byte order",
		},
		{
			name:      "an owner stays when an earlier path comes",
			snapshots: []source.Snapshot{set(file(dir, "b", "A2")), set(file(dir, "a", "A1"), file(dir, "b", "A2"))},
			want:      "A2=b", conflicts: "A b:1 over a:1: the definition in use stays",
		},
		{
			name: "an owner stays while edited",
			snapshots: []source.Snapshot{
				set(file(dir, "b", "A2")), set(file(dir, "a", "A1"), file(dir, "b", "A2")), set(file(dir, "a", "A1"), file(dir, "b", "A3")),
			},
			want: "A3=b", conflicts: "A b:1 over a:1: the definition in use stays",
		},
		{
			name: "an owner stays while broken",
			snapshots: []source.Snapshot{
				set(file(dir, "b", "A2")), set(file(dir, "a", "A1"), file(dir, "b", "A2")), set(file(dir, "a", "A1"), broken("b")),
			},
			want: "A2=b", conflicts: "A b:1 over a:1: the definition in use stays",
		},
		{
			name:      "the loser is deleted",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "A2")), set(file(dir, "a", "A1"))},
			want:      "A1=a",
		},
		{
			name:      "the owner is deleted",
			snapshots: []source.Snapshot{set(file(dir, "a", "A1"), file(dir, "b", "A2")), set(file(dir, "b", "A2"))},
			want:      "A2=b",
		},
		{
			name: "the owner is renamed past the loser",
			snapshots: []source.Snapshot{
				set(file(dir, "a", "A1"), file(dir, "b", "A2")), set(file(dir, "b", "A2"), file(dir, "c", "A1")),
			},
			want: "A1=c", conflicts: "A c:1 over b:1: the definition in use stays",
		},
		{
			name:      "C-1.2.2 within one file the first",
			snapshots: []source.Snapshot{set(file(dir, "a", "B1", "A1", "A2"))},
			want:      "A1=a B1=a", conflicts: "A a:2 over a:3: first in the file",
		},
		{
			name: "three places",
			snapshots: []source.Snapshot{
				set(file(dir, "b", "A1")), set(file(dir, "a", "A2"), file(dir, "b", "A1", "A3"), file(dir, "c", "A4")),
			},
			want: "A1=b", conflicts: "A b:1 over a:1: the definition in use stays; A b:1 over b:2: first in the file; A b:1 over c:1: the definition in use stays",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			l := history(NewLayer(dir, test.kept), test.snapshots...)
			m := Merge([]Layer{l})
			check(t, "pods", places(m.Pods.Slice()), test.want)
			check(t, "conflicts", conflictTexts(m.Conflicts), test.conflicts)
		})
	}
}

// TestF43_OwnerByDocument finds the owner by the place in its origin, where that is
// more exact than the file.
//
// Shows: F43
func TestF43_OwnerByDocument(t *testing.T) {
	a, b := file(dir, "a", "A1"), file(dir, "b", "A2")
	b.Pods[0].Origin.File = "b#2"
	l := NewLayer(dir, file(dir, "b#2", "A9").Pods)
	check(t, "pods", places(l.Read(set(a, b), noon).specs()), "A2=b#2")
}

// TestF43_DeletingOwnerIsUpdate: deleting the loser's file causes no update, deleting
// the owner's one UPDATE.
//
// Shows: F43
func TestF43_DeletingOwnerIsUpdate(t *testing.T) {
	both := history(NewLayer(dir, nil), set(file(dir, "a", "A1"), file(dir, "b", "A2")))
	loserGone := both.Read(set(file(dir, "a", "A1")), noon)
	ownerGone := both.Read(set(file(dir, "b", "A2")), noon)
	before := Merge([]Layer{both})
	check(t, "loser gone", textOf(Diff(before, Merge([]Layer{loserGone}))), "—")
	check(t, "owner gone", textOf(Diff(before, Merge([]Layer{ownerGone}))), "UPDATE{A2} (file)")
}

func TestLayerObjects(t *testing.T) {
	holding := func(name string, objects ...*pod.Object) source.File {
		return source.File{File: name, Objects: objects}
	}
	tests := []struct {
		name      string
		snapshots []source.Snapshot
		want      string
	}{
		{"as read", []source.Snapshot{set(holding("a", object(dir, "a", "x", "1")))}, "x=1@a"},
		{"I9 broken file", []source.Snapshot{set(holding("a", object(dir, "a", "x", "1"))), set(broken("a"))}, "x=1@a"},
		{
			"I9 one went missing while the file has problems",
			[]source.Snapshot{
				set(holding("a", object(dir, "a", "x", "1"), object(dir, "a", "y", "1"))),
				set(rejecting(holding("a", object(dir, "a", "y", "2")), "p")),
			},
			"x=1@a y=2@a",
		},
		{
			"gone from a good file",
			[]source.Snapshot{set(holding("a", object(dir, "a", "x", "1"), object(dir, "a", "y", "1"))), set(holding("a", object(dir, "a", "y", "1")))},
			"y=1@a",
		},
		{
			"F43 two files",
			[]source.Snapshot{set(holding("b", object(dir, "b", "x", "2"))), set(holding("a", object(dir, "a", "x", "1")), holding("b", object(dir, "b", "x", "2")))},
			"x=2@b",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			m := Merge([]Layer{history(NewLayer(dir, nil), test.snapshots...)})
			got := ""
			for i, o := range m.Objects.Slice() {
				if i > 0 {
					got += " "
				}
				got += o.Name + "=" + o.Object.(*v1.ConfigMap).Data["content"] + "@" + o.Origin.File
			}
			check(t, "objects", got, test.want)
		})
	}
}

// Shows: I9
func TestI9_FailureKeepsEverything(t *testing.T) {
	at := func(s int) time.Time { return noon.Add(time.Duration(s) * time.Second) }
	fresh := NewLayer(dir, nil)
	never := fresh.Failed(errors.New("no such directory"), at(1))
	if s := never.State(); s.Ready || s.Stale() || s.Error != "no such directory" || s.Since != at(1) || !s.LastGood.IsZero() {
		t.Errorf("failed before it was ready: %+v", s)
	}
	good := never.Read(set(file(dir, "a", "A1")), at(2))
	if s := good.State(); !s.Ready || s.Stale() || s.Error != "" || !s.Since.IsZero() || s.LastGood != at(2) {
		t.Errorf("ready: %+v", s)
	}
	stale := good.Failed(errors.New("timeout"), at(3)).Failed(errors.New("refused"), at(4))
	if s := stale.State(); !s.Stale() || s.Error != "refused" || s.Since != at(3) || s.LastGood != at(2) || s.Pods != 1 {
		t.Errorf("stale: %+v", s)
	}
	check(t, "pods", places(stale.specs()), "A1=a")
	check(t, "diff", textOf(Diff(Merge([]Layer{good}), Merge([]Layer{stale}))), "—")
	if s := stale.Ended().State(); !s.Ended || !s.Stale() {
		t.Errorf("ended: %+v", s)
	}
	check(t, "pods", places(stale.Ended().specs()), "A1=a")
	check(t, "names", fresh.State().Source+" "+fresh.State().Location, "file /m")
	if s := fresh.Failed(errors.New(""), at(1)).State(); s.Error == "" {
		t.Error("an error without words is no error")
	}
}

// TestLayerSharesUnchanged: a source that decodes everything again at every reading
// changes nothing, and the yielded specs stay the same.
func TestLayerSharesUnchanged(t *testing.T) {
	before := history(NewLayer(dir, nil), set(file(dir, "a", "A1", "B1"), broken("b")))
	after := before.Read(set(file(dir, "a", "A1", "B2"), broken("b")), noon)
	if before.specs()[0] != after.specs()[0] {
		t.Error("an unchanged spec was replaced")
	}
	if len(after.changedPods) != 1 || after.changedPods[0].key.Name != "b" {
		t.Errorf("changed %v, want b alone", after.changedPods)
	}
	if len(after.problems) == 0 || &before.problems[0] != &after.problems[0] {
		t.Error("unchanged problems were replaced")
	}
}

// TestLayerProblemsAndSkipped are passed on, and end with their cause.
func TestLayerProblemsAndSkipped(t *testing.T) {
	s := set(broken("b"), rejecting(file(dir, "c"), "x"))
	s.Skipped = []pod.Problem{{File: "notes.txt", Msg: "not a manifest"}}
	l := NewLayer(dir, nil).Read(s, noon)
	m := Merge([]Layer{l})
	if len(m.Problems) != 2 || m.Problems[0].File != "b" || m.Problems[1].File != "c" || len(m.Skipped) != 1 {
		t.Errorf("problems %v, skipped %v", m.Problems, m.Skipped)
	}
	m = Merge([]Layer{l.Read(set(file(dir, "b", "A1")), noon)})
	if len(m.Problems) != 0 || len(m.Skipped) != 0 {
		t.Errorf("problems %v, skipped %v, want none", m.Problems, m.Skipped)
	}
}
