package apiclient

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/wait"
)

// A class that could not be read is not one that is not there.
//
// Shows: C-1.22.12
func TestC_1_22_12_ClassThatCouldNotBeRead(t *testing.T) {
	s := newFakeServer(t)
	src := s.reader(t)
	answers := func(status int, body string) {
		s.says(func(w http.ResponseWriter, r *http.Request) bool {
			if r.URL.Path != "/apis/node.k8s.io/v1/runtimeclasses/kata" {
				t.Errorf("asked for %s", r.URL.Path)
			}
			w.Header().Set("Content-Type", jsonType)
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
			return true
		})
	}
	hangs := func() {
		s.says(func(_ http.ResponseWriter, r *http.Request) bool { <-r.Context().Done(); return true })
	}
	is := func(what, handler string, ok bool, wrong string) {
		t.Helper()
		patience := wait.Limit
		if strings.Contains(what, "hangs") {
			patience = 50 * time.Millisecond
		}
		ctx, stop := context.WithTimeout(t.Context(), patience)
		defer stop()
		got, there, err := src.RuntimeHandler(ctx, "kata")
		if got != handler || there != ok || (err != nil) != (wrong != "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%s: handler %q, %t, %v", what, got, there, err)
		}
	}
	ages := func() {
		src.classes.mu.Lock()
		defer src.classes.mu.Unlock()
		src.classes.known["kata"] = class{src.classes.known["kata"].handler, time.Now().Add(-classFor)}
	}
	const body = `{"metadata": {"name": "kata"}, "handler": "kata-qemu"}`
	answers(http.StatusServiceUnavailable, body)
	is("fails", "", false, "HTTP 503")
	answers(http.StatusTooManyRequests, body)
	is("busy", "", false, "HTTP 429")
	answers(http.StatusForbidden, body)
	is("refuses", "", false, "read runtimeclass/kata")
	hangs()
	is("hangs", "", false, " ")
	answers(http.StatusOK, `{"metadata": {"name": "kata"}}`)
	is("half an answer", "", false, "damaged or incomplete")
	answers(http.StatusOK, `{"metadata": {"name": "other"}, "handler": "runc"}`)
	is("another class", "", false, "damaged or incomplete")
	answers(http.StatusNotFound, "")
	is("has none", "", false, "")
	answers(http.StatusOK, body)
	is("answers", "kata-qemu", true, "")
	answers(http.StatusServiceUnavailable, "")
	is("was asked a moment ago", "kata-qemu", true, "")
	ages()
	is("fails after it answered", "kata-qemu", true, "")
	hangs()
	is("hangs after it answered", "kata-qemu", true, "")
	answers(http.StatusNotFound, "")
	is("has none any more", "", false, "")
	answers(http.StatusServiceUnavailable, "")
	is("fails after it had none", "", false, "HTTP 503")
	before := len(s.requests())
	if _, ok, err := src.RuntimeHandler(t.Context(), "../kata"); ok || err != nil || len(s.requests()) != before {
		t.Errorf("a path as a class: %t, %v", ok, err)
	}
	s.Close()
	is("away", "", false, " ")
}
