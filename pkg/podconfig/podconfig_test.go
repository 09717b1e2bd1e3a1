package podconfig

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

// scripted is a source that delivers its answers, each after a delay, and then ends or
// waits.
type scripted struct {
	name    string
	answers []answer
	ends    bool
}

type answer struct {
	after   time.Duration
	files   []source.File
	skipped string
	err     error
}

func (s *scripted) Name() string { return s.name }

func (s *scripted) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		var revision uint64
		for _, a := range s.answers {
			select {
			case <-time.After(a.after):
			case <-ctx.Done():
				return
			}
			snapshot := source.Snapshot{}
			if a.err == nil {
				revision++
				snapshot = source.Snapshot{Revision: revision, Files: source.FilesOf(a.files...)}
				if a.skipped != "" {
					snapshot.Skipped = []pod.Problem{{File: a.skipped, Msg: "not a manifest"}}
				}
			}
			if !yield(snapshot, a.err) {
				return
			}
		}
		if !s.ends {
			<-ctx.Done()
			yield(source.Snapshot{}, ctx.Err()) // as careless sources do
		}
	}
}

// text writes a batch: its updates and the state of its layers.
func (b Batch) text() string {
	var layers []string
	for _, l := range b.State.Layers {
		if l.Error != "" {
			layers = append(layers, fmt.Sprintf("%s %s since %s", l.Source, l.Error, l.Since.UTC().Format("05")))
		}
		if l.Ended {
			layers = append(layers, l.Source+" ended")
		}
	}
	if len(layers) == 0 {
		return textOf(b.Updates)
	}
	return textOf(b.Updates) + " [" + strings.Join(layers, ", ") + "]"
}

// listen collects the batches until they end, one line each, with the second of each.
func listen(batches iter.Seq[Batch]) string {
	var out strings.Builder
	for b := range batches {
		fmt.Fprintf(&out, "%s %s\n", time.Now().UTC().Format("05"), b.text())
	}
	return out.String()
}

func TestBatches(t *testing.T) {
	timeout, refused := errors.New("timeout"), errors.New("refused")
	tests := []struct {
		name    string
		mode    Mode
		sources []source.Source
		want    string
	}{
		{
			name: "no sources",
			want: "",
		},
		{
			name:    "C-1.2.16 the first set is empty",
			sources: []source.Source{&scripted{name: one, answers: []answer{{}, {after: time.Second}}}},
			want:    "00 ADD{} (file)\n",
		},
		{
			name: "I9 staleness begins, changes its reason and ends",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{files: []source.File{file(one, "a", "A1")}},
				{after: time.Second, err: timeout},
				{after: time.Second, err: timeout},
				{after: time.Second, err: refused},
				{after: time.Second, files: []source.File{file(one, "a", "A1")}},
				{after: time.Second, err: timeout},
				{after: time.Second, files: []source.File{file(one, "a", "B1")}},
			}}},
			want: "00 ADD{A1} (file)\n" +
				"01 — [file timeout since 01]\n" +
				"03 — [file refused since 01]\n" +
				"04 —\n" +
				"05 — [file timeout since 05]\n" +
				"06 REMOVE{A1} (file); ADD{B1} (file)\n",
		},
		{
			name: "an error comes first",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{err: timeout}, {after: time.Second, files: []source.File{file(one, "a", "A1")}},
			}}},
			want: "00 — [file timeout since 00]\n01 ADD{A1} (file)\n",
		},
		{
			name: "an error comes first, then an empty set",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{err: timeout}, {after: time.Second},
			}}},
			want: "00 — [file timeout since 00]\n01 ADD{} (file)\n",
		},
		{
			name: "every source ends; their last sets stay",
			sources: []source.Source{
				&scripted{name: one, ends: true, answers: []answer{{files: []source.File{file(one, "a", "A1")}}, {after: time.Second, err: timeout}}},
				&scripted{name: "stdin:-", ends: true, answers: []answer{{after: 2 * time.Second, files: []source.File{file("stdin:-", "-", "B1")}}}},
			},
			want: "00 ADD{A1} (file)\n" +
				"01 — [file timeout since 01]\n" +
				"01 — [file timeout since 01, file ended]\n" +
				"02 ADD{B1} (stdin) [file timeout since 01, file ended]\n" +
				"02 — [file timeout since 01, file ended, stdin ended]\n",
		},
		{
			name: "problems and conflicts alone make a batch, repetition none",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{files: []source.File{file(one, "a", "A1")}},
				{after: time.Second, files: []source.File{broken("a")}},
				{after: time.Second, files: []source.File{broken("a")}},
				{after: time.Second, files: []source.File{file(one, "a", "A1"), file(one, "b", "A2")}},
				{after: time.Second, files: []source.File{file(one, "a", "A1"), file(one, "b", "A2")}},
			}}},
			want: "00 ADD{A1} (file)\n01 —\n03 —\n",
		},
		{
			name: "a conflict alone makes a batch when it begins and when it ends",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{files: []source.File{file(one, "a", "A1")}},
				{after: time.Second, files: []source.File{file(one, "a", "A1"), file(one, "b", "A2")}},
				{after: time.Second, files: []source.File{file(one, "a", "A1")}},
			}}},
			want: "00 ADD{A1} (file)\n01 —\n02 —\n",
		},
		{
			name: "what is skipped makes a batch",
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{}, {after: time.Second, skipped: "notes.txt"}, {after: time.Second, skipped: "notes.txt"}, {after: time.Second},
			}}},
			want: "00 ADD{} (file)\n01 —\n03 —\n",
		},
		{
			name: "the winner's layer lets go",
			sources: []source.Source{
				&scripted{name: one, answers: []answer{{files: []source.File{file(one, "a", "A1")}}, {after: 2 * time.Second}}},
				&scripted{name: web, answers: []answer{{after: time.Second, files: []source.File{file(web, "w", "A2")}}}},
			},
			want: "00 ADD{A1} (file)\n01 ADD{} (http)\n02 UPDATE{A2} (http)\n",
		},
		{
			name: "C-1.3.2 snapshot", mode: Snapshot,
			sources: []source.Source{&scripted{name: one, answers: []answer{
				{files: []source.File{file(one, "a", "A1s1")}},
				{after: time.Second, files: []source.File{file(one, "a", "A1s2")}},
				{after: time.Second, files: []source.File{file(one, "a", "A2s2", "B1")}},
				{after: time.Second, err: timeout},
			}}},
			want: "00 SET{A1s1} (file)\n01 —\n02 SET{A2s2,B1} (file)\n03 — [file timeout since 03]\n",
		},
		{
			name: "C-1.3.3 snapshot and updates, first set of a layer whose pod wins", mode: SnapshotAndUpdates,
			sources: []source.Source{
				&scripted{name: one, answers: []answer{{after: time.Second, files: []source.File{file(one, "a", "A1")}}}},
				&scripted{name: web, answers: []answer{{files: []source.File{file(web, "w", "A2")}}}},
			},
			want: "00 SET{A2} (http)\n01 SET{A1} (file); UPDATE{A1} (file)\n",
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				check(t, "batches", listen(New(Config{Sources: test.sources, Mode: test.mode}).Batches(ctx)), test.want)
			})
		})
	}
}

// TestBatchesConfigObjects: a config object that changed leads to a batch, one that was
// only read again does not.
func TestBatchesConfigObjects(t *testing.T) {
	holding := func(content string) []source.File {
		return []source.File{{File: "a", Objects: []*pod.Object{object(one, "a", "x", content)}}}
	}
	s := &scripted{name: one, ends: true, answers: []answer{{files: holding("1")}, {files: holding("1")}, {files: holding("2")}}}
	var got []string
	for b := range New(Config{Sources: []source.Source{s}}).Batches(t.Context()) {
		got = append(got, b.State.Objects.At(0).Object.(*v1.ConfigMap).Data["content"])
	}
	check(t, "content", strings.Join(got, " "), "1 2 2") // the last is the end of the source
}

// TestBatchesEnd: however the caller leaves, no goroutine remains (TestMain), and a
// source that is just yielding does not block it.
func TestBatchesEnd(t *testing.T) {
	talkers := func() []source.Source {
		var all []source.Source
		for _, name := range layerNames {
			all = append(all, &scripted{name: name, answers: []answer{{files: []source.File{file(name, "a", "A1")}}, {err: errors.New("x")}, {}}})
		}
		return all
	}
	t.Run("by leaving the loop", func(t *testing.T) {
		for range New(Config{Sources: talkers()}).Batches(t.Context()) {
			break
		}
	})
	t.Run("by its context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		n := 0
		for range New(Config{Sources: talkers()}).Batches(ctx) {
			cancel()
			n++
		}
		if n != 1 {
			t.Errorf("%d batches, want 1", n)
		}
	})
	t.Run("before it began", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		c := New(Config{Sources: talkers()})
		c.Sync()
		for b := range c.Batches(ctx) {
			t.Errorf("a batch after the end: %s", b.text())
		}
	})
	t.Run("and errors that the end causes are not errors of a source", func(t *testing.T) {
		for range 50 { // select picks one of two ready channels at random
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				c := New(Config{Sources: []source.Source{&scripted{name: one, answers: []answer{{}}}, &scripted{name: two}}})
				check(t, "batches", listen(c.Batches(ctx)), "00 ADD{} (file)\n")
			})
		}
	})
}

// Shows: C-1.3.5
func TestC_1_3_5_Sync(t *testing.T) {
	t.Run("before the first message, several at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := New(Config{Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{{after: time.Second}}}}})
			c.Sync()
			c.Sync()
			check(t, "batches", listen(c.Batches(t.Context())), "00 SET{} (*)\n01 ADD{} (file)\n01 — [file ended]\n")
		})
	})
	for _, mode := range []Mode{Incremental, Snapshot, SnapshotAndUpdates} {
		t.Run("is the next batch, "+mode.String(), func(t *testing.T) {
			c := New(Config{Mode: mode, Sources: []source.Source{
				&scripted{name: one, ends: true, answers: []answer{{files: []source.File{file(one, "a", "A1")}}, {files: []source.File{file(one, "a", "A1", "B1")}}}},
			}})
			n, asked := 0, false
			for b := range c.Batches(t.Context()) {
				n++
				if asked {
					check(t, "batch", textOf(b.Updates), "SET{A1} (*)")
					break
				}
				c.Sync()
				asked = true
			}
			if n != 2 {
				t.Errorf("%d batches, want 2", n)
			}
		})
	}
	t.Run("wakes a quiet loop, and is served when every source has ended", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := New(Config{Sources: []source.Source{&scripted{name: one, ends: true, answers: []answer{{}, {after: time.Minute}}}}})
			time.AfterFunc(10*time.Second, c.Sync)
			var got []string
			for b := range c.Batches(t.Context()) {
				got = append(got, b.text())
				if b.State.Layers[0].Ended && len(got) == 3 {
					c.Sync()
				}
			}
			check(t, "batches", strings.Join(got, "; "), "ADD{} (file); SET{} (*); — [file ended]; SET{} (*) [file ended]")
		})
	})
}

func TestOnce(t *testing.T) {
	sources := func() []source.Source {
		return []source.Source{
			&scripted{name: one, answers: []answer{{after: time.Second, files: []source.File{file(one, "a", "A1")}}, {files: []source.File{file(one, "a", "A2")}}}},
			&scripted{name: two, answers: []answer{{err: errors.New("permission denied")}}},
			&scripted{name: web, answers: []answer{{after: time.Hour}}},
			&scripted{name: "stdin:-", ends: true},
		}
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		m := New(Config{Sources: sources()}).Once(ctx)
		check(t, "pods", places(m.Pods.Slice()), "A1=a")
		want := []string{"", "permission denied", "no answer: context deadline exceeded", "source ended without an answer"}
		for i, l := range m.Layers {
			check(t, l.Name, l.Error, want[i])
			if l.Ready != (l.Error == "") {
				t.Errorf("%s: ready %t with error %q", l.Name, l.Ready, l.Error)
			}
		}
		if d := time.Since(start); d != time.Minute {
			t.Errorf("took %s, want until the deadline", d)
		}
		if at := m.Layers[1].Since; !at.Equal(start) {
			t.Errorf("the error began at %s, want %s", at, start)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		m := New(Config{Sources: sources()[:2]}).Once(t.Context())
		check(t, "pods", places(m.Pods.Slice()), "A1=a")
		if d := time.Since(start); d != time.Second {
			t.Errorf("took %s, want until the last of them answered", d)
		}
	})
	if m := New(Config{}).Once(t.Context()); len(m.Layers) != 0 || !m.AllReady() {
		t.Errorf("no sources: %+v", m)
	}
}

// Shows: F43
func TestF43_Once_TwoFilesDefineAKeptPod_ItsFileWins(t *testing.T) {
	s := &scripted{name: one, answers: []answer{{files: []source.File{file(one, "a", "A1"), file(one, "b", "A2")}}}}
	c := New(Config{Sources: []source.Source{s}, Recorded: file(one, "b", "A9").Pods})
	check(t, "pods", places(c.Once(t.Context()).Pods.Slice()), "A2=b")
}

// TestC_1_1_3_TotalOrder has many sources yield concurrently: no reading is lost, and
// each batch starts from the state of the one before.
//
// Shows: C-1.1.3
func TestC_1_1_3_TotalOrder(t *testing.T) {
	const sources, answers = 8, 20
	var all []source.Source
	for i := range sources {
		name := fmt.Sprintf("file:/%d", i)
		s := &scripted{name: name, ends: true}
		for j := range answers {
			s.answers = append(s.answers, answer{files: []source.File{file(name, "f", fmt.Sprintf("%c%d", 'A'+i, j))}})
		}
		all = append(all, s)
	}
	batches := 0
	var before *Merged
	for b := range New(Config{Sources: all}).Batches(t.Context()) {
		if before != nil {
			check(t, "updates", textOf(b.Updates), textOf(Diff(before, b.State)))
		}
		before = b.State
		batches++
	}
	if want := sources * (answers + 1); batches != want {
		t.Errorf("%d batches, want %d", batches, want)
	}
	if got := sortedKeys(before.Pods.Slice()); len(got) != sources {
		t.Errorf("pods %v, want %d", got, sources)
	}
}

func TestParseMode(t *testing.T) {
	for _, m := range []Mode{Incremental, Snapshot, SnapshotAndUpdates} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("ParseMode(%q) = %v, %v", m, got, err)
		}
	}
	if _, err := ParseMode("both"); err == nil {
		t.Error("no error for an unknown mode")
	}
}
