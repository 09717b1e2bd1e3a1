package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/cri/critest"
)

// Shows: C-1.40.9
func TestC_1_40_9_Run(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	l.rt.OnExec(func(e critest.Exec) (critest.Behaviour, bool) {
		return critest.Behaviour{Ends: true, Output: strings.Join(e.Cmd, "|"), Code: map[string]int32{"fail": 4}[e.Cmd[0]]}, true
	})
	web := l.web(t, "admin")
	for path, want := range map[string]struct {
		code int
		text string
	}{
		"/run/ns/p/c?cmd=ls+-l":    {200, "ls|-l"},
		"/run/ns/p/u/c/?cmd=ls":    {200, "ls"},
		"/run/ns/p/c?cmd=fail+now": {500, "command '[fail now]' exited with 4: fail|now"},
		"/run/ns/q/c?cmd=ls":       {404, "pod does not exist"},
		"/run/ns/p/late?cmd=ls":    {500, `container not found ("late")`},
	} {
		if code, text, _ := l.fetch(t, web, http.MethodPost, path, nil); code != want.code || text != want.text {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+l.address+"/run/ns/p/c", strings.NewReader("cmd=from+form"))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	a, err := web.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = a.Body.Close()
	if all := l.rt.Execs(); a.StatusCode != 200 || strings.Join(all[len(all)-1].Cmd, "|") != "from|form" {
		t.Errorf("%d %v", a.StatusCode, all[len(all)-1].Cmd)
	}
}

// Shows: C-1.40.10
func TestC_1_40_10_Checkpoint(t *testing.T) {
	t.Parallel()
	l := newFixture(t, func(c *Config) { c.MaxCheckpoints = 2 })
	web := l.web(t, "admin")
	post := func(path string) (int, string) {
		t.Helper()
		code, text, _ := l.fetch(t, web, http.MethodPost, path, nil)
		return code, text
	}
	if code, text := post("/checkpoint/ns/p/c"); code != 501 || !strings.HasPrefix(text, "checkpointing of ns/p/c failed (") {
		t.Errorf("a runtime that cannot: %d %s", code, text)
	}
	l.rt.Checkpoints(true)
	for path, want := range map[string]int{"/checkpoint/ns/q/c": 404, "/checkpoint/ns/p/d": 404, "/checkpoint/ns/p/c?timeout=5&timeout=soon": 404, "/checkpoint/ns/p/late": 500} {
		if code, text := post(path); code != want {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	code, text := post("/checkpoint/ns/p/c?timeout=soon&timeout=5")
	var answer struct{ Items []string }
	if err := json.Unmarshal([]byte(text), &answer); err != nil || code != 200 || len(answer.Items) != 1 {
		t.Fatalf("%d %s", code, text)
	}
	name := filepath.Base(answer.Items[0])
	stamp := strings.TrimSuffix(strings.TrimPrefix(name, "checkpoint-p_ns-c-"), ".tar")
	if _, err := time.Parse(time.RFC3339, stamp); err != nil || filepath.Dir(answer.Items[0]) != l.cfg.CheckpointDir {
		t.Errorf("%s: %v", answer.Items[0], err)
	}
	if info, err := os.Stat(l.cfg.CheckpointDir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info, err)
	}
	if info, err := os.Stat(answer.Items[0]); err != nil || info.Size() == 0 {
		t.Errorf("%v, %v", info, err)
	}
}

// TestD1_CVE_2025_0426_CheckpointsAreFew: checkpoints do not fill the disk, and only an
// authorized caller makes one.
//
// Shows: D1
func TestD1_CVE_2025_0426_CheckpointsAreFew(t *testing.T) {
	t.Parallel()
	l := newFixture(t, func(c *Config) { c.MaxCheckpoints = 2 })
	l.rt.Checkpoints(true)
	for _, name := range []string{"", "unknown", "guest", "reader"} {
		if code, _, _ := l.fetch(t, l.web(t, name), http.MethodPost, "/checkpoint/ns/p/c", nil); code != 401 && code != 403 {
			t.Errorf("%q: %d", name, code)
		}
	}
	if err := os.MkdirAll(l.cfg.CheckpointDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := os.WriteFile(filepath.Join(l.cfg.CheckpointDir, fmt.Sprint(i)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if code, text, _ := l.fetch(t, l.web(t, "admin"), http.MethodPost, "/checkpoint/ns/p/c", nil); code != http.StatusInsufficientStorage || !strings.Contains(text, "there are 2 checkpoints") {
		t.Errorf("%d %s", code, text)
	}
	if all, err := os.ReadDir(l.cfg.CheckpointDir); err != nil || len(all) != 2 {
		t.Errorf("%v, %v", all, err)
	}
}

// TestD2_Audit: every privileged call of an authenticated caller has one line, with a sum
// of the command instead of the command.
//
// Shows: D2
func TestD2_Audit(t *testing.T) {
	t.Parallel()
	l := newFixture(t)
	secret := "s3cr3t-d1f0"
	l.fetch(t, l.web(t, "admin"), http.MethodPost, "/run/ns/p/c?cmd=true+--token="+secret, nil)
	l.fetch(t, l.web(t, "guest"), http.MethodPost, "/exec/ns/p/c?command=sh&command="+secret+"&output=1", nil)
	l.fetch(t, l.web(t, "unknown"), http.MethodPost, "/exec/ns/p/c?command=sh&output=1", nil)
	l.fetch(t, l.web(t, "admin"), http.MethodGet, "/pods", nil)
	l.stop()
	text := l.log.String()
	var lines []string
	for _, line := range strings.Split(text, "\n") {
		if strings.Contains(line, `msg="Privileged call"`) {
			lines = append(lines, line)
		}
	}
	if len(lines) != 2 || strings.Contains(text, secret) {
		t.Fatalf("%d lines: %s", len(lines), text)
	}
	for i, words := range [][]string{
		{"user=admin", "verb=run", "pod=ns/p", "container=c", "argv0=true", "commandSHA256=", "result=ok", "duration=", "peer=127.0.0.1"},
		{"user=guest", "verb=exec", "pod=ns/p", "argv0=sh", "result=403"},
	} {
		for _, word := range words {
			if !strings.Contains(lines[i], word) {
				t.Errorf("%s is not in %s", word, lines[i])
			}
		}
	}
}

// TestLocalRoutes_PodsNotRead_Are503: an agent that has not read its pods answers 503, not
// 404; a request for all pods waits until it has.
func TestLocalRoutes_PodsNotRead_Are503(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	known := make(chan struct{})
	cfg.PodsRead = known
	asked := make(chan struct{}, 2) // one send for each list that is answered
	of(cfg).pods = func() []v1.Pod {
		asked <- struct{}{}
		return []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}}
	}
	of(cfg).pod = func(string, string) *v1.Pod { return nil }
	cfg.Containers = of(cfg)
	of(cfg).logs = func(context.Context, io.Writer, LogRequest) error { return nil }
	web, _ := started(t, cfg)
	for _, path := range []string{"/containerLogs/a/p/c", "/v1/pods"} {
		if code, text, _ := full(t, web, "GET", path, ""); code != http.StatusServiceUnavailable || !strings.Contains(text, "has not read its pods yet") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	if len(asked) > 0 {
		t.Error("the agent was asked although it does not know its pods")
	}
	close(known)
	if code, text, _ := full(t, web, "GET", "/v1/pods", ""); code != http.StatusOK || !strings.Contains(text, `"name":"p"`) {
		t.Errorf("once it has: %d %s", code, text)
	}
	if code, _, _ := full(t, web, "GET", "/containerLogs/a/p/c", ""); code != http.StatusNotFound {
		t.Errorf("a pod that is not there: %d", code)
	}
}

// TestWaitForPods_PodsReadMeanwhile_IsTrue: a request for all pods waits for an agent that has
// just started, but no longer than podsReadTimeout.
func TestWaitForPods_PodsReadMeanwhile_IsTrue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		known := make(chan struct{})
		s := New(Config{PodsRead: known})
		if began := time.Now(); s.waitForPods(t.Context(), podsReadTimeout) || time.Since(began) != podsReadTimeout {
			t.Errorf("an agent that does not read its pods was awaited for %s, want %s", time.Since(began), podsReadTimeout)
		}
		answer := make(chan bool, 1) // one answer
		go func() { answer <- s.waitForPods(t.Context(), podsReadTimeout) }()
		time.Sleep(podsReadTimeout - 1)
		if len(answer) > 0 {
			t.Error("answered before the agent has read its pods")
		}
		close(known)
		if !<-answer {
			t.Error("the agent has read its pods, and the answer is no")
		}
	})
}

// TestLocalRoutes: the routes that the command line uses.
func TestLocalRoutes(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	pods := []v1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "p"}}, {ObjectMeta: metav1.ObjectMeta{Namespace: "b", Name: "p"}}}
	of(cfg).pods = func() []v1.Pod { return pods }
	of(cfg).watchPods = func(context.Context) iter.Seq2[string, *v1.Pod] {
		return func(yield func(string, *v1.Pod) bool) {
			_ = yield("ADDED", &pods[0]) && yield("BOOKMARK", &v1.Pod{}) && yield("MODIFIED", &pods[1]) && yield("DELETED", &pods[1])
		}
	}
	cfg.Node = of(cfg)
	of(cfg).events = func(_ context.Context, watch bool) iter.Seq2[string, *v1.Event] {
		return func(yield func(string, *v1.Event) bool) {
			for _, name := range []string{"p", "q"} {
				if !yield("ADDED", &v1.Event{Reason: "Started", InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "a", Name: name}}) {
					return
				}
			}
			if watch {
				yield("MODIFIED", &v1.Event{Reason: "BackOff", InvolvedObject: v1.ObjectReference{Kind: "Pod", Namespace: "a", Name: "p"}})
			}
		}
	}
	of(cfg).node = func(context.Context) (*v1.Node, error) {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, nil
	}
	of(cfg).images = func(context.Context) ([]Image, error) {
		return []Image{{ID: "i", Names: []string{"x:1"}, Size: 7}}, nil
	}
	var did []string
	cfg.Control = of(cfg)
	of(cfg).restart = func(_ context.Context, ns, name string, containers []string, grace *int64) error {
		if name == "gone" {
			return &StatusError{Code: 404, Message: "pods \"gone\" not found"}
		}
		if name == "bad" {
			return errors.New("ours")
		}
		did = append(did, fmt.Sprint("restart ", ns, "/", name, containers, graceText(grace)))
		return nil
	}
	of(cfg).delete = func(_ context.Context, ns, name, uid string, grace *int64) error {
		did = append(did, fmt.Sprint("delete ", ns, "/", name, " ", uid, graceText(grace)))
		return nil
	}
	of(cfg).drain = func(_ context.Context, grace *int64, undo bool) error {
		did = append(did, fmt.Sprint("drain ", graceText(grace), undo))
		return nil
	}
	cfg.Stats = of(cfg)
	of(cfg).summary = func(_ context.Context, only bool) (any, error) { return map[string]bool{"only": only}, nil }
	web, _ := started(t, cfg)
	for _, c := range []struct {
		method, path string
		code         int
		text         string
	}{
		{"GET", "/v1/pods?namespace=b", 200, `{"kind":"List","apiVersion":"v1","items":[{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"b"},`},
		{"GET", "/v1/pods?name=q", 200, `{"kind":"List","apiVersion":"v1","items":[]}`},
		{"GET", "/pods", 200, `{"kind":"PodList","apiVersion":"v1","metadata":{},"items":[{"metadata":{"name":"p","namespace":"a"},`},
		{"GET", "/v1/pods?watch=true&allowWatchBookmarks=true&namespace=b", 200, `{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{},`},
		{"GET", "/v1/pods?watch=true&namespace=b", 200, `{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"p","namespace":"b"},`},
		{"GET", "/v1/events?pod=q", 200, `{"kind":"EventList","apiVersion":"v1","metadata":{},"items":[{"metadata":{},"involvedObject":{"kind":"Pod","namespace":"a","name":"q"},"reason":"Started"`},
		{"GET", "/v1/events?watch=true&pod=p", 200, `{"type":"ADDED","object":{"kind":"Event","apiVersion":"v1",`},
		{"GET", "/v1/node", 200, `{"kind":"Node","apiVersion":"v1","metadata":{"name":"n"},`},
		{"GET", "/v1/images", 200, `{"kind":"ImageList","images":[{"id":"i","names":["x:1"],"size":7}]}`},
		{"GET", "/stats/summary?only_cpu_and_memory=true", 200, `{"only":true}`},
		{"GET", "/stats/summary", 200, `{"only":false}`},
		{"POST", "/v1/restart/a/p?container=c&container=d&gracePeriodSeconds=3", 200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`},
		{"POST", "/v1/restart/a/gone", 404, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"pods \"gone\" not found","reason":"NotFound","code":404}`},
		{"POST", "/v1/restart/a/bad", 500, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"the agent could not answer; see its log","reason":"InternalError","code":500}`},
		{"POST", "/v1/drain?gracePeriodSeconds=4", 200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`},
		{"POST", "/v1/drain?undo=true", 200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`},
		{"POST", "/v1/drain?grace=4", 400, `{"kind":"Status",`},
		{"POST", "/v1/delete/a/p?gracePeriodSeconds=-1", 400, `{"kind":"Status",`},
		{"POST", "/v1/delete/a/p?uid=u", 200, `{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Success"}`},
	} {
		if code, text, _ := full(t, web, c.method, c.path, ""); code != c.code || !strings.HasPrefix(text, c.text) {
			t.Errorf("%s %s: %d %s", c.method, c.path, code, text)
		}
	}
	if _, text, _ := full(t, web, "GET", "/v1/pods?watch=true&namespace=b", ""); strings.Count(text, "\n") != 2 || !strings.Contains(text, `{"type":"DELETED"`) {
		t.Errorf("%s", text)
	}
	if got := fmt.Sprint(did); got != "[restart a/p[c d] 3 drain  4false drain  nonetrue delete a/p u none]" {
		t.Error(got)
	}
}

func graceText(grace *int64) string {
	if grace == nil {
		return " none"
	}
	return fmt.Sprint(" ", *grace)
}
