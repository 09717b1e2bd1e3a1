package feed

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/sorted"
)

// mixed is a state whose layers all differ.
func mixed(since time.Time) *podconfig.Merged {
	kept := specOf("kept", "x")
	kept.Origin = pod.Origin{Source: "etcd", Location: "/p", File: "/p/kept"}
	bad := pod.Problem{File: "a/bad.yaml", Line: 2, Msg: "bad"}
	return &podconfig.Merged{
		Pods: sorted.Of(specOf("a", "x"), specOf("b", "x"), kept),
		Layers: []podconfig.LayerState{
			{Name: "file:a", Source: "file", Location: "a", Ready: true, Pods: 2, LastGood: since},
			{Name: "http:u", Source: "http", Location: "u", Ready: true, Error: "timeout", Since: since, LastGood: since},
			{Name: "etcd:/p", Source: "etcd", Location: "/p", Restored: true, Pods: 1, Since: since},
			{Name: "api:s", Source: "api", Location: "s", Since: since},
		},
		Conflicts: []podconfig.Conflict{{Kind: "Pod", Key: pod.Key{Namespace: "default", Name: "a"},
			Winner: pod.Origin{Source: "file", Location: "a", File: "a/a.yaml", Line: 1}, Loser: pod.Origin{Source: "http", Location: "u", File: "u"}, Reason: "earlier layer wins"}},
		Problems: []pod.Problem{bad},
		Skipped:  []pod.Problem{{File: "a/.x", Msg: "dot file"}},
	}
}

func TestLive_BeginsWithTheStateThereIs(t *testing.T) {
	t.Parallel()
	wrong := []string{"ERROR http timeout", "ERROR etcd has not answered since 2000-01-01T00:00:00Z", "ERROR api has not answered since 2000-01-01T00:00:00Z",
		"REJECT file bad", "CONFLICT http loses to a/a.yaml:1", "NOTICE file dot file, last"}
	for mode, want := range map[podconfig.Mode][]string{
		podconfig.Incremental:        {"ADD file [a b], first", "ADD http [], first", "RESTORE etcd [kept]"},
		podconfig.Snapshot:           {"SET * [a b kept]"},
		podconfig.SnapshotAndUpdates: {"SET * [a b kept]"},
	} {
		t.Run(mode.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				live := newLive(mixed(time.Time{}).Layers)
				live.begin(time.Now())
				live.publish(podconfig.Batch{State: mixed(time.Now().UTC())})
				time.Sleep(6 * time.Second)
				var got []string
				for u := range live.Watch(t.Context(), WatchOptions{Mode: mode}) {
					if got = append(got, updateText(u)); u.Last {
						break
					}
				}
				if want := slices.Concat(want, wrong); !slices.Equal(got, want) {
					t.Errorf("got  %q\nwant %q", got, want)
				}
			})
		})
	}
}

func TestLive_NoSourceHasAnswered(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		live := newLive([]podconfig.LayerState{{Name: "api:s", Source: "api", Location: "s"}})
		begin := time.Now().UTC()
		live.begin(begin)
		if s := live.Sources(); len(s) != 1 || s[0].Ready || !s[0].Since.Equal(begin) {
			t.Errorf("sources: %+v", s)
		}
		// Two readers: the first one to notice reports to both, and each gets it once.
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var wg sync.WaitGroup
		defer wg.Wait()
		for range 2 {
			wg.Go(func() {
				var got []string
				for u := range live.Watch(ctx, WatchOptions{}) {
					got = append(got, updateText(u))
				}
				if want := []string{"ERROR api has not answered since 2000-01-01T00:00:00Z, last"}; !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	})
}

func TestLive_Sources(t *testing.T) {
	t.Parallel()
	since := time.Date(2026, 11, 20, 12, 5, 2, 0, time.UTC)
	live := newLive(nil)
	live.begin(since)
	live.publish(podconfig.Batch{State: mixed(since)})
	var got []string
	for _, s := range live.Sources() {
		got = append(got, fmt.Sprintf("%s ready=%v restored=%v error=%q since=%v problems=%d conflicts=%d skipped=%d",
			s.Name, s.Ready, s.Restored, s.Error, !s.Since.IsZero(), len(s.Problems), len(s.Conflicts), len(s.Skipped)))
	}
	want := []string{
		`file:a ready=true restored=false error="" since=false problems=1 conflicts=0 skipped=1`,
		`http:u ready=true restored=false error="timeout" since=true problems=0 conflicts=1 skipped=0`,
		`etcd:/p ready=false restored=true error="" since=true problems=0 conflicts=0 skipped=0`,
		`api:s ready=false restored=false error="" since=true problems=0 conflicts=0 skipped=0`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

func TestLive_ManyProblemsAreNoOverflow(t *testing.T) {
	t.Parallel()
	state := &podconfig.Merged{Layers: layerA("")}
	for i := range 50 {
		state.Problems = append(state.Problems, pod.Problem{File: fmt.Sprintf("a/%03d.yaml", i), Msg: "bad"})
	}
	live := newLive(nil)
	live.begin(time.Now())
	live.publish(podconfig.Batch{State: state})
	r, _ := live.join(podconfig.Incremental, 4)
	// The reader takes nothing. It has room for four, then loses five, and then has room for
	// four more beside DROPPED and SET.
	for i := range 9 {
		live.publish(podconfig.Batch{State: state, Updates: []podconfig.PodUpdate{addOf(fmt.Sprint(i))}})
	}
	var got []string
	for u, _, _ := live.take(r); u != nil; u, _, _ = live.take(r) {
		if u.Op != REJECT {
			got = append(got, updateText(*u))
		}
	}
	want := []string{"DROPPED * 5", "SET * []", "ADD file [5], last", "ADD file [6], last", "ADD file [7], last", "ADD file [8], last"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// applied is the set that a reader builds from updates.
type applied map[pod.Key]*pod.Spec

func (a applied) take(u Update) {
	if u.Op == podconfig.SET {
		clear(a)
	}
	for _, s := range u.Pods {
		if u.Op == podconfig.REMOVE {
			delete(a, s.Key)
		} else {
			a[s.Key] = s
		}
	}
}

// TestLive_EveryReaderArrivesAtTheState lets readers in every mode join at any time and read at any
// pace, also too slowly. Each has the final state if it applies the updates that it gets.
func TestLive_EveryReaderArrivesAtTheState(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		live := newLive(layerA(""))
		live.begin(time.Now())
		state := &podconfig.Merged{Layers: layerA("")}
		live.publish(podconfig.Batch{State: state, Layer: "file:a", First: true, Updates: podconfig.Diff(nil, state)})
		type following struct {
			r    *reader
			mode podconfig.Mode
			have applied
		}
		var readers []*following
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				f := &following{mode: podconfig.Mode(rapid.IntRange(0, 2).Draw(t, "mode")), have: applied{}}
				r, there := live.join(f.mode, 3)
				for _, u := range there() {
					f.have.take(*u)
				}
				f.r = r
				readers = append(readers, f)
			case 1, 2:
				var pods []*pod.Spec
				for _, name := range []string{"a", "b", "c"} {
					if image := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, name); image != "" {
						s := specOf(name, image)
						if old := state.Pod(s.Key); old != nil && old.Hash == s.Hash {
							s = old
						}
						pods = append(pods, s)
					}
				}
				next := &podconfig.Merged{Layers: layerA(""), Pods: sorted.Of(pods...)}
				live.publish(podconfig.Batch{State: next, Layer: "file:a", Updates: podconfig.Diff(state, next)})
				state = next
			default:
				for _, f := range readers {
					for range rapid.IntRange(0, 3).Draw(t, "taken") {
						if u, _, _ := live.take(f.r); u != nil {
							f.have.take(*u)
						}
					}
				}
			}
		}
		want := applied{}
		for s := range state.Pods.All() {
			want[s.Key] = s
		}
		for _, f := range readers {
			for u, _, _ := live.take(f.r); u != nil; u, _, _ = live.take(f.r) {
				f.have.take(*u)
			}
			if !maps.Equal(f.have, want) {
				t.Fatalf("a reader in mode %s has %v, want %v", f.mode, f.have, want)
			}
		}
	})
}

func TestLive_ReaderIsStuck_DelaysNoOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const count = 3 * watchLimit
		live := newLive(nil)
		state := &podconfig.Merged{Layers: layerA(""), Pods: sorted.Of(specOf("a", "x"))}
		stuck, stop := iter.Pull(live.Watch(t.Context(), WatchOptions{}))
		defer stop()
		live.publish(podconfig.Batch{State: state, Updates: []podconfig.PodUpdate{addOf("hello")}})
		if u, _ := stuck(); u.Op != podconfig.ADD {
			t.Fatalf("got %s", updateText(u))
		}
		var wg sync.WaitGroup
		for range 99 {
			wg.Go(func() {
				next := 0
				for u := range live.Watch(t.Context(), WatchOptions{}) {
					switch {
					case u.First:
					case updateText(u) != fmt.Sprintf("ADD file [%d], last", next):
						t.Errorf("got %s, want %d", updateText(u), next)
						return
					default:
						next++
					}
				}
				if next != count {
					t.Errorf("a reader got %d updates, want %d", next, count)
				}
			})
		}
		synctest.Wait()
		begin := time.Now()
		for i := range count {
			live.publish(podconfig.Batch{State: state, Updates: []podconfig.PodUpdate{addOf(fmt.Sprint(i))}})
			if i%500 == 0 {
				synctest.Wait() // the other readers read meanwhile
			}
		}
		live.end()
		wg.Wait()
		if d := time.Since(begin); d != 0 {
			t.Errorf("publishing waited %s", d)
		}
		lost, later := 0, 0
		for u, ok := stuck(); ok; u, ok = stuck() {
			switch {
			case u.Op == DROPPED && lost == 0 && later == 0:
				lost = u.Dropped
			case u.Op == podconfig.SET:
				if later > 0 || updateText(u) != "SET * [a], last" {
					t.Errorf("got %s after %d updates", updateText(u), later)
				}
			case u.Op == podconfig.ADD && lost > 0:
				later++
			default:
				t.Errorf("got %s", updateText(u))
			}
		}
		if lost+later != count || lost == 0 {
			t.Errorf("%d lost and %d sent make %d, want %d", lost, later, lost+later, count)
		}
	})
}

// BenchmarkLive_Publish measures one update.
func BenchmarkLive_Publish(b *testing.B) {
	for _, readers := range []int{0, 1, 100} {
		b.Run(fmt.Sprintf("readers=%d", readers), func(b *testing.B) {
			live := newLive(nil)
			live.begin(time.Now())
			state := &podconfig.Merged{Layers: layerA("")}
			batch := podconfig.Batch{State: state, Updates: []podconfig.PodUpdate{addOf("a")}}
			ctx, cancel := context.WithCancel(b.Context())
			var wg sync.WaitGroup
			defer wg.Wait()
			defer cancel()
			for range readers {
				wg.Go(func() {
					for range live.Watch(ctx, WatchOptions{}) {
					}
				})
			}
			b.ReportAllocs()
			for b.Loop() {
				live.publish(batch)
			}
		})
	}
}
