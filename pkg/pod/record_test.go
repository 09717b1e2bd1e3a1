package pod

import (
	"reflect"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// full is the record of an instance that was stopped and had ended.
func full(want *Spec) Record {
	grace := int64(5)
	return Record{
		Key: want.Key, UID: want.UID(), Want: want, Instance: 2, Attempts: map[string]uint32{"a": 4},
		StartTime: time.Unix(1, 0), StopSince: time.Unix(2, 0), StopGrace: &grace, StopAsked: true, StopReason: "drained",
		Terminal: v1.PodFailed, TerminalReason: "DeadlineExceeded", TerminalMessage: "too long",
		Streaks: map[string]int{"a": 3}, Devices: map[string][]DeviceAllocation{"a": nil}, RestartingAll: true, ContainerNotes: map[string]ContainerNotes{"id": {PreStop: true}},
		Eviction: &Eviction{Instance: 2, Count: 1},
	}
}

func recorded(uid string) *Spec {
	p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", UID: types.UID("uid-" + uid)}}
	return &Spec{Key: KeyOf(p), Pod: p}
}

// holdsOnTo names the fields that a record still has from an instance before: all
// except those that outlive instances, or that Begin and AdoptNewerInstance set.
func holdsOnTo(r Record) (left []string) {
	of := reflect.ValueOf(r)
	for i := range of.NumField() {
		switch name := of.Type().Field(i).Name; name {
		case "Key", "UID", "Want", "Instance", "Attempts", "StartTime", "ContainerNotes", "Eviction":
		default:
			if !of.Field(i).IsZero() {
				left = append(left, name)
			}
		}
	}
	return left
}

// TestRecordBegin_EveryField_IsTried: the tests below would miss a field that the full
// record does not fill in.
func TestRecordBegin_EveryField_IsTried(t *testing.T) {
	t.Parallel()
	of := reflect.ValueOf(full(recorded("1")))
	for i := range of.NumField() {
		if of.Field(i).IsZero() {
			t.Errorf("%s is empty", of.Type().Field(i).Name)
		}
	}
}

// TestRecordBegin_NextInstance_KeepsNumbersOnly: numbers rise over the instances of one
// UID, and begin again with another one.
//
// Shows: I4, C-1.26.15
func TestRecordBegin_NextInstance_KeepsNumbersOnly(t *testing.T) {
	t.Parallel()
	now := time.Unix(9, 0)
	for name, test := range map[string]struct {
		uid      string
		attempts int
	}{
		"same UID":    {"1", 1},
		"another UID": {"2", 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, want := full(recorded("1")), recorded(test.uid)
			if !r.Begin(want, 3, now) {
				t.Fatal("Begin starts another instance")
			}
			if left := holdsOnTo(r); left != nil {
				t.Errorf("the record keeps %v", left)
			}
			if len(r.Attempts) != test.attempts || (r.Eviction != nil) != (test.attempts > 0) || r.Evicted() != nil || r.Want != want || r.UID != want.UID() || r.Instance != 3 || !r.StartTime.Equal(now) {
				t.Errorf("the new instance begins as %+v", r)
			}
			if r.StopSince = now; r.Begin(want, 3, now) || !r.StopSince.Equal(now) {
				t.Error("Begin starts the same instance twice")
			}
		})
	}
}

// TestRecordBegin_PodOfAnAPIServer_StartedWhenTheServerSays shows C-1.26.17.
func TestRecordBegin_PodOfAnAPIServer_StartedWhenTheServerSays(t *testing.T) {
	t.Parallel()
	want := recorded("1")
	heard := metav1.NewTime(time.Unix(5, 0))
	want.Pod.Status.StartTime = &heard
	var static, served Record
	static.Begin(want, 1, time.Unix(9, 0))
	server := *want
	server.Origin.Source = SourceAPI
	served.Begin(&server, 1, time.Unix(9, 0))
	if static.StartTime.Unix() != 9 || served.StartTime.Unix() != 5 {
		t.Errorf("a static pod starts at %v, a server's at %v", static.StartTime, served.StartTime)
	}
}

// TestRecordCatchUp_RuntimeShowsANewerInstance_ForgetsTheOneBefore: the write of the
// newer instance's record failed.
func TestRecordCatchUp_RuntimeShowsANewerInstance_ForgetsTheOneBefore(t *testing.T) {
	t.Parallel()
	show := func(uid string, instance int) Actual {
		return Actual{UID: uid, Sandbox: &Sandbox{Instance: instance}}
	}
	r := full(recorded("1"))
	for name, have := range map[string]Actual{
		"nothing": {}, "the same": show("uid-1", 2), "an older one": show("uid-1", 1), "another pod": show("uid-2", 3),
	} {
		if r.AdoptNewerInstance(have) || len(holdsOnTo(r)) != 10 {
			t.Errorf("%s: AdoptNewerInstance reports a newer instance", name)
		}
	}
	if !r.AdoptNewerInstance(show("uid-1", 3)) || r.Instance != 3 || r.Want != nil || !r.StartTime.IsZero() || holdsOnTo(r) != nil {
		t.Errorf("the newer instance is recorded as %+v", r)
	}
	noted := Record{StartTime: time.Unix(4, 0), Terminal: v1.PodFailed}
	if !noted.AdoptNewerInstance(show("uid-1", 1)) || noted.StartTime.Unix() != 4 || noted.Terminal != "" {
		t.Errorf("AdoptNewerInstance drops what the record had before its first instance: %+v", noted)
	}
}
