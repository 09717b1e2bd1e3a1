package apiserver

import (
	"net/http"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/source/sourcetest"
)

// The source drops the tokens of a pod when it is removed.
//
// Shows: C-1.38.11
func TestC_1_38_11_TokensGoWithTheirPod(t *testing.T) {
	s := newServer(t)
	s.put(boundPod("one", "x"))
	issues := func(w http.ResponseWriter, r *http.Request) bool {
		if plural(r) != "token" {
			return false
		}
		w.Header().Set("Content-Type", jsonType)
		_, _ = w.Write([]byte(`{"spec": {"expirationSeconds": 3600}, "status": {"token": "hunter2"}}`))
		return true
	}
	s.says(issues)
	src := s.source(t)
	l := sourcetest.Listen(t, src)
	spec := l.Set().Pod("one")
	asked := func() int { return s.count(func(r *http.Request) bool { return plural(r) == "token" }) }
	for range 2 {
		if _, _, err := src.reader.Token(t.Context(), spec, &v1.ServiceAccountTokenProjection{}); err != nil {
			t.Fatal(err)
		}
	}
	if n := asked(); n != 1 {
		t.Errorf("%d requests for one token", n)
	}
	s.drop("one")
	l.Set().Holds(t)
	if _, _, err := src.reader.Token(t.Context(), spec, &v1.ServiceAccountTokenProjection{}); err != nil {
		t.Fatal(err)
	}
	if n := asked(); n != 2 {
		t.Errorf("the token of a pod that is gone is in use: %d requests", n)
	}
}
