package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// busyOnce fails to remove pods as often as left says.
type busyOnce struct {
	*disk
	left int
	gone map[string]bool // the UIDs that it has removed
}

func (b *busyOnce) Forget(ctx context.Context, key pod.Key, uid string) error {
	b.mu.Lock()
	busy := b.left > 0
	if busy {
		b.left--
	} else {
		b.gone[uid] = true
	}
	b.mu.Unlock()
	if busy {
		return errors.New("device or resource busy")
	}
	return b.disk.Forget(ctx, key, uid)
}

// blocks is a Users that fails to release a block as often as left says.
type blocks struct {
	given map[string]bool
	left  int
}

func (b *blocks) Allocate(uid string) (*pod.Users, error) {
	b.given[uid] = true
	return &pod.Users{HostID: 65536, Length: 65536}, nil
}

func (b *blocks) Release(uid string) error {
	if b.left > 0 {
		b.left--
		return errors.New("input/output error")
	}
	delete(b.given, uid)
	return nil
}

// A pod whose UID is edited again and again costs the node one block of user IDs and one
// directory. That holds even if the removal of the older ones fails for a time.
func TestEdit_OlderPodNotRemovedAtOnce_IsRemovedLater(t *testing.T) {
	t.Parallel()
	ownUsers := func(p *v1.Pod) { p.Spec.HostUsers = new(bool) }
	for name, c := range map[string]struct{ directory, users int }{ // failures
		"directory is busy":        {directory: 3},
		"users are not taken back": {users: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				b, u := &busyOnce{disk: m.disk, left: c.directory, gone: map[string]bool{}}, &blocks{given: map[string]bool{}, left: c.users}
				m.alter = func(cfg *Config) { cfg.Volumes, cfg.Users = b, u }
				m.rt.SetHandlers(critest.Handler{UserNamespaces: true})
				m.src.set(mkpod("web", ofUID("own"), ownUsers))
				m.arrive()
				m.expect("web", "Running", true)
				m.src.set(mkpod("web", ofUID("other"), ownUsers))
				m.pass(2 * time.Minute)
				m.expect("web", "Running", true)
				if given := slices.Sorted(maps.Keys(u.given)); !slices.Equal(given, []string{"other"}) || !b.gone["own"] {
					t.Errorf("%v have users, directories of %v were removed", given, b.gone)
				}
			})
		})
	}
}

// A pod claims the UID of a running pod, and then claims another UID, or is removed. The
// directory, record and users of that UID stay with the running pod.
func TestEdit_UIDOfAnotherPod_RemovesNothingOfIt(t *testing.T) {
	t.Parallel()
	ownUsers := func(p *v1.Pod) { p.Spec.HostUsers = new(bool) }
	victim := mkpod("victim", ofUID("own"), ownUsers)
	for name, c := range map[string]struct {
		sets [][]*pod.Spec
		runs bool // the pod that claimed the UID runs in the end
	}{
		"another UID later": {[][]*pod.Spec{{victim}, {victim, mkpod("thief", ofUID("own"))}, {victim, mkpod("thief", ofUID("fresh"))}}, true},
		"removed":           {[][]*pod.Spec{{victim}, {victim, mkpod("thief", ofUID("own"))}, {victim}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				b, u := &busyOnce{disk: m.disk, gone: map[string]bool{}}, &blocks{given: map[string]bool{}}
				m.alter = func(cfg *Config) { cfg.Volumes, cfg.Users = b, u }
				m.rt.SetHandlers(critest.Handler{UserNamespaces: true})
				for i, set := range c.sets {
					m.src.set(set...)
					if i == 0 {
						m.arrive()
					}
					m.pass(2 * time.Minute)
				}
				m.expect("victim", "Running", true)
				if c.runs {
					m.expect("thief", "Running", true)
				}
				if b.gone["own"] || !u.given["own"] || m.disk.records[pod.Key{Namespace: "default", Name: "victim"}].UID != "own" {
					t.Errorf("removed %v, users of %v, record %+v", b.gone, u.given, m.disk.records[pod.Key{Namespace: "default", Name: "victim"}])
				}
			})
		})
	}
}

// ofAnother are records of which that of one UID is another pod's. unread is the error of
// reading it instead.
type ofAnother struct {
	*disk
	uid    string
	unread error
}

var thief = pod.Key{Namespace: "default", Name: "thief"}

func (o *ofAnother) Owner(uid string) (pod.Key, bool, error) {
	if another, unread := o.of(uid); another {
		return thief, unread == nil, unread
	}
	return o.disk.Owner(uid)
}

// of reports whether the record of the UID is another pod's, and the error of reading it.
func (o *ofAnother) of(uid string) (bool, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return uid == o.uid, o.unread
}

func (o *ofAnother) Save(r pod.Record) error {
	if another, unread := o.of(r.UID); another && unread == nil {
		return &pod.OwnerError{UID: r.UID, Owner: thief}
	}
	return o.disk.Save(r)
}

// inPlace are the volumes of pods that have none: they are always ready.
type inPlace struct{ *disk }

func (inPlace) Ready(*pod.Spec, int) (put, current bool, until time.Time) {
	return true, true, time.Time{}
}

// A pod does not start under a UID whose record is another pod's or cannot be read, however often
// it is tried: when the other one goes, everything under the UID is removed from the node.
func TestStart_RecordOfUIDIsAnotherPods_NothingStarts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		volumes func(*disk) Volumes
		unread  error
	}{
		"with volumes":       {func(d *disk) Volumes { return d }, nil},
		"without volumes":    {func(d *disk) Volumes { return inPlace{d} }, nil},
		"it cannot be read":  {func(d *disk) Volumes { return d }, errors.New("input/output error")},
		"unread, no volumes": {func(d *disk) Volumes { return inPlace{d} }, errors.New("input/output error")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				m.alter = func(cfg *Config) {
					cfg.Records, cfg.Volumes = &ofAnother{disk: m.disk, uid: "own", unread: c.unread}, c.volumes(m.disk)
				}
				m.src.set(mkpod("victim", ofUID("own")), mkpod("web"))
				m.arrive()
				m.pass(2 * time.Minute)
				m.expect("web", "Running", true)
				m.expect("victim", "Pending", false)
				if strings.Contains(m.log.String(), "Failed to write records") {
					t.Error("the disk was said to fail")
				}
			})
		})
	}
}

// While the record of a UID cannot be read, nothing under the UID is removed: it may be
// another pod's.
func TestRemove_RecordOfUIDCannotBeRead_RemovesNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		b, records := &busyOnce{disk: m.disk, gone: map[string]bool{}}, &ofAnother{disk: m.disk}
		m.alter = func(cfg *Config) { cfg.Volumes, cfg.Records = b, records }
		m.src.set(mkpod("web", ofUID("own")))
		m.arrive()
		m.expect("web", "Running", true)
		gone := func() bool {
			m.disk.mu.Lock()
			defer m.disk.mu.Unlock()
			return b.gone["own"]
		}
		m.disk.mu.Lock()
		records.uid, records.unread = "own", errors.New("input/output error")
		m.disk.mu.Unlock()
		m.src.set()
		m.pass(time.Minute)
		if gone() {
			t.Error("the directory was removed")
		}
		m.disk.mu.Lock()
		records.uid = ""
		m.disk.mu.Unlock()
		m.pass(time.Minute)
		m.expect("web", "gone", false)
		if !gone() {
			t.Error("the directory was not removed in the end")
		}
	})
}

// A pod of an API server that is refused for its UID, which another pod claims, leaves no
// record under it: the other one starts.
func TestRefuse_UIDOfAnotherPod_RecordsNothingUnderIt(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.src.set(mkpod("victim", ofUID("own"), image("slow-term-20s")))
		m.arrive()
		m.expect("victim", "Running", true)
		m.disk.mu.Lock()
		clear(m.disk.records) // as long as it waits for its start
		m.disk.mu.Unlock()
		m.src.set(mkpod("victim", ofUID("own"), image("slow-term-20s")), ofServer(mkpod("thief", ofUID("own"))))
		m.pass(time.Minute)
		m.expect("thief", "Failed", false)
		if owner, known, _ := m.disk.Owner("own"); known && owner == thief {
			t.Error("the record of the UID is the refused pod's")
		}
	})
}

// The UID of a running pod without a record is edited, as after a disk was full and the agent
// started again: admission judges the new UID. If it is another pod's, the running pod stays.
func TestAdmission_UnrecordedPodWithAnotherUID_IsJudged(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		uid    string // that web is edited to
		server bool   // web is of an API server
		want   string
		starts int
	}{
		"a free UID":                   {"free", false, "Running", 2},
		"that of another pod":          {"own", false, "Running", 1},
		"of a server, that of another": {"own", true, "Failed", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(t *testing.T, m *machine) {
				of := func(uid string) *pod.Spec {
					if web := mkpod("web", ofUID(uid)); !c.server {
						return web
					}
					return ofServer(mkpod("web", ofUID(uid)))
				}
				m.src.set(mkpod("victim", ofUID("own")), of("first"))
				m.arrive()
				m.expect("web", "Running", true)
				m.die()
				m.disk.mu.Lock()
				delete(m.disk.records, in("web"))
				m.disk.mu.Unlock()
				m.src.set(mkpod("victim", ofUID("own")), of(c.uid))
				m.arrive()
				m.pass(2 * time.Minute)
				m.expect("victim", "Running", true)
				m.expect("web", c.want, !c.server)
				if n := starts(m, "web"); n != c.starts || starts(m, "victim") != 1 {
					t.Errorf("web started %d times, want %d, victim %d times", n, c.starts, starts(m, "victim"))
				}
				if owner, _, _ := m.disk.Owner("own"); owner != in("victim") {
					t.Errorf("the record of the UID is that of %s", owner)
				}
			})
		})
	}
}

// asked is a Volumes whose sweep only asks which of the UIDs stay.
type asked struct {
	*disk
	stay map[string]bool
}

func (a asked) Sweep(_ context.Context, keep func(string) bool) ([]string, error) {
	for uid := range a.stay {
		a.stay[uid] = keep(uid)
	}
	return nil, nil
}

// Directories of every UID that an instance of a known pod may have stay.
func TestSweep_OlderInstanceOfAnEditedPod_KeepsItsDirectory(t *testing.T) {
	t.Parallel()
	stay := map[string]bool{"last": false, "allocated": false, "held": false, "recorded": false, "shown": false, "unknown": false}
	var workers sync.WaitGroup
	l := orderLoop(Config{Volumes: asked{stay: stay}})
	l.workers = &workers
	e := l.addEntry(in("web"))
	e.lastWant, e.allocated = mkpod("web", ofUID("last")), mkpod("web", ofUID("allocated"))
	e.hold("held")
	l.noteOrphan(in("db"), orphan{uid: "recorded"})
	found := orphan{uid: "shown"}
	found.ShownUID, found.Layer = "shown", "file:/m"
	l.noteOrphan(in("db"), found)
	l.sweepDirectories(t.Context())
	workers.Wait()
	want := map[string]bool{"last": true, "allocated": true, "held": true, "recorded": true, "shown": true, "unknown": false}
	if !maps.Equal(stay, want) {
		t.Errorf("UIDs whose directories stay: %v", stay)
	}
}

// An API server shows the end of a pod that never ran here. The agent records nothing under the
// pod's UID and does not hold it: a static pod with that UID starts.
func TestEnded_PodNeverRanHere_LeavesItsUIDFree(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		failed := ofServer(mkpod("thief", ofUID("own"), func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }))
		m.src.set(failed)
		m.arrive()
		m.pass(time.Minute)
		if owner, known, _ := m.disk.Owner("own"); known {
			t.Errorf("the record of the UID is that of %s", owner)
		}
		m.src.set(failed, mkpod("victim", ofUID("own")))
		m.pass(time.Minute)
		m.expect("victim", "Running", true)
		m.src.set(mkpod("victim", ofUID("own")))
		m.pass(time.Minute)
		m.expect("victim", "Running", true)
		if !m.put("own") || starts(m, "victim") != 1 {
			t.Errorf("volumes %v, %d starts", m.disk.volumes, starts(m, "victim"))
		}
	})
}

// A static manifest takes the name of an API server's pod, and claims the UID of another pod:
// it is refused, and the server's pod stops, since its server no longer decides about it.
func TestEdit_RefusedManifestOverPodOfServer_PodStops(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		victim := mkpod("victim", ofUID("own"))
		m.src.set(victim, ofServer(mkpod("web", ofUID("first"))))
		m.arrive()
		m.expect("web", "Running", true)
		m.src.set(victim, mkpod("web", ofUID("own")))
		m.pass(2 * time.Minute)
		m.expect("web", "Pending DuplicateUID", false)
		m.expect("victim", "Running", true)
	})
}
