// Package sourcetest is the test suite for the contract of source.Source. It has one named subtest for each
// rule. Every source passes it.
//
// The test of a source makes a Fixture, which has a place that the test can change, and calls Run. The suite
// does not depend on how a source reads its place.
package sourcetest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/test/wait"
)

// Fixture is a source and the place that it reads. The place is empty at first. Its manifests are in the
// format of Parse.
type Fixture struct {
	Source source.Source
	// Put adds or replaces the manifest with this name in one step.
	Put func(name, text string)
	// Remove removes the manifest with this name.
	Remove func(name string)
	// Break makes the place unreadable; Mend undoes that.
	Break, Mend func()
	// Looked returns once the source has read the place a few more times. It is nil if the place cannot
	// count readings.
	Looked func()
	// PodsOnly says that the place can have only pods.
	PodsOnly bool
	// Once says that the source ends after its first yield. Run then calls Put and Break only before
	// Sets.
	Once bool
}

// Run tests the sources of the fixtures that make returns. It calls make once for each rule.
func Run(t *testing.T, make func(t *testing.T) Fixture) {
	var once bool
	rule := func(name string, check func(t *testing.T, f Fixture)) {
		t.Run(name, func(t *testing.T) {
			before := goleak.IgnoreCurrent()
			t.Cleanup(func() { goleak.VerifyNone(t, before) })
			f := make(t)
			once = f.Once
			check(t, f)
		})
	}
	rule("NameIsKindAndLocation", nameIsKindAndLocation)
	rule("FirstSetIsComplete", firstSetIsComplete)
	rule("EmptyPlaceIsASet", emptyPlaceIsASet)
	rule("BrokenAtFirstIsAnError", brokenAtFirst)
	rule("GarbageAtFirstIsAProblem", garbageAtFirst)
	rule("EndsWhenTheCallerLeaves", endsWhenTheCallerLeaves)
	if once {
		rule("EndsAfterItsSet", endsAfterItsSet)
		return
	}
	rule("EveryChangeYieldsTheCompleteSet", everyChange)
	rule("UnchangedPodsAreTheSamePointers", samePointers)
	rule("OlderSnapshotsAreNotWrittenTo", immutable)
	rule("GarbageIsAProblemNeverAnEmptySet", garbage)
	rule("RejectedPodIsAProblemOfItsOwn", rejected)
	rule("BrokenPlaceIsAnErrorNeverAnEmptySet", brokenLater)
	rule("LastManifestRemovedIsAnEmptySet", lastRemoved)
	rule("EndsWithTheContext", endsWithTheContext)
	rule("EndsWithTheContextWhileBroken", endsWhileBroken)
}

// Result is one yield of a source: a set or an error.
type Result struct {
	source.Snapshot
	Err error
}

// Listener receives a source's yields one by one.
type Listener struct {
	t      testing.TB
	yields chan Result // capacity 0: the ranging goroutine sends, Next receives
	cancel context.CancelFunc
	last   uint64 // revision of the last set
}

// Listen ranges over s in a goroutine that ends before the test does.
func Listen(t testing.TB, s source.Source) *Listener {
	ctx, cancel := context.WithCancel(context.Background())
	l := &Listener{t: t, yields: make(chan Result), cancel: cancel}
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(l.yields)
		for snapshot, err := range s.Sets(ctx) {
			select {
			case l.yields <- Result{snapshot, err}:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return l
}

// Next returns the next yield. It fails the test if none comes, or if the sequence has ended. A set must have
// the next revision.
func (l *Listener) Next() Result {
	l.t.Helper()
	select {
	case w, ok := <-l.yields:
		if !ok {
			l.t.Fatal("the sequence ended")
		}
		if w.Err == nil {
			if l.last++; w.Revision != l.last {
				l.t.Errorf("revision %d, want %d", w.Revision, l.last)
			}
			names := []string{}
			for f := range w.Files.All() {
				names = append(names, f.File)
			}
			if !slices.IsSorted(names) {
				l.t.Errorf("files are not in byte order: %q", names)
			}
		}
		return w
	case <-time.After(wait.Limit):
		l.t.Fatal("the source yields nothing")
	}
	return Result{}
}

// Set returns the next yield, which must be a set.
func (l *Listener) Set() Result {
	l.t.Helper()
	w := l.Next()
	if w.Err != nil {
		l.t.Fatalf("error %q, want a set", w.Err)
	}
	return w
}

// Settled is Set, but skips sets with a pod that is being deleted. If pods are deleted in two steps, a source
// may yield a set after the first one.
func (l *Listener) Settled() Result {
	l.t.Helper()
	w := l.Set()
	for w.deleting() {
		w = l.Set()
	}
	return w
}

func (w Result) deleting() bool {
	for f := range w.Files.All() {
		if slices.ContainsFunc(f.Pods, func(p *pod.Spec) bool { return p.Pod.DeletionTimestamp != nil }) {
			return true
		}
	}
	return false
}

// Error returns the next yield, which must be an error.
func (l *Listener) Error() error {
	l.t.Helper()
	w := l.Next()
	if w.Err == nil {
		l.t.Fatalf("a set of %q, want an error", w.Contents())
	}
	if text := w.Err.Error(); text == "" || strings.Contains(text, "\n") {
		l.t.Errorf("error %q is not one short line", text)
	}
	return w.Err
}

// Ended fails the test unless the sequence ends; it drops pending yields.
func (l *Listener) Ended() {
	l.t.Helper()
	deadline := time.After(wait.Limit)
	for {
		select {
		case _, ok := <-l.yields:
			if !ok {
				return
			}
		case <-deadline:
			l.t.Fatal("the sequence does not end")
		}
	}
}

// Leave ends the context of the sequence.
func (l *Listener) Leave() { l.cancel() }

// Contents returns the content of w, sorted: "name" for each pod, "!" for each incomplete file, and "?name"
// for each rejected pod.
func (w Result) Contents() []string {
	out := []string{}
	for f := range w.Files.All() {
		if f.Incomplete {
			out = append(out, "!")
		}
		for _, p := range f.Pods {
			out = append(out, p.Name)
		}
		for _, k := range f.Broken {
			out = append(out, "?"+k.Name)
		}
	}
	slices.Sort(out)
	return out
}

// Pod returns the pod of w with this name; nil if there is none.
func (w Result) Pod(name string) *pod.Spec {
	for f := range w.Files.All() {
		for _, p := range f.Pods {
			if p.Name == name {
				return p
			}
		}
	}
	return nil
}

// Holds fails the test unless Contents returns exactly these.
func (w Result) Holds(t testing.TB, contents ...string) {
	t.Helper()
	slices.Sort(contents)
	if got := w.Contents(); w.Err != nil || !slices.Equal(got, append([]string{}, contents...)) {
		t.Errorf("the set holds %q (error %v), want %q", got, w.Err, contents)
	}
}

// Names fails the test unless the changed keys are exactly these pods.
func (w Result) Names(t testing.TB, pods ...string) {
	t.Helper()
	got := []string{}
	for _, k := range w.Changed {
		got = append(got, k.Name)
	}
	if !slices.IsSortedFunc(w.Changed, pod.Key.Compare) {
		t.Errorf("changed keys are not sorted: %q", got)
	}
	slices.Sort(pods)
	if !slices.Equal(got, append([]string{}, pods...)) {
		t.Errorf("changed %q, want %q", got, pods)
	}
}

var errUnnamed = errors.New("no name")

func nameOf(s source.Source) (kind, location string, err error) {
	kind, location, ok := strings.Cut(s.Name(), ":")
	if !ok || kind == "" || location == "" {
		return "", "", errUnnamed
	}
	return kind, location, nil
}
