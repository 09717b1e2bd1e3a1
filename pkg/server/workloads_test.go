package server

import (
	"context"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// fakeWorkloads has one workload, and refuses to scale it beyond 3.
type fakeWorkloads struct {
	ref     WorkloadRef
	command WorkloadCommand
}

func (f *fakeWorkloads) Workloads(kind string, history bool) []Workload {
	if kind == "Job" {
		return nil
	}
	w := Workload{Object: map[string]string{"kind": "Deployment"}, Source: "file", Location: "/m"}
	if history {
		w.History = []WorkloadRevision{{Revision: 1, Template: "t"}}
	}
	return []Workload{w}
}

func (f *fakeWorkloads) ChangeWorkload(_ context.Context, ref WorkloadRef, c WorkloadCommand) (string, error) {
	f.ref, f.command = ref, c
	if c.Replicas > 3 {
		return "", &StatusError{Code: http.StatusConflict, Message: "too many"}
	}
	return "scaled", nil
}

// TestWorkloads_Socket_ListsAndChanges: only the socket has the routes. Numbers that are none are
// refused, and reach no workload.
func TestWorkloads_Socket_ListsAndChanges(t *testing.T) {
	t.Parallel()
	fake := &fakeWorkloads{}
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Workloads = fake
	p := opened(t, cfg)
	web := client(cfg.Socket)
	for path, want := range map[string]string{
		"/v1/workloads":              `{"kind":"WorkloadList","items":[{"object":{"kind":"Deployment"},"source":"file","location":"/m"}]}`,
		"/v1/workloads?kind=Job":     `{"kind":"WorkloadList","items":[]}`,
		"/v1/workloads?history=true": `"history":[{"revision":1,"since":"0001-01-01T00:00:00Z","template":"t"}]`,
	} {
		if code, text := plain(t, web, http.MethodGet, path, ""); code != 200 || !strings.Contains(text, want) {
			t.Errorf("%s: %d %s, want %s", path, code, text, want)
		}
	}
	const scale = "/v1/workloads/Deployment/default/web/scale"
	for query, want := range map[string]int{"?replicas=2&currentReplicas=1": 200, "?replicas=9": 409, "": 400, "?replicas=x": 400, "?replicas=-1": 400, "?replicas=2&revision=-1": 400, "?replicas=99999999999": 400} {
		fake.ref = WorkloadRef{}
		code, text := plain(t, web, http.MethodPost, scale+query, "")
		if code != want {
			t.Errorf("%s: %d %s, want %d", query, code, text, want)
		}
		if called := fake.ref != (WorkloadRef{}); called != (want != 400) {
			t.Errorf("%s: reached the workload: %v", query, called)
		}
	}
	if code, _ := plain(t, web, http.MethodPost, scale+"?replicas=2&currentReplicas=1", ""); code != 200 || fake.ref != (WorkloadRef{"Deployment", "default", "web"}) || fake.command.Verb != "scale" || fake.command.Replicas != 2 || *fake.command.Current != 1 {
		t.Errorf("%d: %+v %+v", code, fake.ref, fake.command)
	}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		path := map[string]string{http.MethodGet: "/v1/workloads", http.MethodPost: scale + "?replicas=1"}[method]
		if code, text, _ := p.fetch(t, p.web(t, "admin"), method, path, nil); code != 404 {
			t.Errorf("%s on TLS: %d %s", method, code, text)
		}
	}
}
