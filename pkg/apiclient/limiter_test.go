package apiclient

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// TestReflect_RequestsOfOneNamespaceHang_OthersAreRead: pods of one tenant name many objects,
// and the server answers none of the requests for them. The objects of another namespace are
// read all the same. The namespaces together have no more than MaxFirstRequests under way.
func TestReflect_RequestsOfOneNamespaceHang_OthersAreRead(t *testing.T) {
	s := newFakeServer(t)
	release := make(chan struct{})
	var mu sync.Mutex
	underWay, most := 0, 0
	full := make(chan struct{}, 4*MaxFirstRequests)
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/namespaces/other/") {
			w.Header().Set("Content-Type", jsonType)
			_, _ = w.Write([]byte(`{"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": []}`))
			return true
		}
		mu.Lock()
		underWay++
		most = max(most, underWay)
		mu.Unlock()
		full <- struct{}{}
		<-release
		mu.Lock()
		underWay--
		mu.Unlock()
		return false
	})
	r := s.reader(t)
	ctx, stop := context.WithCancel(t.Context())
	var readers sync.WaitGroup
	hang := func(namespace string) {
		for i := range 2 * MaxFirstRequests {
			readers.Go(func() {
				r.Reflect(ctx, Secret(namespace, fmt.Sprint("s", i)), Listener{
					List: func([]Object) Next { return Stop }, Event: func(Event) Next { return Stop }, Failed: func(error) {},
				})
			})
		}
	}
	read := func() (lists int) {
		r.Reflect(t.Context(), Secret("other", "a"), Listener{
			List:  func([]Object) Next { lists++; return Stop },
			Event: func(Event) Next { return Stop }, Failed: func(error) {},
		})
		return lists
	}
	hang("tenant")
	for range MaxNamespaceRequests {
		<-full
	}
	if n := read(); n != 1 {
		t.Errorf("the object of another namespace was listed %d times, want 1", n)
	}
	for _, more := range []string{"b", "c", "d", "e"} {
		hang(more)
	}
	for range MaxFirstRequests - MaxNamespaceRequests {
		<-full
	}
	close(release)
	stop()
	readers.Wait()
	if mu.Lock(); most > MaxFirstRequests {
		t.Errorf("%d requests at a time, want at most %d", most, MaxFirstRequests)
	}
	mu.Unlock()
	if len(r.limit.shares) != 0 || len(r.limit.all) != 0 {
		t.Errorf("%d namespaces are remembered, %d slots are taken", len(r.limit.shares), len(r.limit.all))
	}
}

// TestTurns_ContextEnds_GivesTheTurnBack: a reader that ends while it waits leaves nothing.
func TestTurns_ContextEnds_GivesTheTurnBack(t *testing.T) {
	limit := newLimiter()
	var ends []func()
	for i := range MaxFirstRequests {
		end, err := limit.acquire(t.Context(), fmt.Sprint("n", i/MaxNamespaceRequests))
		if err != nil {
			t.Fatal(err)
		}
		ends = append(ends, end)
	}
	ended, stop := context.WithCancel(t.Context())
	stop()
	for _, namespace := range []string{"n0", "other"} {
		if _, err := limit.acquire(ended, namespace); !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v, want %v", namespace, err, context.Canceled)
		}
	}
	for _, end := range ends {
		end()
	}
	if len(limit.shares) != 0 || len(limit.all) != 0 {
		t.Errorf("%d namespaces are remembered, %d slots are taken", len(limit.shares), len(limit.all))
	}
}
