package apiserver

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/podconfig"
	"github.com/nodectl/nodectl/pkg/source"
	"github.com/nodectl/nodectl/pkg/source/sourcetest"
	"github.com/nodectl/nodectl/test/wait"
)

// ops reads a source through podconfig and returns its next batch, as "OP name/UID",
// one for each pod.
func ops(t *testing.T, s *Source) func() []string {
	ctx, leave := context.WithCancel(context.Background())
	batches := make(chan podconfig.Batch) // cap 0: the reader sends, the test receives
	var reader sync.WaitGroup
	reader.Go(func() {
		for b := range podconfig.New(podconfig.Config{Sources: []source.Source{s}}).Batches(ctx) {
			select {
			case batches <- b:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() { leave(); reader.Wait() })
	return func() []string {
		t.Helper()
		select {
		case b := <-batches:
			var out []string
			for _, u := range b.Updates {
				for _, p := range u.Pods {
					out = append(out, fmt.Sprintf("%s %s/%s", u.Op, p.Name, p.UID()))
				}
			}
			return out
		case <-time.After(wait.Limit):
			t.Fatal("no update arrived")
		}
		return nil
	}
}

// A pod from creation to removal, as the engine sees it (C-1.2.8, C-1.2.9): the
// deletion at the server is a DELETE with its grace period, the end of the object a
// REMOVE.
//
// Shows: C-1.8
func TestC_1_8_LifeOfAPod(t *testing.T) {
	s := newServer(t)
	next := ops(t, s.source(t))
	if got := next(); len(got) != 0 {
		t.Errorf("the empty first set is %q", got)
	}
	s.watched(t, 1)
	grace := int64(30)
	for _, step := range []struct {
		does func()
		want string
	}{
		{func() { s.put(boundPod("one", "x")) }, "ADD one/uid-1"},
		{func() {
			s.put(boundPod("one", "x", func(p *v1.Pod) { p.Status.Phase = v1.PodRunning }))
		}, "RECONCILE one/uid-1"},
		{func() { s.put(boundPod("one", "y")) }, "UPDATE one/uid-1"},
		{func() {
			s.put(boundPod("one", "y", func(p *v1.Pod) {
				p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1e9, 0)}, &grace
			}))
		}, "DELETE one/uid-1"},
		{func() { s.drop("one") }, "REMOVE one/uid-1"},
		{func() { s.put(boundPod("one", "x")) }, "ADD one/uid-2"},
	} {
		step.does()
		if got := next(); !slices.Equal(got, []string{step.want}) {
			t.Errorf("%q, want %q", got, step.want)
		}
	}
}

// A pod that is being deleted when it is first seen stays in the set with its
// deletionTimestamp.
//
// Shows: C-1.8
func TestC_1_8_DeletedBeforeItWasSeen(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x", func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1e9, 0)} }))
	w := sourcetest.Listen(t, s.source(t)).Set()
	w.Holds(t, "one")
	if w.Pod("one").Pod.DeletionTimestamp == nil {
		t.Error("the deletion is lost")
	}
}

// A pod that was deleted and created again under its name has its new UID in the set. That holds
// if the watch showed the change, missed it, or showed it in one burst.
//
// Shows: F73
func TestF73_RecreatedWithAnotherUID(t *testing.T) {
	recreate := func(s *server, change ...func(*v1.Pod)) {
		s.drops(key("one"))
		s.puts(boundPod("one", "x", change...))
	}
	t.Run("Watched", func(t *testing.T) {
		s := newServer(t)
		s.put(boundPod("one", "x"))
		next := ops(t, s.gathering(t))
		next()
		s.watched(t, 1)
		s.change(func() { recreate(s) })
		if got := next(); !slices.Equal(got, []string{"UPDATE one/uid-2"}) {
			t.Errorf("%q", got)
		}
	})
	t.Run("Missed", func(t *testing.T) {
		s := newServer(t)
		s.put(boundPod("one", "x"))
		next := ops(t, s.source(t))
		next()
		s.watched(t, 1)
		s.change(func() { recreate(s); s.forgets() })
		if got := next(); !slices.Equal(got, []string{"UPDATE one/uid-2"}) {
			t.Errorf("%q", got)
		}
	})
	// The new one is rejected: that must not keep the old one, which the server has
	// deleted, and the source reports the rejection.
	for _, missed := range []bool{false, true} {
		t.Run(fmt.Sprintf("Rejected,missed=%v", missed), func(t *testing.T) {
			s := newServer(t)
			s.put(boundPod("one", "x"))
			l := sourcetest.Listen(t, s.source(t))
			l.Set()
			s.watched(t, 1)
			s.change(func() {
				recreate(s, func(p *v1.Pod) { p.Annotations = map[string]string{rejects: "no"} })
				if missed {
					s.forgets()
				}
			})
			l.Set().Holds(t)
			w := l.Set()
			w.Holds(t, "?one")
			if f := w.Files.At(0); !strings.HasSuffix(f.File, "#default/one") || f.Problems[0].File != f.File {
				t.Errorf("file %+v", f)
			}
		})
	}
	// Between the two lists that confirm that the old one is gone, a third comes.
	t.Run("WhileConfirming", func(t *testing.T) {
		s := newServer(t)
		s.put(boundPod("one", "x"), boundPod("two", "x"))
		src := s.source(t)
		next := ops(t, src)
		next()
		s.watched(t, 1)
		lists := s.count(isList)
		s.change(func() { recreate(s); s.forgets() })
		s.waits(t, lists+1, isList)
		s.change(func() { recreate(s); s.drops(key("two")) })
		var got []string
		for len(got) < 2 {
			got = append(got, next()...)
		}
		if last := got[len(got)-1]; !slices.Contains(got, "REMOVE two/uid-2") || !slices.Contains(got, "UPDATE one/uid-4") {
			t.Errorf("%q, last %q", got, last)
		}
	})
}

// A pod that the fields' table rejects is a problem of its own file and affects no
// other pod. Once corrected, it is in the set.
//
// Shows: C-1.8
func TestC_1_8_RejectedPodIsAProblemOfItsOwn(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("good", "x"), boundPod("bad", "x", func(p *v1.Pod) {
		p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{WindowsOptions: &v1.WindowsSecurityContextOptions{RunAsUserName: new("me")}}
	}))
	l := sourcetest.Listen(t, s.source(t))
	w := l.Set()
	w.Holds(t, "good", "?bad")
	f := w.Files.At(0)
	if p := f.Problems[0]; p.File != f.File || !strings.Contains(p.Path, "windowsOptions") {
		t.Errorf("problem %+v", p)
	}
	s.watched(t, 1)
	s.put(boundPod("bad", "x"))
	l.Set().Holds(t, "bad", "good")
}
