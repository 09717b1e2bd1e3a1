package apiclient

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// A version that was read before the server's data were set back is no version of the new
// epoch, however late it is noted.
//
// Shows: F71
func TestReflect_ListFromBeforeASetBack_IsNotTheNewestVersion(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write([]byte(`{"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "901"}, "items": []}`))
		return plural(r) == "secrets"
	})
	r := s.reader(t)
	lists := 0
	r.Reflect(t.Context(), Secret("default", "c"), Listener{
		List: func([]Object) Next {
			if lists++; lists == 1 {
				r.client.epoch.end() // as the watch of pods finds out, before the list is noted
				return Continue
			}
			if got := r.NewestVersion(); got != "" {
				t.Errorf("version %s counts as one of the new epoch", got)
			}
			return Stop
		},
		Event:  func(Event) Next { return Continue },
		Failed: func(error) {},
	})
	now := r.client.epoch.now()
	r.client.epoch.saw(now, "50")
	r.client.epoch.saw(context.Background(), "901")
	if got := r.NewestVersion(); got != "50" {
		t.Errorf("the newest version is %q, want 50", got)
	}
}

// A server whose data are older than before begins a new epoch for all reflectors; news
// that another watch has seen while it answered do not.
//
// Shows: F71
func TestReader_IsRolledBack_EndsTheEpoch(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, version, seen, newest string
		back, ends                  bool
	}{
		{"the same", "50", "50", "50", false, false},
		{"newer", "60", "50", "55", false, false},
		{"older than the pods", "40", "50", "", true, true},
		{"older than another kind", "52", "50", "60", false, true},
		{"the first", "50", "", "", false, false},
	} {
		r := NewReader(ReaderConfig{Client: &Client{}})
		epoch := r.client.epoch.now()
		r.client.epoch.saw(epoch, "70")
		if back := r.IsRolledBack(c.version, c.seen, c.newest); back != c.back || (epoch.Err() != nil) != c.ends || (r.NewestVersion() == "") != c.ends {
			t.Errorf("%s: set back %t, epoch %v, newest %q", c.name, back, epoch.Err(), r.NewestVersion())
		}
	}
}

// An event that is no JSON, or too large, makes a list: a watch from the same position would
// bring it again.
//
// Shows: F71
func TestStream_DamagedEvent_IsNoCutConnection(t *testing.T) {
	t.Parallel()
	large := `{"type":"ADDED","object":"` + strings.Repeat("x", eventLimit) + `"}`
	for _, body := range []string{"hunter2", `{"type":5}`, large} {
		s, err := newStream(podKind(), jsonType, io.NopCloser(bytes.NewReader([]byte(body))))
		if err != nil {
			t.Fatal(err)
		}
		if e := s.Next(); e.Err != errPartial {
			t.Errorf("%.9q: %v", body, e.Err)
		}
	}
}

// Waiting doubles from about 0.8 s to about 30 s, and is jittered.
//
// Shows: F70
func TestReader_Delay_GrowsAndIsJittered(t *testing.T) {
	t.Parallel()
	r, pause := NewReader(ReaderConfig{Client: &Client{}}), time.Duration(0)
	first, last := 800*time.Millisecond, 30*time.Second
	spread := map[time.Duration]bool{}
	for i := range 12 {
		want := min(first<<i, last)
		got := r.Delay(&pause, r.Tuning.FirstRetry, errPartial)
		if got < want/2 || got > want*3/2 {
			t.Errorf("wait %d is %v, want about %v", i, got, want)
		}
		spread[got] = true
	}
	if len(spread) < 10 {
		t.Errorf("waits are not spread: %v", spread)
	}
	if got := r.Delay(new(time.Duration), r.Tuning.FirstRetry, &statusError{status: 429, retryAfter: 20 * time.Second}); got != 20*time.Second {
		t.Errorf("a server that asks for 20 s is asked after %v", got)
	}
	if got := r.Delay(new(time.Duration), r.Tuning.FirstRetry, &statusError{status: 429, retryAfter: time.Hour}); got != last {
		t.Errorf("a server that asks for an hour is asked after %v", got)
	}
}

// After an outage, a reflector tries again as soon as the server has answered another request,
// however long its back-off is.
//
// Shows: F70
func TestReflect_ServerReturnsForAnotherRequest_ListsAtOnce(t *testing.T) {
	t.Parallel()
	s := newFakeServer(t)
	var up atomic.Bool
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		w.Header().Set("Content-Type", jsonType)
		switch {
		case !up.Load():
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return false
			}
			_ = conn.Close()
		case plural(r) == "secrets":
			_, _ = w.Write([]byte(`{"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "901"}, "items": []}`))
		case plural(r) == "starting":
			w.WriteHeader(http.StatusForbidden)
		}
		return true
	})
	r := s.reader(t)
	r.Tuning.FirstRetry, r.Tuning.LastRetry, r.Tuning.MinRetry = time.Hour, time.Hour, time.Millisecond
	failed, listed := make(chan error, 1), make(chan struct{})
	go r.Reflect(t.Context(), Secret("default", "c"), Listener{
		List: func([]Object) Next {
			close(listed)
			return Stop
		},
		Event:  func(Event) Next { return Continue },
		Failed: func(err error) { failed <- err },
	})
	wait.Receive(t, "the failure of the first list", failed)
	up.Store(true)
	for _, path := range []string{"/starting", "/answers"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := r.client.RoundTrip(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		lists := s.count(func(r *http.Request) bool { return plural(r) == "secrets" })
		if path == "/starting" && lists != 1 {
			t.Errorf("%d lists after a server that starts refused a request, want 1", lists)
		}
	}
	wait.Receive(t, "the list after the outage", listed)
}
