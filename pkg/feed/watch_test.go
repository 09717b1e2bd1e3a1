package feed

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/sorted"
	"github.com/nodectl/nodectl/pkg/source"
)

// specOf returns the desired pod NAME with one container c of the given image, as parsed from
// a/NAME.yaml.
func specOf(name, image string) *pod.Spec {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID("uid-" + name)},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Image: image}}},
	}
	s := &pod.Spec{Key: pod.KeyOf(p), Pod: p, Origin: pod.Origin{Source: "file", Location: "a", File: "a/" + name + ".yaml", Line: 1}}
	s.Hash, s.SandboxHash, s.ContainerHashes = podspec.NewHashes(p)
	return s
}

// batchesOf returns a sequence of batches that waits for each one to be sent.
func batchesOf(feed <-chan podconfig.Batch) func(context.Context) iter.Seq[podconfig.Batch] {
	return func(ctx context.Context) iter.Seq[podconfig.Batch] {
		return func(yield func(podconfig.Batch) bool) {
			for {
				select {
				case b, ok := <-feed:
					if !ok || !yield(b) {
						return
					}
				case <-ctx.Done():
					return
				}
			}
		}
	}
}

func addOf(name string) podconfig.PodUpdate {
	return podconfig.PodUpdate{Op: podconfig.ADD, Source: "file", Location: "a", Pods: []*pod.Spec{specOf(name, "x")}}
}

// layerA is the layer file:a, which has answered, with the error that it cannot be read.
func layerA(err string) []podconfig.LayerState {
	return []podconfig.LayerState{{Name: "file:a", Source: "file", Location: "a", Ready: true, Error: err}}
}

// updateText formats an update as one line.
func updateText(u Update) string {
	line := fmt.Sprintf("%s %s", u.Op, u.Source)
	switch {
	case u.Op == DROPPED:
		line += fmt.Sprintf(" %d", u.Dropped)
	case u.IsPods():
		var names []string
		for _, s := range u.Pods {
			names = append(names, s.Name)
		}
		line += " [" + strings.Join(names, " ") + "]"
	default:
		line += " " + u.Problem.Msg
	}
	for _, flag := range []struct {
		on   bool
		word string
	}{{u.First, "first"}, {u.Resolved, "resolved"}, {u.Last, "last"}} {
		if flag.on {
			line += ", " + flag.word
		}
	}
	return line
}

func TestWatch_ReaderIsLate_GetsTheNumberOfLostUpdates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		feed := make(chan podconfig.Batch)
		state := &podconfig.Merged{Layers: layerA(""), Pods: sorted.Of(specOf("a", "x"), specOf("b", "x"))}
		next, stop := iter.Pull(watch(t.Context(), nil, batchesOf(feed), 4))
		defer stop()
		go func() {
			feed <- podconfig.Batch{Updates: []podconfig.PodUpdate{addOf("first")}, State: state}
		}()
		if u, ok := next(); !ok || updateText(u) != "ADD file [first], first, last" {
			t.Fatalf("first: %+v, %v", u, ok)
		}
		for i := range 12 {
			feed <- podconfig.Batch{Updates: []podconfig.PodUpdate{addOf(fmt.Sprint(i))}, State: state}
		}
		close(feed)
		synctest.Wait()
		var got []string
		for u, ok := next(); ok; u, ok = next() {
			got = append(got, updateText(u))
		}
		// Four of twelve fit; with the fifth, five are lost. DROPPED and SET wait besides the
		// next four, and so on.
		want := []string{"DROPPED * 10", "SET * [a b], last", "ADD file [10], last", "ADD file [11], last"}
		if !slices.Equal(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	})
}

func TestWatchSaysProblemsOnce(t *testing.T) {
	t.Parallel()
	bad := pod.Problem{File: "a/x.yaml", Line: 3, Msg: "bad"}
	worse := pod.Problem{File: "a/x.yaml", Line: 4, Msg: "worse"}
	conflict := func(line int) []podconfig.Conflict {
		return []podconfig.Conflict{{Key: pod.Key{Namespace: "default", Name: "w"}, Winner: pod.Origin{Source: "file", Location: "a", File: "a/w.yaml", Line: 1},
			Loser: pod.Origin{Source: "file", Location: "a", File: "a/v.yaml", Line: line}, Reason: "first path in byte order"}}
	}
	states := []struct {
		state podconfig.Merged
		want  []string
	}{
		{podconfig.Merged{Layers: layerA(""), Problems: []pod.Problem{bad}, Skipped: []pod.Problem{{File: "a/.x", Msg: "dot file"}}}, []string{"REJECT file bad", "NOTICE file dot file, last"}},
		{podconfig.Merged{Layers: layerA(""), Problems: []pod.Problem{bad}}, nil},
		{podconfig.Merged{Layers: layerA(""), Problems: []pod.Problem{worse}}, []string{"REJECT file worse, last"}},
		{podconfig.Merged{Layers: layerA("timeout"), Problems: []pod.Problem{worse}}, []string{"ERROR file timeout, last"}},
		{podconfig.Merged{Layers: layerA("timeout"), Problems: []pod.Problem{worse}}, nil},
		{podconfig.Merged{Layers: layerA("refused"), Problems: []pod.Problem{worse}}, []string{"ERROR file refused, last"}},
		{podconfig.Merged{Layers: layerA("")}, []string{"ERROR file refused, resolved", "REJECT file worse, resolved, last"}},
		{podconfig.Merged{Layers: layerA(""), Conflicts: conflict(1)}, []string{"CONFLICT file loses to a/w.yaml:1, last"}},
		{podconfig.Merged{Layers: layerA(""), Conflicts: conflict(9)}, nil},
		{podconfig.Merged{Layers: layerA("")}, []string{"CONFLICT file loses to a/w.yaml:1, resolved, last"}},
	}
	live := newLive(layerA(""))
	live.begin(time.Now())
	r, _ := live.join(podconfig.Incremental, watchLimit)
	for i, s := range states {
		live.publish(podconfig.Batch{State: &s.state})
		var got []string
		for u, _, _ := live.take(r); u != nil; u, _, _ = live.take(r) {
			got = append(got, updateText(*u))
		}
		if !slices.Equal(got, s.want) {
			t.Errorf("step %d: got %q, want %q", i, got, s.want)
		}
	}
}

func TestWatchEndsWithItsReader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		// No goroutine may be left when the loop ends: otherwise synctest fails the test.
		feed := make(chan podconfig.Batch, 1)
		feed <- podconfig.Batch{Updates: []podconfig.PodUpdate{addOf("a")}, State: &podconfig.Merged{}}
		for u := range watch(t.Context(), nil, batchesOf(feed), 4) {
			if u.Op != podconfig.ADD {
				t.Errorf("got %v", u.Op)
			}
			break
		}
	})
}

// late is a source that answers after a while, once.
type late struct {
	name  string
	after time.Duration
	err   error
}

func (s late) Name() string { return s.name }
func (s late) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		select {
		case <-time.After(s.after):
			yield(source.Snapshot{Revision: 1}, s.err)
			<-ctx.Done()
		case <-ctx.Done():
		}
	}
}

func TestWatchSaysThatASourceHasNotAnswered(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		source late
		want   []string
	}{
		{"it answers late", late{"file:a", 8 * time.Second, nil}, []string{
			"5s ERROR file has not answered since 2000-01-01T00:00:00Z, last", "8s ADD file [], first", "8s ERROR file has not answered since 2000-01-01T00:00:00Z, resolved, last"}},
		{"it fails late", late{"http:u", 6 * time.Second, fmt.Errorf("timeout")}, []string{
			"5s ERROR http has not answered since 2000-01-01T00:00:00Z, last", "6s ERROR http timeout, last"}},
		{"it answers in time", late{"file:a", 4 * time.Second, nil}, []string{"4s ADD file [], first, last"}},
		{"it never answers", late{"file:a", time.Hour, nil}, []string{"5s ERROR file has not answered since 2000-01-01T00:00:00Z, last"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now().UTC() // 2000-01-01
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				var got []string
				for u := range Watch(ctx, podconfig.New(podconfig.Config{Sources: []source.Source{test.source}})) {
					got = append(got, time.Since(begin).String()+" "+updateText(u))
				}
				if !slices.Equal(got, test.want) {
					t.Errorf("got %q, want %q", got, test.want)
				}
			})
		})
	}
}

// TestUnchangedTroublesCostNothing: a directory may hold thousands of files that are no
// manifests; an update of one pod does not compare them.
func TestUnchangedTroublesCostNothing(t *testing.T) {
	before := &podconfig.Merged{Layers: layerA("")}
	for i := range 3000 {
		p := pod.Problem{File: fmt.Sprintf("a/%04d", i), Msg: "x"}
		before.Problems, before.Skipped = append(before.Problems, p), append(before.Skipped, p)
		before.Conflicts = append(before.Conflicts, podconfig.Conflict{Kind: "Pod", Key: pod.Key{Name: p.File}, Reason: "x"})
	}
	after := *before
	if n := testing.AllocsPerRun(10, func() {
		problems(before, &after, time.Time{})
	}); n > 10 {
		t.Errorf("%.0f allocations", n)
	}
	after.Problems = append([]pod.Problem{{File: "a/new", Msg: "y"}}, before.Problems[1:]...)
	var got []string
	for _, u := range problems(before, &after, time.Time{}) {
		got = append(got, updateText(*u))
	}
	if want := []string{"REJECT file x, resolved", "REJECT file y"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if got := NewItems(before.Problems, after.Problems, func(p pod.Problem) pod.Problem { return p }); !slices.Equal(got, after.Problems[:1]) {
		t.Errorf("appeared: %v", got)
	}
}
