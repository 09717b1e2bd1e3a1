package apiserver

import (
	"context"
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// TestObjects_ManyPodsNameThousands_ReadersAreBounded: an API user binds 100 pods that name
// 1,000 objects each. Few pods get theirs. A pod that names few objects and a pod of another
// namespace get theirs all the same. A pod that waits gets them once others are gone.
func TestObjects_ManyPodsNameThousands_ReadersAreBounded(t *testing.T) {
	src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, reader: apiclient.NewReader(apiclient.ReaderConfig{})}
	live := 0
	r := &run{
		Source: src, pods: newPods(src), yield: func(source.Snapshot, error) bool { return true },
		objects: newObjects(func(func(context.Context)) func() { live++; return func() { live-- } }),
	}
	put := func(namespace, name string, objects int, phase v1.PodPhase) string {
		var names []string
		for i := range objects {
			names = append(names, fmt.Sprintf("%s-%d", name, i))
		}
		p := boundPod(name, "x", naming(names...))
		p.Namespace, p.UID, p.ResourceVersion, p.Status.Phase = namespace, types.UID(namespace+name), "1", phase
		r.put(p, func() {})
		r.syncReaders()
		return src.file(pod.KeyOf(p))
	}
	put("a", "ended", 1000, v1.PodSucceeded)
	put("a", "failed", 1000, v1.PodFailed)
	if live != 0 {
		t.Fatalf("%d objects of ended pods are read", live)
	}
	var files []string
	for i := range 30 {
		files = append(files, put("a", fmt.Sprint("big", i), 1000, v1.PodPending))
	}
	if live == 0 || live > maxObjects/2 {
		t.Errorf("%d objects are read, want at most half of %d for one namespace", live, maxObjects)
	}
	if last := files[29]; len(r.names[last]) != 0 || !r.set.Has(src.refusal(last)) {
		t.Error("a pod without room has no problem")
	}
	if small := put("a", "small", 3, v1.PodPending); len(r.names[small]) != 3 || r.set.Has(src.refusal(small)) {
		t.Error("a pod that names few has no room")
	}
	if other := put("b", "other", 1000, v1.PodPending); len(r.names[other]) != 1000 {
		t.Error("a pod of another namespace has no room")
	}
	for i, file := range files[:15] {
		r.remove(file, types.UID(fmt.Sprint("abig", i)))
	}
	r.retry()
	r.syncReaders()
	granted := 0
	for _, file := range files[15:] {
		if len(r.names[file]) == 1000 {
			granted++
		}
	}
	if granted == 0 || live != len(r.users) || live > maxObjects {
		t.Errorf("once others are gone, %d pods that waited have room, and %d objects are read of %d", granted, live, len(r.users))
	}
}

// TestHasRoom_PodWithoutRoom_IsOneLook: each second the source asks again for every pod
// without room. It stops counting objects as soon as the limit is reached.
func TestHasRoom_PodWithoutRoom_IsOneLook(t *testing.T) {
	t.Parallel()
	p := newPods(&Source{})
	ids := make([]objectID, pod.MaxObjects)
	for i := range ids {
		ids[i] = objectID{pod.KindSecret, pod.Key{Namespace: "a", Name: fmt.Sprint(i)}}
	}
	for _, most := range []int{0, 7, len(ids)} {
		if n, want := p.fresh(ids, most), min(most+1, len(ids)); n != want {
			t.Errorf("room for %d: %d objects are counted, want %d", most, n, want)
		}
	}
	p.used["a"] = maxObjects
	if p.hasRoom(claim{ids: ids, weight: 1}) || p.hasRoom(claim{ids: ids, weight: smallFirst}) {
		t.Error("a namespace has more than there is")
	}
	for _, id := range ids {
		p.users[id] = 1
	}
	if !p.hasRoom(claim{ids: ids, weight: smallFirst}) || !p.hasRoom(claim{weight: 1}) {
		t.Error("a pod whose objects are read for others has no room")
	}
}

// TestObjects_StartedPodWithoutRoom_AreNotGone: others take the room before the pod is read again,
// as after a restart of the agent. Objects that it names do not count as deleted: otherwise
// optional objects would vanish from its volumes.
func TestObjects_StartedPodWithoutRoom_AreNotGone(t *testing.T) {
	t.Parallel()
	src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, reader: apiclient.NewReader(apiclient.ReaderConfig{})}
	live := 0
	r := &run{
		Source: src, pods: newPods(src), yield: func(source.Snapshot, error) bool { return true },
		objects: newObjects(func(func(context.Context)) func() { live++; return func() { live-- } }),
	}
	put := func(name string, phase v1.PodPhase) string {
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%d", name, i)
		}
		p := boundPod(name, "x", naming(names...))
		p.Namespace, p.UID, p.ResourceVersion, p.Status.Phase = "a", types.UID(name), "1", phase
		r.put(p, func() {})
		r.syncReaders()
		return src.file(pod.KeyOf(p))
	}
	marks := func(name string) (all int) {
		for i := range 1000 {
			id := objectID{pod.KindConfigMap, pod.Key{Namespace: "a", Name: fmt.Sprintf("%s-%d", name, i)}}
			if r.set.Has(src.objectFile(id)) {
				all++
			}
		}
		return all
	}
	const room = maxObjects / 2 / 1000
	var files []string
	for i := range room {
		files = append(files, put(fmt.Sprint("other", i), v1.PodRunning))
	}
	started, gone := put("started", v1.PodRunning), put("gone", v1.PodRunning)
	put("pending", v1.PodPending)
	if live != room*1000 || marks("started") != 1000 || marks("gone") != 1000 || marks("pending") != 0 {
		t.Errorf("%d are read; of a pod without room, %d and %d of 1000 objects stay, and %d of one that has not started",
			live, marks("started"), marks("gone"), marks("pending"))
	}
	r.remove(gone, "gone")
	r.retry()
	r.syncReaders()
	if marks("started") != 1000 || marks("gone") != 0 || len(r.names[started]) != 0 {
		t.Errorf("of a pod that is gone, %d objects stay, and %d of the other one", marks("gone"), marks("started"))
	}
	r.remove(files[0], "other0")
	r.retry()
	r.syncReaders()
	if len(r.names[started]) != 1000 || live != room*1000 || len(r.held.users) != 0 || marks("other0") != 0 {
		t.Errorf("once there is room, %d of the pod's objects are read, %d in all, and %d are held", len(r.names[started]), live, len(r.held.users))
	}
}

// TestRefuse_ManyStartedPodsWithoutRoom_MarksAreBounded: a user who may set the status of
// pods has the objects of any number of them held. They take no more than objects that are
// read, and leave room for another namespace. None of a refused pod's objects count as
// missing.
func TestRefuse_ManyStartedPodsWithoutRoom_MarksAreBounded(t *testing.T) {
	t.Parallel()
	src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, reader: apiclient.NewReader(apiclient.ReaderConfig{})}
	var last source.Snapshot
	r := &run{
		Source: src, pods: newPods(src), yield: func(s source.Snapshot, _ error) bool { last = s; return true },
		objects: newObjects(func(func(context.Context)) func() { return func() {} }),
	}
	put := func(namespace, name string, phase v1.PodPhase) string {
		names := make([]string, 1000)
		for i := range names {
			names[i] = fmt.Sprintf("%s-%d", name, i)
		}
		p := boundPod(name, "x", naming(names...))
		p.Namespace, p.UID, p.ResourceVersion, p.Status.Phase = namespace, types.UID(namespace+name), "1", phase
		r.put(p, func() {})
		r.syncReaders()
		return src.file(pod.KeyOf(p))
	}
	var files []string
	for i := range 3 * maxObjects / 1000 {
		files = append(files, put("a", fmt.Sprint("pod", i), v1.PodRunning))
	}
	if n := len(r.held.users); n != maxObjects/2 {
		t.Errorf("%d objects are held, want half of %d", n, maxObjects)
	}
	for range 6 { // fill the room for objects that are read
		put("b", fmt.Sprint("other", len(r.known)), v1.PodRunning)
	}
	if n := r.held.used["b"]; n != 1000 {
		t.Errorf("%d objects of another namespace are held, of which %d are read", n, r.used["b"])
	}
	waits := put("a", "waits", v1.PodPending)
	r.flush()
	unread := 0
	for f := range last.Files.All() {
		if f.File == waits {
			unread = len(f.Pods[0].Unread)
		}
	}
	if unread != 1000 {
		t.Errorf("%d of 1000 objects of a pod without room are unread", unread)
	}
	for i, file := range files {
		r.remove(file, types.UID(fmt.Sprint("apod", i)))
	}
	r.retry()
	r.syncReaders()
	if n := r.held.used["a"]; n != 0 {
		t.Errorf("%d objects of pods that are gone are held", n)
	}
}

// TestNoteUnread_PodWithoutRoom_EveryObjectIsUnread: a pod without room names an object that
// another pod has read. When that pod goes, nothing reads the object: the pod without room
// would take an optional one for missing.
func TestNoteUnread_PodWithoutRoom_EveryObjectIsUnread(t *testing.T) {
	t.Parallel()
	src := &Source{cfg: Config{Node: node, Spec: spec("k"), Kubeconfig: "k"}, reader: apiclient.NewReader(apiclient.ReaderConfig{})}
	r := &run{
		Source: src, pods: newPods(src), yield: func(source.Snapshot, error) bool { return true },
		objects: newObjects(func(func(context.Context)) func() { return func() {} }),
	}
	put := func(name string, phase v1.PodPhase, objects ...string) string {
		p := boundPod(name, "x", naming(objects...))
		p.Namespace, p.UID, p.ResourceVersion, p.Status.Phase = "a", types.UID(name), "1", phase
		r.put(p, func() {})
		r.syncReaders()
		return src.file(pod.KeyOf(p))
	}
	put("reader", v1.PodRunning, "shared")
	for _, read := range r.readers {
		read.known = true
	}
	r.used["a"] = maxObjects
	waits := put("waits", v1.PodPending, "shared", "own")
	r.noteUnread()
	if _, refused := r.refused[waits]; !refused || len(r.naming[waits].unread) != 2 {
		t.Errorf("refused %t, unread %v", refused, r.naming[waits].unread)
	}
}
