package podconfig

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// deployment returns a Deployment as layer and file wrote it.
func deployment(layer, file, name, content string) *pod.Object {
	o := object(layer, file, name, content)
	o.Kind, o.Object = pod.KindDeployment, &appsv1.Deployment{}
	return o
}

// TestLayer_RejectedWorkload_KeepsItsLastGoodVersion: a workload that a file has in a form that
// was rejected keeps its last good version. It does so even after its earlier file is removed.
//
// Shows: I9
func TestLayer_RejectedWorkload_KeepsItsLastGoodVersion(t *testing.T) {
	t.Parallel()
	one := func(file, content string) source.File {
		return source.File{File: file, Objects: []*pod.Object{deployment(dir, file, "web", content)}}
	}
	bad := func(file, kind, name string) source.File {
		return source.File{
			File: file, BrokenObjects: []pod.ObjectKey{{Kind: kind, Key: pod.Key{Namespace: "default", Name: name}}},
			Problems: []pod.Problem{{File: file, Line: 1, Msg: "unknown field"}},
		}
	}
	for name, c := range map[string]struct {
		snapshots []source.Snapshot
		want      string
	}{
		"rejected in its file":                       {[]source.Snapshot{set(one("a", "1")), set(bad("a", pod.KindDeployment, "web"))}, "web v1-1"},
		"rejected, then taken out":                   {[]source.Snapshot{set(one("a", "1")), set(bad("a", pod.KindDeployment, "web")), set(source.File{File: "a"})}, ""},
		"moved to another file":                      {[]source.Snapshot{set(one("a", "1")), set(one("b", "1"))}, "web v1-1"},
		"moved and rejected":                         {[]source.Snapshot{set(one("a", "1")), set(bad("b", pod.KindDeployment, "web"))}, "web v1-1"},
		"moved with a kind that is misspelt":         {[]source.Snapshot{set(one("a", "1")), set(bad("b", "", "web"))}, "web v1-1"},
		"removed, and another kind is rejected":      {[]source.Snapshot{set(one("a", "1")), set(bad("b", pod.KindJob, "web"))}, ""},
		"removed, and another name is rejected":      {[]source.Snapshot{set(one("a", "1")), set(bad("b", pod.KindDeployment, "db"))}, ""},
		"moved, rejected, fixed":                     {[]source.Snapshot{set(one("a", "1")), set(bad("b", pod.KindDeployment, "web")), set(one("b", "2"))}, "web v1-2"},
		"moved, rejected, taken out":                 {[]source.Snapshot{set(one("a", "1")), set(bad("b", pod.KindDeployment, "web")), set(source.File{File: "b"})}, ""},
		"a pod of the same name is rejected instead": {[]source.Snapshot{set(one("a", "1")), set(rejecting(source.File{File: "b"}, "web"))}, ""},
	} {
		var got []string
		for _, o := range Merge([]Layer{history(NewLayer(dir, nil), c.snapshots...)}).Objects.Slice() {
			got = append(got, o.Name+" "+o.Hash)
		}
		check(t, name, strings.Join(got, ", "), c.want)
	}
}

// TestLayer_WorkloadIsMovedAndRejected_SetOfTheNewFileHasIt: a workload that a file took over is in
// the set that is saved for the next agent.
//
// Shows: I9
func TestLayer_WorkloadIsMovedAndRejected_SetOfTheNewFileHasIt(t *testing.T) {
	t.Parallel()
	l := history(NewLayer(dir, nil), set(source.File{File: "a", Objects: []*pod.Object{deployment(dir, "a", "web", "1")}}))
	l = l.Read(set(source.File{
		File: "b", BrokenObjects: []pod.ObjectKey{{Kind: pod.KindDeployment, Key: pod.Key{Namespace: "default", Name: "web"}}},
		Problems: []pod.Problem{{File: "b", Line: 1, Msg: "unknown field"}},
	}), noon)
	if s := l.lastGoodOf("a"); !s.Empty() {
		t.Errorf("the removed file has %+v", s)
	}
	if s := l.lastGoodOf("b"); len(s.Objects) != 1 || s.Objects[0].Name != "web" || len(l.changedSets) != 2 {
		t.Errorf("the new file has %+v, %d sets changed", s, len(l.changedSets))
	}
}
