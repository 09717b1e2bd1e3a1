package source_etcd

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/nodectl/nodectl/pkg/source/etcd"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// soon shortens the time before the confirming list.
func soon(c *etcd.Config) { c.Confirm = 300 * time.Millisecond }

// until receives words until a set holds exactly contents.
func until(t testing.TB, l *sourcetest.Listener, contents ...string) sourcetest.Result {
	t.Helper()
	want := strings.Join(contents, " ")
	for {
		if w := l.Next(); w.Err == nil && strings.Join(w.Contents(), " ") == want {
			return w
		}
	}
}

// says fails the test unless the next word is an error with these words.
func says(t testing.TB, l *sourcetest.Listener, words string) {
	t.Helper()
	if err := l.Error(); !strings.Contains(err.Error(), words) {
		t.Errorf("error %q, want %q", err, words)
	}
}

// failsWith receives yields until one is an error with these words; others on the
// way must be errors too.
func failsWith(t testing.TB, l *sourcetest.Listener, words string) {
	t.Helper()
	for !strings.Contains(l.Error().Error(), words) {
	}
}

// Shows: F70
func TestF70_OutageKeepsEverything(t *testing.T) {
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	e.Put(t, prefix+"b", "pod two x")
	n := newNetwork(t, e.Endpoints[0])
	l := listen(t, prefix, []string{n.url})
	first := l.Set()
	n.cut()
	says(t, l, "connection closed")
	n.looked() // while the looks are not rare yet
	e.Restart(t)
	e.Put(t, prefix+"c", "pod three x")
	e.Delete(t, prefix+"b")
	n.mend()
	w := l.Set()
	w.Holds(t, "one", "three")
	w.Names(t, "three", "two")
	if w.Pod("one") != first.Pod("one") {
		t.Error("the unchanged pod is another pointer")
	}
}

// The source detects a hanging member by its missing answers.
//
// Shows: F70
func TestF70_HungMember(t *testing.T) {
	t.Parallel()
	e, prefix := cluster.StartEtcd(t, cluster.EtcdOptions{}), own(t)
	e.Put(t, prefix+"a", "pod one x")
	l := listen(t, prefix, e.Endpoints, func(c *etcd.Config) { c.Timeout = time.Second })
	until(t, l, "one") // a busy member may be silent by itself, here and below
	e.Put(t, prefix+"a", "pod two x")
	until(t, l, "two") // the watch is there
	e.Members[0].Pause(t)
	says(t, l, "timeout")
	e.Members[0].Resume(t)
	w := until(t, l, "two")
	w.Names(t)
}

// Changes made while members stop and start are in the set at the end.
//
// Shows: F70
func TestF70_NoGapsUnderRestarts(t *testing.T) {
	e, prefix := start(t)
	e.Put(t, prefix+"start", "pod start x")
	n := newNetwork(t, e.Endpoints[0])
	l := listen(t, prefix, []string{n.url}, soon)
	l.Set()
	seed := rand.Uint64()
	t.Logf("seed of the changes: %d", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	holds := map[string]int{}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range 400 {
			key := fmt.Sprintf("p%d", draw.IntN(20))
			if draw.IntN(3) == 0 {
				e.Delete(t, prefix+key)
				delete(holds, key)
			} else {
				e.Put(t, prefix+key, fmt.Sprintf("pod %s %d", key, i))
				holds[key] = i
			}
			switch i % 100 {
			case 20:
				n.cut()
			case 60:
				n.mend()
			case 80:
				e.Restart(t)
			}
		}
		e.Put(t, prefix+"end", "pod end x")
	})
	var last sourcetest.Result
	for last.Err != nil || last.Pod("end") == nil {
		last = l.Next()
		if last.Err == nil && last.Pod("start") == nil {
			t.Error("an unchanged pod is missing")
		}
	}
	wg.Wait()
	want := []string{"start", "end"}
	for key, i := range holds {
		want = append(want, key)
		f, _ := sourcetest.Parse("etcd", prefix)(fmt.Appendf(nil, "pod %s %d", key, i), "")
		if p := last.Pod(key); p != nil && p.Hash != f.Pods[0].Hash {
			t.Errorf("pod %s is an older one", key)
		}
	}
	last.Holds(t, want...)
}

// Shows: F71
func TestF71_CompactionWhileAway(t *testing.T) {
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	e.Put(t, prefix+"b", "pod two x")
	n := newNetwork(t, e.Endpoints[0])
	l := listen(t, prefix, []string{n.url})
	l.Set()
	n.cut()
	_ = l.Error()
	e.Put(t, prefix+"a", "pod one y")
	e.Delete(t, prefix+"b")
	e.Put(t, "/elsewhere", "x")
	e.Compact(t)
	n.mend()
	w := l.Set()
	w.Holds(t, "one")
	w.Names(t, "one", "two")
}

// Between a list and its watch, or behind a slow reader, etcd may compact the watch's first
// revision.
//
// Shows: F71
func TestF71_CompactionBeforeTheWatch(t *testing.T) {
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	e.Put(t, prefix+"b", "pod two x")
	s := newSource(t, prefix, e.Endpoints)
	words := 0
	for snapshot, err := range s.Sets(t.Context()) {
		w := sourcetest.Result{Snapshot: snapshot, Err: err}
		if words++; words == 1 {
			w.Holds(t, "one", "two")
			e.Delete(t, prefix+"b")
			e.Put(t, prefix+"c", "pod three x")
			e.Compact(t)
			continue
		}
		w.Holds(t, "one", "three")
		w.Names(t, "three", "two")
		break
	}
	if words != 2 {
		t.Errorf("%d words, want 2", words)
	}
}

// Shows: F71
func TestF71_RestoredFromBackup(t *testing.T) {
	for name, c := range map[string]struct {
		after func(e *cluster.Etcd, prefix string) // the changes of the restored etcd
		why   string
		holds []string
	}{
		"older":                {func(*cluster.Etcd, string) {}, "revision is lower than before", []string{"one"}},
		"older and written to": {func(e *cluster.Etcd, prefix string) { e.Put(t, prefix+"c", "pod three y") }, "revision is lower than before", []string{"one", "three"}},
		"grown past what it was": {func(e *cluster.Etcd, prefix string) {
			for i := range 20 {
				e.Put(t, prefix+"c", fmt.Sprintf("pod three %d", i))
			}
			e.Put(t, prefix+"b", "pod two again")
			e.Put(t, "/elsewhere", "")
			e.Delete(t, prefix+"b")
		}, "history differs from the one read before", []string{"one", "three"}},
	} {
		t.Run(name, func(t *testing.T) {
			e, prefix := start(t)
			e.Put(t, prefix+"a", "pod one x")
			backup := e.Snapshot(t)
			for i := range 5 {
				e.Put(t, prefix+"b", fmt.Sprintf("pod two %d", i))
			}
			n := newNetwork(t, e.Endpoints[0])
			l := listen(t, prefix, []string{n.url}, soon)
			first := l.Set()
			n.cut()
			_ = l.Error()
			e.Restore(t, backup)
			c.after(e, prefix)
			n.mend()
			says(t, l, c.why)
			w := l.Set()
			w.Holds(t, c.holds...)
			if w.Pod("one") != first.Pod("one") {
				t.Error("the unchanged pod is another pointer")
			}
			e.Put(t, prefix+"d", "pod four x")
			l.Set().Names(t, "four")
		})
	}
}

// The source confirms deletions that it reads in another history.
//
// Shows: F71
func TestF71_RestoredAndGrownPastIsFoundByItsHistory(t *testing.T) {
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	backup := e.Snapshot(t)
	for i := range 5 {
		e.Put(t, prefix+"b", fmt.Sprintf("pod two %d", i))
	}
	n := newNetwork(t, e.Endpoints[0])
	l := listen(t, prefix, []string{n.url}, soon)
	l.Set()
	n.cut()
	_ = l.Error()
	e.Restore(t, backup)
	e.Put(t, prefix+"c", "pod three x")
	for range 20 {
		e.Put(t, "/elsewhere", "")
	}
	n.mend()
	says(t, l, "history differs from the one read before")
	w := l.Set()
	w.Holds(t, "one", "three")
	w.Names(t, "three", "two")
}

// The source does not trust a member of another cluster; when ours is back, nothing has
// changed.
//
// Shows: F71
func TestF71_AnotherClusterForAMoment(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	other := other(t)
	e.Put(t, prefix+"a", "pod one x")
	ours, theirs := newNetwork(t, e.Endpoints[0]), newNetwork(t, other.Endpoints[0])
	theirs.cut()
	l := listen(t, prefix, []string{ours.url, theirs.url}, func(c *etcd.Config) { c.Confirm = time.Hour })
	l.Set().Holds(t, "one")
	ours.cut()
	says(t, l, "connection closed")
	theirs.mend()
	says(t, l, "cluster's ID has changed")
	ours.mend()
	theirs.cut()
	w := until(t, l, "one")
	w.Names(t)
}

// The same keys in another cluster remove nothing, and need no confirmation.
//
// Shows: F71
func TestF71_MovedToAnotherCluster(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	other := other(t)
	for _, to := range []*cluster.Etcd{e, other} {
		to.Put(t, prefix+"a", "pod one x")
	}
	other.Put(t, prefix+"b", "pod two x")
	ours, theirs := newNetwork(t, e.Endpoints[0]), newNetwork(t, other.Endpoints[0])
	theirs.cut()
	l := listen(t, prefix, []string{ours.url, theirs.url}, func(c *etcd.Config) { c.Confirm = time.Hour })
	l.Set().Holds(t, "one")
	theirs.mend()
	ours.cut()
	w := until(t, l, "one", "two")
	w.Names(t, "two")
	other.Delete(t, prefix+"a")
	l.Set().Names(t, "one")
}

// As long as one member can be reached, and there is a quorum, the source reports no failure.
//
// Shows: F70
func TestF70_OneMemberOfThreeIsNoOutage(t *testing.T) {
	t.Parallel()
	// Busy members do not elect a leader again: meanwhile there would be none to ask.
	prefix := own(t)
	e := cluster.StartEtcd(t, cluster.EtcdOptions{Members: 3, Args: []string{"--election-timeout=10000", "--heartbeat-interval=500"}})
	var ways []*network
	var urls []string
	for _, endpoint := range e.Endpoints {
		n := newNetwork(t, endpoint)
		ways, urls = append(ways, n), append(urls, n.url)
	}
	e.Put(t, prefix+"a", "pod zero x")
	l := listen(t, prefix, urls)
	l.Set()
	for i, n := range append(ways, ways...) {
		n.cut()
		e.Put(t, prefix+"a", fmt.Sprintf("pod one %d", i))
		l.Set().Holds(t, "one")
		n.mend()
	}
}

func TestOneTransactionIsOneSet(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	l := listen(t, prefix, e.Endpoints)
	l.Set()
	_, err := e.Client(t).Txn(t.Context()).Then(
		clientv3.OpDelete(prefix+"a"), clientv3.OpPut(prefix+"b", "pod one x"), clientv3.OpPut(prefix+"c", "pod two x"),
	).Commit()
	if err != nil {
		t.Fatal(err)
	}
	w := l.Set()
	w.Holds(t, "one", "two")
	w.Names(t, "one", "two")
}

// More keys than fit on a page are one set, at one revision.
func TestManyKeysAreOneSet(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	const count = 5500
	for i := 0; i < count; i += 100 {
		var puts []clientv3.Op
		for j := i; j < i+100; j++ {
			puts = append(puts, clientv3.OpPut(fmt.Sprintf("%sk%05d", prefix, j), fmt.Sprintf("pod p%05d x", j)))
		}
		if _, err := e.Client(t).Txn(t.Context()).Then(puts...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	n := newNetwork(t, e.Endpoints[0])
	l := listen(t, prefix, []string{n.url})
	first := l.Set()
	if got := len(first.Contents()); got != count {
		t.Fatalf("%d pods, want %d", got, count)
	}
	n.cut()
	_ = l.Error()
	e.Put(t, prefix+"k00007", "pod p00007 y")
	e.Delete(t, prefix+"k05499")
	n.mend()
	w := l.Set()
	w.Names(t, "p00007", "p05499")
}

// A value larger than an answer affects its own key only.
func TestLargeValues(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	for i := range 200 { // 20 MB together
		e.Put(t, fmt.Sprintf("%sk%03d", prefix, i), fmt.Sprintf("pod p%03d x\n#%s", i, strings.Repeat(" ", 100_000)))
	}
	e.Put(t, prefix+"k100-11M", strings.Repeat("#\n", 11<<19))
	e.Put(t, prefix+"k100-20M", strings.Repeat("#\n", 20<<19))
	l := listen(t, prefix, e.Endpoints)
	check := func(w sourcetest.Result, pods int) {
		t.Helper()
		n := 0
		for f := range w.Files.All() {
			switch {
			case strings.HasSuffix(f.File, "M"):
				if len(f.Problems) != 1 || f.Problems[0].Msg != "is larger than 10 MiB, the limit for one file" {
					t.Errorf("%s: %+v", f.File, f.Problems)
				}
			case len(f.Pods) == 1:
				n++
			}
		}
		if n != pods {
			t.Errorf("%d pods, want %d", n, pods)
		}
	}
	check(l.Set(), 200)
	e.Put(t, prefix+"k200-21M", strings.Repeat("#\n", 21<<19)) // larger than a watch's answer
	check(l.Set(), 200)
	e.Put(t, prefix+"k201", "pod p201 x")
	w := l.Set()
	check(w, 201)
	w.Names(t, "p201")
}

// Events that piled up behind a slow reader arrive in parts, and complete.
func TestEventsInPartsAreWhole(t *testing.T) {
	t.Parallel()
	e, prefix := start(t)
	e.Put(t, prefix+"a", "pod one x")
	ctx, cancel := context.WithTimeout(t.Context(), wait.Limit)
	defer cancel()
	words, last := 0, 0
	for snapshot, err := range newSource(t, prefix, e.Endpoints).Sets(ctx) {
		if err != nil {
			t.Fatal(err)
		}
		if words++; words <= 2 { // the second is behind the watch's beginning
			for i := range 60 {
				e.Put(t, fmt.Sprintf("%sk%d-%d", prefix, words, i), fmt.Sprintf("pod p%d-%d x\n#%s", words, i, strings.Repeat(" ", 100_000)))
			}
		}
		if last = len(sourcetest.Result{Snapshot: snapshot}.Contents()); last == 121 {
			break
		}
	}
	if last != 121 {
		t.Errorf("%d pods in %d words, want 121", last, words)
	}
}
