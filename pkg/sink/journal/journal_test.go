package journal

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	"github.com/nodectl/nodectl/pkg/pod"
)

const secret = "hunter2"

var (
	t0   = time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC)
	from = pod.Origin{Source: "file", Location: "/m", File: "/m/a.yaml", Line: 3}
)

func testPod(name, message string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: "u"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c", Env: []v1.EnvVar{{Name: "PASSWORD", Value: secret}}}}},
		Status:     v1.PodStatus{Phase: v1.PodRunning, Message: message},
	}
}

func newPath(t *testing.T) string { return filepath.Join(t.TempDir(), "root", "journal.jsonl") }

func open(t *testing.T, path string) *Journal {
	t.Helper()
	j := New(path, nil)
	t.Cleanup(func() { j.Close() })
	return j
}

func report(t testing.TB, j *Journal, p *v1.Pod, gone bool) {
	t.Helper()
	if err := j.Report(pod.StatusReport{Pod: p, Origin: from, Gone: gone, At: t0}); err != nil {
		t.Fatal(err)
	}
}

// messages returns the messages in the journal, by pod name.
func messages(t testing.TB, path string) map[string]string {
	t.Helper()
	entries, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	got := make(map[string]string)
	for key, e := range entries {
		if key != pod.KeyOf(e.Pod) {
			t.Errorf("entry of %s holds %s", key, pod.KeyOf(e.Pod))
		}
		got[key.Name] = e.Pod.Status.Message
	}
	return got
}

func want(t testing.TB, path string, want map[string]string) {
	t.Helper()
	if diff := cmp.Diff(want, messages(t, path)); diff != "" {
		t.Error(diff)
	}
}

func text(t testing.TB, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestReportAndRead(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	want(t, path, map[string]string{}) // no journal, no entries
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	report(t, j, testPod("b", "1"), false)
	report(t, j, testPod("a", "2"), false)
	report(t, j, testPod("b", "1"), true)
	want(t, path, map[string]string{"a": "2"})

	entries, _ := Read(path)
	e := entries[pod.Key{Namespace: "default", Name: "a"}]
	if !e.Time.Equal(t0) || e.Origin != from || !equality.Semantic.DeepEqual(e.Pod, testPod("a", "2")) {
		t.Errorf("read %+v", e)
	}
	var line map[string]json.RawMessage
	first, _, _ := strings.Cut(text(t, path), "\n")
	if err := json.Unmarshal([]byte(first), &line); err != nil {
		t.Fatal(err)
	}
	if got := slices.Sorted(maps.Keys(line)); !slices.Equal(got, []string{"gone", "origin", "pod", "time"}) {
		t.Errorf("a line has the fields %v", got)
	}
}

func TestTheSameIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	report(t, j, testPod("b", "1"), false)
	before := text(t, path)
	if err := j.Report(pod.StatusReport{Pod: testPod("a", "1"), Origin: from, Gone: false, At: t0.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	report(t, j, testPod("never seen", ""), true)
	j.Close()
	restarted := open(t, path)
	report(t, restarted, testPod("b", "1"), false)
	if got := text(t, path); got != before {
		t.Errorf("the journal grew from %d to %d bytes", len(before), len(got))
	}
	moved := from
	moved.Line++
	if err := restarted.Report(pod.StatusReport{Pod: testPod("a", "1"), Origin: moved, Gone: false, At: t0}); err != nil {
		t.Fatal(err)
	}
	if strings.Count(text(t, path), "\n") != 3 {
		t.Error("a changed origin was not written")
	}
	// Gone and back is news.
	report(t, restarted, testPod("a", "1"), true)
	report(t, restarted, testPod("a", "1"), false)
	want(t, path, map[string]string{"a": "1", "b": "1"})
}

func TestJournalIsPrivateAndHoldsNoSecret(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("junk\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	j := New(path, slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
	defer j.Close()
	j.max = 4 << 10
	for i := range 100 {
		report(t, j, testPod("a", fmt.Sprint(i)), false)
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Fatalf("mode %v, %v", info.Mode(), err)
		}
	}
	if log.Len() == 0 || strings.Contains(log.String(), secret) {
		t.Errorf("the log, which is to tell of compactions and of no secret: %s", log.String())
	}
}

// Shows: I5
func TestJournalIsBounded(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	j.max = 32 << 10
	big := strings.Repeat("x", 1000)
	largest := int64(0)
	for i := range 1000 {
		report(t, j, testPod(fmt.Sprint("p", i%5), fmt.Sprint(big, i)), false)
		report(t, j, testPod("shortlived", fmt.Sprint(i)), false)
		report(t, j, testPod("shortlived", fmt.Sprint(i)), true)
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		largest = max(largest, info.Size())
	}
	if largest > j.max+4<<10 {
		t.Errorf("it grew to %d bytes, the bound is %d and a line", largest, j.max)
	}
	all := map[string]string{}
	for i := 995; i < 1000; i++ {
		all[fmt.Sprint("p", i%5)] = fmt.Sprint(big, i)
	}
	want(t, path, all)
	j.Close()
	// A start leaves one line a pod.
	report(t, open(t, path), testPod("p0", all["p0"]), false)
	if n := strings.Count(text(t, path), "\n"); n != 5 {
		t.Errorf("after a start there are %d lines, want 5", n)
	}
	want(t, path, all)
	// The journal never drops a needed line, however large.
	large := open(t, newPath(t))
	large.max = 1 << 10
	for i := range 20 {
		report(t, large, testPod(fmt.Sprint("p", i), big), false)
	}
	if got := len(messages(t, large.path)); got != 20 {
		t.Errorf("%d pods are left of 20", got)
	}
}

// An agent was killed in a write, at any byte: the next one reads the lines before and after it,
// and cleans up at its start.
//
// Shows: F12
func TestF12_TornLastLine(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	whole := text(t, path)
	report(t, j, testPod("a", "2"), false)
	both := text(t, path)
	j.Close()
	for n := len(whole); n < len(both); n += 7 {
		if err := os.WriteFile(path, []byte(both[:n]), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, path, map[string]string{"a": "1"})
		j := New(path, nil)
		report(t, j, testPod("b", "1"), false)
		want(t, path, map[string]string{"a": "1", "b": "1"})
		j.Close()
		if got := text(t, path); strings.Count(got, "\n") != 2 {
			t.Fatalf("cut at %d: %d lines, want 2", n, strings.Count(got, "\n"))
		}
	}
}

// Shows: F12
func TestF12_DamagedLinesArePassedOver(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	j.Close()
	good := text(t, path)
	for _, bad := range []string{"\n", "null\n", "{}\n", "[]\n", "\x00\x00\x00\n", good[:40] + "\n", `{"pod":{"metadata":{}}}` + "\n", `{"pod":7}` + "\n", strings.Repeat("x", 1<<20) + "\n"} {
		if err := os.WriteFile(path, []byte(bad+good+bad), 0o600); err != nil {
			t.Fatal(err)
		}
		want(t, path, map[string]string{"a": "1"})
		report(t, open(t, path), testPod("a", "1"), false)
		if got := text(t, path); got != good {
			t.Errorf("after a start it holds %d bytes, want %d", len(got), len(good))
		}
	}
}

func TestJournal_FileIsRemoved_WritesANewOne(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	report(t, j, testPod("a", "1"), false)
	for name, harm := range map[string]func() error{
		"Removed":   func() error { return os.Remove(path) },
		"Emptied":   func() error { return os.Truncate(path, 0) },
		"Replaced":  func() error { return errors.Join(os.Remove(path), os.WriteFile(path, []byte("x"), 0o600)) },
		"Truncated": func() error { return os.Truncate(path, 20) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		report(t, j, testPod("a", "1"), false)
		if got := messages(t, path); got["a"] != "1" {
			t.Errorf("%s: read %v", name, got)
		}
	}
}

// Readers take no lock: beside a writer that appends and compacts they always
// find every pod, and never an older status than before.
func TestReadBesideAWriter(t *testing.T) {
	t.Parallel()
	path := newPath(t)
	j := open(t, path)
	j.max = 8 << 10
	for i := range 5 {
		report(t, j, testPod(fmt.Sprint("p", i), "1000"), false)
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			last := map[string]string{}
			for {
				got := messages(t, path)
				if len(got) != 5 {
					t.Errorf("read %d pods of 5", len(got))
					return
				}
				for name, m := range got {
					if m < last[name] {
						t.Errorf("%s went back from %s to %s", name, last[name], m)
						return
					}
				}
				last = got
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for n := 1001; n < 1500; n++ {
		report(t, j, testPod(fmt.Sprint("p", n%5), fmt.Sprint(n)), false)
	}
	close(stop)
	wg.Wait()
}

// Whatever was reported, and whenever the agent restarts, the newest status of each live pod is
// read.
func TestNewestStatusLaw(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	rapid.Check(t, func(rt *rapid.T) {
		dir, err := os.MkdirTemp(root, "")
		if err != nil {
			rt.Fatal(err)
		}
		path := filepath.Join(dir, "j")
		j := New(path, nil)
		defer func() { j.Close() }()
		model := map[string]string{}
		for range rapid.IntRange(0, 60).Draw(rt, "n") {
			name := rapid.SampledFrom([]string{"a", "b", "c"}).Draw(rt, "name")
			j.max = rapid.SampledFrom([]int64{0, 1 << 10, maxSize}).Draw(rt, "max")
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				report(t, j, testPod(name, model[name]), true)
				delete(model, name)
			case 1:
				j.Close()
				j = New(path, nil)
			case 2:
				f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY|os.O_CREATE, 0o600)
				if err != nil {
					rt.Fatal(err)
				}
				f.WriteString(`{"time":"20`) // a killed agent's last word
				f.Close()
			default:
				model[name] = rapid.StringN(0, 50, -1).Draw(rt, "message")
				report(t, j, testPod(name, model[name]), false)
			}
			if got := messages(t, path); !maps.Equal(got, model) {
				rt.Fatalf("read %v, want %v", got, model)
			}
		}
	})
}

func BenchmarkReport(b *testing.B) {
	j := New(filepath.Join(b.TempDir(), "j"), nil)
	defer j.Close()
	for i := 0; b.Loop(); i++ {
		report(b, j, testPod(fmt.Sprint("p", i%50), fmt.Sprint(i)), false)
	}
}
