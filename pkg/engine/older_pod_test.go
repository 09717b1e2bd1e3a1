package engine

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
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
	if b.left > 0 {
		b.left--
		return errors.New("device or resource busy")
	}
	b.gone[uid] = true
	return b.disk.Forget(ctx, key, uid)
}

// blocks is a Users that fails to release a block as often as left says.
type blocks struct {
	given map[string]bool
	left  int
}

func (b *blocks) Give(uid string) (*pod.Users, error) {
	b.given[uid] = true
	return &pod.Users{HostID: 65536, Length: 65536}, nil
}

func (b *blocks) Take(uid string) error {
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

// ofAnother are records of which that of one UID is another pod's.
type ofAnother struct {
	*disk
	uid string
}

func (o ofAnother) Save(r pod.Record) error {
	if r.UID == o.uid {
		return &pod.OwnerError{UID: r.UID, Owner: pod.Key{Namespace: "default", Name: "thief"}}
	}
	return o.disk.Save(r)
}

// A pod does not start under a UID whose record is another pod's: when the other one goes,
// what the node keeps under the UID is removed.
func TestStart_RecordOfUIDIsAnotherPods_NothingStarts(t *testing.T) {
	t.Parallel()
	bubble(t, func(t *testing.T, m *machine) {
		m.alter = func(cfg *Config) { cfg.Records = ofAnother{m.disk, "own"} }
		m.src.set(mkpod("victim", ofUID("own")), mkpod("web"))
		m.arrive()
		m.pass(2 * time.Minute)
		m.expect("web", "Running", true)
		m.expect("victim", "Pending", false)
		if state := m.rt.State(); strings.Contains(state, "victim") {
			t.Errorf("runtime:\n%s", state)
		}
	})
}
