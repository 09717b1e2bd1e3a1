package plan

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
)

// foundSpec returns a pod web with a UID and a hash, of a layer "kind:x".
func foundSpec(kind, uid, hash string) *pod.Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID(uid)}}
	return &pod.Spec{Key: pod.KeyOf(p), Pod: p, Hash: hash, Origin: pod.Origin{Source: kind, Location: "x"}}
}

// Shows: I9, C-1.2.9, C-1.3.8
func TestDelayed_LayerHasNotAnswered_PodStaysAsItIs(t *testing.T) {
	t.Parallel()
	want, older := foundSpec("api", "u1", "new"), foundSpec("api", "u1", "old")
	deleted := foundSpec("api", "u1", "new")
	deleted.Pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	silent := podconfig.LayerState{Name: "api:x", Source: "api", Restored: true}
	ready := podconfig.LayerState{Name: "api:x", Source: "api", Ready: true}
	earlier := podconfig.LayerState{Name: "file:x", Source: "file"}
	restored := podconfig.LayerState{Name: "file:x", Source: "file", Restored: true}
	for name, c := range map[string]struct {
		layers []podconfig.LayerState
		want   *pod.Spec
		found  FoundPod
		result *Delay
	}{
		"it has answered":                              {[]podconfig.LayerState{ready}, want, FoundPod{Layer: "api:x", Spec: older, Running: true}, nil},
		"it runs as desired":                           {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", Spec: want, Running: true}, nil},
		"it runs otherwise":                            {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", Spec: older, Running: true}, &Delay{Layer: "api:x", As: older}},
		"it runs without a record, same UID":           {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", ShownUID: "u1", Running: true}, nil},
		"it runs without a record, other UID":          {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", ShownUID: "u0", Running: true}, &Delay{Layer: "api:x"}},
		"it does not run":                              {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", Spec: want}, &Delay{Layer: "api:x"}},
		"its stop had begun":                           {[]podconfig.LayerState{silent}, want, FoundPod{Layer: "api:x", Spec: want, Running: true, Stopping: true}, &Delay{Layer: "api:x", Stop: true}},
		"its stop had begun, and it's deleted":         {[]podconfig.LayerState{silent}, deleted, FoundPod{Layer: "api:x", Spec: want, Running: true, Stopping: true}, nil},
		"an earlier layer defined it":                  {[]podconfig.LayerState{earlier, ready}, want, FoundPod{Layer: "file:x", Spec: older}, &Delay{Layer: "file:x"}},
		"an earlier restored layer does not define it": {[]podconfig.LayerState{restored, ready}, want, FoundPod{Layer: "file:x", Spec: older}, nil},
		"the same, and the pod runs":                   {[]podconfig.LayerState{restored, ready}, want, FoundPod{Layer: "file:x", Spec: older, Running: true}, &Delay{Layer: "file:x"}},
		"a later layer defined it":                     {[]podconfig.LayerState{ready, earlier}, want, FoundPod{Layer: "file:x", Spec: older, Running: true}, nil},
	} {
		got := Delayed(&podconfig.Merged{Layers: c.layers}, c.want, c.found, map[string]bool{"api": true})
		if (got == nil) != (c.result == nil) || got != nil && *got != *c.result {
			t.Errorf("%s: %+v, want %+v", name, got, c.result)
		}
	}
	// A source that is not required to be ready starts its pods from the restored set.
	if got := Delayed(&podconfig.Merged{Layers: []podconfig.LayerState{silent}}, want, FoundPod{Layer: "api:x"}, nil); got != nil {
		t.Errorf("not required: %+v", got)
	}
}

func TestRecordsOf_SeveralRecordsOfOnePod_ShownThenNewestCounts(t *testing.T) {
	t.Parallel()
	key := pod.Key{Namespace: "default", Name: "web"}
	record := func(uid string, instance int) pod.Record {
		return pod.Record{Key: key, UID: uid, Instance: instance, Want: foundSpec("file", uid, "x")}
	}
	all := []pod.Record{record("u1", 1), record("u3", 3), record("u2", 2)}
	if got := RecordsOf(nil, all)[key].UID; got != "u3" {
		t.Errorf("nothing is shown: %s", got)
	}
	if got := RecordsOf([]pod.Actual{{Key: key, UID: "u2"}}, all)[key].UID; got != "u2" {
		t.Errorf("u2 is shown: %s", got)
	}
}

func TestForbiddenBy_PodIsDeleted_IsNotForbidden(t *testing.T) {
	t.Parallel()
	no := func(*pod.Spec) string { return "no" }
	want := foundSpec("file", "u1", "x")
	if got := ForbiddenBy(no, want); got != "no" {
		t.Errorf("got %q", got)
	}
	deleted := foundSpec("file", "u1", "x")
	deleted.Pod.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)}
	if got := ForbiddenBy(no, deleted) + ForbiddenBy(nil, want) + ForbiddenBy(no, nil); got != "" {
		t.Errorf("got %q", got)
	}
}
