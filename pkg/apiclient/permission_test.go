package apiclient

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/test/wait"
)

// TestC_1_38_10_LeaveIsAwaitedOnce: a node asks until it has the permission, and then
// reads. After a refusal for all that time it does not wait again at each attempt: a
// pod with an unbound claim retries again and again.
//
// Shows: C-1.38.10
func TestC_1_38_10_LeaveIsAwaitedOnce(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	patience := src.Tuning.Permission
	src.Tuning.Permission = wait.Limit
	reviews, may := 0, 3 // held under s.mu: how many there were, and from which on it is a yes
	s.says(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/selfsubjectaccessreviews") {
			return false
		}
		var q authorizationv1.SelfSubjectAccessReview
		if err := json.NewDecoder(r.Body).Decode(&q); err != nil {
			t.Error(err)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		reviews++
		w.Header().Set("Content-Type", jsonType)
		fmt.Fprintf(w, `{"status": {"allowed": %t}}`, reviews >= may)
		return true
	})
	want := &pod.Spec{Key: pod.Key{Namespace: "default", Name: "one"}}
	claim := func(name string) (asked int) {
		t.Helper()
		before := s.count(func(r *http.Request) bool { return plural(r) == name })
		s.change(func() { reviews = 0 })
		if _, err := src.Claim(t.Context(), want, name); err == nil {
			t.Error("there is such a claim")
		}
		if n := s.count(func(r *http.Request) bool { return plural(r) == name }) - before; n != 1 {
			t.Errorf("%s is read %d times", name, n)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return reviews
	}
	if n := claim("a"); n != 3 {
		t.Errorf("asked %d times until there is a yes", n)
	}
	s.change(func() { may = 1 << 20 })
	src.Tuning.Permission = patience // it is waited for to its end from here on
	if n := claim("a"); n < 3 {
		t.Errorf("asked %d times while it is a no", n)
	}
	if n := claim("a"); n != 0 {
		t.Errorf("asked %d times after that", n)
	}
	if n := claim("b"); n < 3 {
		t.Errorf("asked %d times about another", n)
	}
	s.change(func() { may = 1 })
	src.permissions.mu.Lock()
	for of := range src.permissions.denied {
		src.permissions.denied[of] = time.Now()
	}
	src.permissions.mu.Unlock()
	src.Tuning.Permission = wait.Limit
	if n := claim("a"); n != 1 {
		t.Errorf("asked %d times later", n)
	}
	if p := &src.permissions; p.isDenied(claimPermission("b")) || len(p.denied) != 0 {
		t.Errorf("%d old denials are remembered", len(p.denied))
	}
}

func claimPermission(name string) authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Namespace: "default", Verb: "get", Version: "v1", Resource: "persistentvolumeclaims", Name: name}
}

// TestPermissions_ManyDenied_LookUpScansNone: pods name thousands of objects that the node
// may not read. A look-up touches its own entry alone, and old ones are removed as others
// come.
func TestPermissions_ManyDenied_LookUpScansNone(t *testing.T) {
	var p permissions
	age := func() {
		for of := range p.denied {
			p.denied[of] = time.Now()
		}
	}
	for i := range 1000 {
		p.deny(claimPermission(fmt.Sprint("a", i)))
	}
	age()
	if p.isDenied(claimPermission("other")); len(p.denied) != 1000 {
		t.Errorf("a look-up has scanned the others: %d are left of 1000", len(p.denied))
	}
	if p.isDenied(claimPermission("a0")) {
		t.Error("a denial does not end")
	}
	for i := range 3000 {
		p.deny(claimPermission(fmt.Sprint("b", i)))
		age()
	}
	if len(p.denied) > 2000 {
		t.Errorf("%d old denials are kept", len(p.denied))
	}
	p.deny(claimPermission("c"))
	if !p.isDenied(claimPermission("c")) {
		t.Error("a denial is forgotten at once")
	}
}
