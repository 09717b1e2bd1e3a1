package http

import (
	"context"
	"fmt"
	nethttp "net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// word is one yield of a source, and its time.
type word struct {
	at  time.Duration
	pod string // content hash of pod one, "" in an error
	err string
}

// listens runs a source in fake time for the duration long. says returns the body for each poll,
// "" for a failure.
func listens(t *testing.T, long time.Duration, says func(n int, since time.Duration) string) (words []word, polls int) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		s, err := New(Config{URL: "http://cfg/", Insecure: true, Parse: parse, Client: &nethttp.Client{Transport: transport(func(r *nethttp.Request) (*nethttp.Response, error) {
			polls++
			body := says(polls, time.Since(start))
			a := answer(200, body)
			a.Header.Set("ETag", body)
			if body != "" && r.Header.Get("If-None-Match") == body {
				return answer(304, ""), nil
			}
			return a, nil
		})}})
		if err != nil {
			t.Fatal(err)
		}
		for snapshot, err := range s.Sets(ctx) {
			w := word{at: time.Since(start)}
			if err != nil {
				w.err = err.Error()
			} else {
				for _, p := range snapshot.Files.At(0).Pods {
					w.pod += p.Hash[:8]
				}
			}
			words = append(words, w)
		}
	})
	return words, polls
}

// changes returns when the pod changed, after the first word.
func changes(words []word) (at []time.Duration) {
	pod := words[0].pod
	for _, w := range words[1:] {
		if w.err == "" && w.pod != pod {
			pod = w.pod
			at = append(at, w.at)
		}
	}
	return at
}

// Shows: F63
func TestF63_FlappingContentIsHeldLongerAndLonger(t *testing.T) {
	letters := func(n int) string { return fmt.Sprintf("pod one %c", 'A'+n%2) }
	words, polls := listens(t, 2*time.Hour, func(n int, _ time.Duration) string { return letters(n) })
	at := changes(words)
	if polls < 300 || len(at) < 20 || len(at) > 30 {
		t.Fatalf("%d polls, %d changes in two hours: %v", polls, len(at), at)
	}
	// B is new, and A again may be a rollback.
	for i, least := range []int{0, 18, 40, 80, 160, 300, 300, 300} {
		if i == 0 {
			continue
		}
		if gap := at[i] - at[i-1]; gap < time.Duration(least)*time.Second || gap > time.Duration(least+70)*time.Second {
			t.Errorf("change %d came after %v, want at least %d s", i, gap, least)
		}
	}
	for i := 8; i < len(at); i++ {
		if gap := at[i] - at[i-1]; gap < 5*time.Minute || gap > 6*time.Minute {
			t.Errorf("change %d came after %v", i, gap)
		}
	}
	errors := 0
	for _, w := range words {
		if w.err != "" {
			errors++
			if !strings.HasPrefix(w.err, "content alternates between 2 versions; ") {
				t.Errorf("at %v: %s", w.at, w.err)
			}
		}
	}
	if errors < 20 || len(words) > 3*len(at) {
		t.Errorf("%d yields, %d errors, %d changes: each hold must be reported once", len(words), errors, len(at))
	}
}

// Shows: F63
func TestF63_SettledContentIsAppliedAndTheErrorCleared(t *testing.T) {
	words, _ := listens(t, time.Hour, func(n int, since time.Duration) string {
		if since > 20*time.Minute {
			return "pod one B"
		}
		return fmt.Sprintf("pod one %c", 'A'+n%2)
	})
	want, _ := parse([]byte("pod one B"), "")
	last := words[len(words)-1]
	if last.err != "" || last.pod != want.Pods[0].Hash[:8] || last.at > 26*time.Minute {
		t.Errorf("the last yield: %+v", last)
	}
}

// Whichever version is in force when the alternation ends, the error ends too.
//
// Shows: F63
func TestF63_SettlingOnTheVersionInForceClearsTheError(t *testing.T) {
	words, _ := listens(t, time.Hour, func(n int, _ time.Duration) string {
		return "pod one " + []string{"A", "B", "A", "B", "A"}[min(n-1, 4)]
	})
	if len(words) != 5 || words[3].err == "" || words[4].err != "" || words[4].pod != words[0].pod {
		t.Fatalf("%+v", words)
	}
	if gap := words[4].at - words[3].at; gap < 35*time.Second || gap > 70*time.Second {
		t.Errorf("cleared after %v, want the hold of 40 s", gap)
	}
}

// One return is a rollback, and a later one does not wait either.
//
// Shows: F63
func TestF63_RollingBackIsApplied(t *testing.T) {
	words, _ := listens(t, 2*time.Hour, func(_ int, since time.Duration) string {
		return fmt.Sprintf("pod one %c", 'A'+int(since/(10*time.Minute))%2)
	})
	if at := changes(words); len(at) != 11 {
		t.Errorf("%d changes, want one every ten minutes: %v", len(at), at)
	}
	for _, w := range words {
		if w.err != "" {
			t.Errorf("at %v: %s", w.at, w.err)
		}
	}
}

// Shows: F63
func TestF63_NewContentIsNeverHeld(t *testing.T) {
	words, _ := listens(t, time.Hour, func(n int, since time.Duration) string {
		if since > 30*time.Minute {
			return "pod one C"
		}
		return fmt.Sprintf("pod one %c", 'A'+n%2)
	})
	at := changes(words)
	if last := at[len(at)-1]; last > 30*time.Minute+25*time.Second {
		t.Errorf("a new version came into force at %v", last)
	}
	if words[len(words)-1].err != "" {
		t.Errorf("%+v", words[len(words)-1])
	}
}

// A server that adds meaningless content to each answer still alternates if its pods
// do, and otherwise does not.
//
// Shows: F63
func TestF63_VersionsAreWhatIsAskedFor(t *testing.T) {
	words, polls := listens(t, time.Hour, func(n int, _ time.Duration) string {
		return fmt.Sprintf("pod one %c\n%s#", 'A'+n%2, strings.Repeat("\n", n))
	})
	if at := changes(words); polls < 100 || len(at) > 20 {
		t.Errorf("%d changes in an hour", len(at))
	}
	words, _ = listens(t, time.Hour, func(n int, _ time.Duration) string {
		if n%2 == 0 {
			return "pod two x\npod one x"
		}
		return "pod one x\npod two x"
	})
	for _, w := range words {
		if w.err != "" {
			t.Errorf("another order: %s", w.err)
		}
	}
}

// An answer that is no manifest removes nothing, so it is neither held nor a version.
//
// Shows: F63
func TestF63_GarbageInBetweenIsNoVersion(t *testing.T) {
	words, _ := listens(t, time.Hour, func(n int, _ time.Duration) string {
		return []string{"pod one A", "]garbage["}[n%2]
	})
	for _, w := range words {
		if w.err != "" {
			t.Errorf("at %v: %s", w.at, w.err)
		}
	}
	if len(words) < 100 {
		t.Errorf("%d yields, want each problem and its end", len(words))
	}
}

// Shows: F63
func TestF63_ThreeVersionsInTurn(t *testing.T) {
	words, _ := listens(t, 2*time.Hour, func(n int, _ time.Duration) string { return fmt.Sprintf("pod one %c", 'A'+n%3) })
	if at := changes(words); len(at) > 32 {
		t.Errorf("%d changes in two hours", len(at))
	}
	if last := words[len(words)-1].err + words[len(words)-2].err; !strings.Contains(last, "between 3 versions") {
		t.Errorf("the last yield: %q", last)
	}
}

// Failed polls in between neither end a hold nor count as calm.
//
// Shows: F63
func TestF63_FailuresInBetween(t *testing.T) {
	words, _ := listens(t, 2*time.Hour, func(n int, _ time.Duration) string {
		return []string{"pod one A", "", "pod one B", ""}[n%4]
	})
	if at := changes(words); len(at) > 30 {
		t.Errorf("%d changes in two hours: %v", len(at), at)
	}
}

func TestPacerForgetsWhatIsTooMuch(t *testing.T) {
	p := pacer{poll: time.Second}
	now := time.Unix(0, 0)
	for n := range 10_000 {
		now = now.Add(time.Second)
		v := version{byte(n), byte(n >> 8)}
		if err := p.serve(v, now); err != nil || p.force != v {
			t.Fatalf("a new version is held: %v", err)
		}
	}
	if len(p.arrived) > remembered+1 {
		t.Errorf("%d versions are remembered", len(p.arrived))
	}
}
