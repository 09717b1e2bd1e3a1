package stats

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/boundedcall"
)

// ending is a context that times out after left calls of Err.
type ending struct {
	context.Context
	left int
}

func (e *ending) Err() error {
	if e.left--; e.left < 0 {
		return context.DeadlineExceeded
	}
	return nil
}

// A pod has so many files that its volumes cannot be measured in the time of a scrape. The
// known values of other pods are returned, and the next scrape continues after that pod.
//
// Shows: C-1.40.7
func TestDisks_TimeIsOverInOnePod_OthersAreMeasured(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "pods", "large", "1", "volumes", "kind", "v", "file"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := New(Config{RootDir: root})
	r := &reading{}
	for _, name := range []string{"a", "large", "b"} {
		r.pods = append(r.pods, podReading{pod: &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec:       v1.PodSpec{Volumes: []v1.Volume{{Name: "v"}}},
		}})
	}
	asked := map[string]int{}
	wanted := func(p *v1.Pod) bool {
		asked[p.Name]++
		return true
	}
	known, err := s.disks(&ending{context.Background(), 3}, r, true, wanted)
	if _, ok := known["a"]; !errors.Is(err, context.DeadlineExceeded) || !ok {
		t.Errorf("known %v, %v", known, err)
	}
	known, err = s.disks(t.Context(), r, true, wanted)
	if err != nil || len(known) != 3 {
		t.Errorf("the next time: known %v, %v", known, err)
	}
	if asked["a"] != 1 || asked["large"] != 1 {
		t.Errorf("measured again within a minute: %v", asked)
	}
}

// The volumes of one pod hang. The other pods are measured, and so is that pod once they answer.
//
// Shows: C-1.40.7
func TestDisks_PodHangs_OthersAreMeasured(t *testing.T) {
	t.Parallel()
	s := New(Config{RootDir: t.TempDir()})
	r := &reading{}
	for _, name := range []string{"a", "hangs", "b"} {
		r.pods = append(r.pods, podReading{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}})
	}
	every := func(*v1.Pod) bool { return true }
	answers := make(chan struct{})
	if err := s.calls.Do(t.Context(), "hangs", time.Nanosecond, func() error { <-answers; return nil }); !errors.Is(err, boundedcall.ErrHangs) { // in an earlier request
		t.Fatal(err)
	}
	known, err := s.disks(t.Context(), r, true, every)
	if _, ok := known["hangs"]; err != nil || len(known) != 2 || ok {
		t.Errorf("known %v, %v", known, err)
	}
	close(answers)
	for len(known) != 3 && t.Context().Err() == nil { // its call ends in a moment
		runtime.Gosched()
		if known, err = s.disks(t.Context(), r, true, every); err != nil {
			t.Fatal(err)
		}
	}
}

// The volumes of a pod hang while nothing bounds the caller's time. After podPatience the next pod
// is measured, and the caller continues.
//
// Shows: C-1.40.7
func TestDisks_PodHangsForever_WaitIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Config{RootDir: t.TempDir()})
		answers, calls := make(chan struct{}), new(atomic.Int32)
		s.now = func() time.Time {
			if calls.Add(1) == 2 { // of the measurement of the first pod
				<-answers
			}
			return time.Now()
		}
		r := &reading{}
		for _, name := range []string{"hangs", "b"} {
			r.pods = append(r.pods, podReading{pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}})
		}
		began := time.Now()
		known, err := s.disks(t.Context(), r, true, func(*v1.Pod) bool { return true })
		if _, ok := known["b"]; err != nil || !ok || len(known) != 1 || time.Since(began) > 2*podPatience {
			t.Errorf("known %v, %v, after %s", known, err, time.Since(began))
		}
		close(answers)
	})
}

// A claim may be on a machine that does not answer, and an eviction does not count it: without
// claims, it is not read. Known values without it are not enough for a caller that asks for it.
//
// Shows: C-1.40.7
func TestDisks_WithoutClaims_ReadsNoClaim(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	if err := os.MkdirAll(filepath.Join(root, "volumes", "default", "data", "data"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := New(Config{RootDir: root})
	r := &reading{pods: []podReading{{pod: &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "p", UID: "p"},
		Spec: v1.PodSpec{Volumes: []v1.Volume{{Name: "v", VolumeSource: v1.VolumeSource{
			PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
		}}}},
	}}}}
	for _, claims := range []bool{false, true, false} {
		before := len(s.dirs["p"].volumes)
		known, err := s.disks(t.Context(), r, claims, func(*v1.Pod) bool { return true })
		if got := len(known["p"].volumes) == 1; err != nil || got != (claims || before == 1) {
			t.Errorf("claims %v: %+v, %v", claims, known, err)
		}
	}
}
