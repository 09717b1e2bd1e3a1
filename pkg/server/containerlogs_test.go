package server

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/logs"
)

// Shows: C-1.40.8
func TestC_1_40_8_Query(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := LogRequest{Tail: -1, Limit: -1, Stdout: true, Stderr: true}
	for query, c := range map[string]struct {
		change func(*LogRequest)
		code   int
	}{
		"":                                    {func(*LogRequest) {}, 0},
		"follow=true&timestamps&previous=1":   {func(l *LogRequest) { l.Follow, l.Timestamps, l.Previous = true, true, true }, 0},
		"follow=false&timestamps=0&previous=": {func(l *LogRequest) { l.Previous = true }, 0},
		"tailLines=0":                         {func(l *LogRequest) { l.Tail = 0 }, 0},
		"tail=7":                              {func(l *LogRequest) { l.Tail = 7 }, 0},
		"tail=all&tailLines=3":                {func(*LogRequest) {}, 0},
		"tailLines=-1":                        {nil, 422},
		"tailLines=some":                      {nil, 400},
		"limitBytes=5":                        {func(l *LogRequest) { l.Limit = 5 }, 0},
		"limitBytes=0":                        {nil, 422},
		"limitBytes=9999999999999999999":      {nil, 400},
		"sinceSeconds=5":                      {func(l *LogRequest) { l.Since = now.Add(-5 * time.Second) }, 0},
		"sinceSeconds=0":                      {nil, 422},
		"sinceTime=2026-01-02T03:04:00Z":      {func(l *LogRequest) { l.Since = now.Add(-5 * time.Second) }, 0},
		"sinceTime=yesterday":                 {nil, 400},
		"sinceSeconds=5&sinceTime=2026-01-02T03:04:00Z": {nil, 422},
		"stream=All":                {func(*LogRequest) {}, 0},
		"stream=Stdout":             {func(l *LogRequest) { l.Stderr = false }, 0},
		"stream=Stderr":             {func(l *LogRequest) { l.Stdout = false }, 0},
		"stream=stdout":             {nil, 422},
		"stream=Stdout&tailLines=1": {nil, 422},
		"unknown=1&container=c":     {func(*LogRequest) {}, 0},
	} {
		q, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		got, err := parseLogRequest(q, now)
		if c.code != 0 {
			var refusal *StatusError
			if !errors.As(err, &refusal) || refusal.Code != c.code {
				t.Errorf("%s: %v, want %d", query, err, c.code)
			}
			continue
		}
		want := all
		c.change(&want)
		if err != nil || !got.Since.Equal(want.Since) {
			t.Errorf("%s: %v, %v", query, got.Since, err)
		}
		got.Since, want.Since = time.Time{}, time.Time{}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", query, got, want)
		}
	}
}

// TestC_1_40_8_SelectedLog: which container's log a query selects, and the error if there is
// none.
//
// Shows: C-1.40.8
func TestC_1_40_8_SelectedLog(t *testing.T) {
	t.Parallel()
	running := v1.ContainerState{Running: &v1.ContainerStateRunning{}}
	waits := func(reason string) v1.ContainerState {
		return v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: reason}}
	}
	ended := func(id string) v1.ContainerState {
		return v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: id}}
	}
	for name, c := range map[string]struct {
		now, last v1.ContainerState
		restarts  int32
		previous  bool
		id        string
		attempt   int
		err       string
	}{
		"runs":                 {now: running, restarts: 2, last: ended("x://old"), id: "cur", attempt: 2},
		"runs, previous":       {now: running, restarts: 2, last: ended("x://old"), previous: true, id: "old", attempt: 1},
		"first, previous":      {now: running, previous: true, err: `previous terminated container "c" in pod "p" not found`},
		"ended":                {now: ended("x://cur"), id: "cur"},
		"ended, previous":      {now: ended("x://cur"), restarts: 1, last: ended("x://old"), previous: true, id: "old"},
		"backs off":            {now: waits("CrashLoopBackOff"), restarts: 3, last: ended("x://old"), id: "old", attempt: 3},
		"backs off, previous":  {now: waits("CrashLoopBackOff"), restarts: 3, last: ended("x://old"), previous: true, id: "old", attempt: 3},
		"not made":             {now: ended(""), err: `container "c" in pod "p" is terminated`},
		"is being made":        {now: waits("ContainerCreating"), err: `container "c" in pod "p" is waiting to start: ContainerCreating`},
		"its image":            {now: waits("ErrImagePull"), err: `container "c" in pod "p" is waiting to start: image can't be pulled`},
		"its image, once more": {now: waits("ImagePullBackOff"), err: `container "c" in pod "p" is waiting to start: trying and failing to pull image`},
		"nothing is known":     {err: `container "c" in pod "p" is waiting to start - no logs yet`},
	} {
		l := LogRequest{Container: "c", Previous: c.previous, Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Status: v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{
			{Name: "c", ContainerID: "containerd://cur", State: c.now, LastTerminationState: c.last, RestartCount: c.restarts},
		}}}}
		err := setContainer(&l)
		if err == nil && c.err != "" || err != nil && err.Error() != c.err || l.ContainerID != c.id || l.Attempt != c.attempt {
			t.Errorf("%s: %q %d, %v", name, l.ContainerID, l.Attempt, err)
		}
	}
	if err := setContainer(&LogRequest{Container: "c", Pod: &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}}}); err == nil || err.Error() != `container "c" in pod "p" is not available` {
		t.Error(err)
	}
}

// TestC_1_40_8_OverTheWire: with the real log reader, over TLS: codes, the lines as they
// are written, and the end with the container.
//
// Shows: C-1.40.8
func TestC_1_40_8_OverTheWire(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	write := func(text string) {
		t.Helper()
		f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := io.WriteString(f, "2026-01-02T03:04:05Z stdout F "+text+"\n"); err != nil {
			t.Fatal(err)
		}
	}
	var mu sync.Mutex
	status := v1.ContainerStatus{Name: "c", ContainerID: "containerd://id", State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	set := func(s v1.ContainerState) { mu.Lock(); defer mu.Unlock(); status.State = s }
	l := newFixture(t, func(c *Config) {
		of(*c).pod = func(namespace, name string) *v1.Pod {
			mu.Lock()
			defer mu.Unlock()
			if namespace != "ns" || name != "p" {
				return nil
			}
			return &v1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
				Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}, {Name: "late"}}},
				Status:     v1.PodStatus{ContainerStatuses: []v1.ContainerStatus{status, {Name: "late", State: v1.ContainerState{Waiting: &v1.ContainerStateWaiting{Reason: "PodInitializing"}}}}},
			}
		}
		c.Containers = of(*c)
		of(*c).logs = func(ctx context.Context, w io.Writer, l LogRequest) error {
			return logs.Read(ctx, w, logs.File{Dir: dir, Path: "0.log"}, logs.Options{
				Stdout: l.Stdout, Stderr: l.Stderr, Timestamps: l.Timestamps, Tail: l.Tail, Since: l.Since, Limit: l.Limit, Follow: l.Follow, Ended: l.Ended,
			})
		}
	})
	web := l.web(t, "admin")
	for _, c := range []struct {
		path string
		code int
		text string
	}{
		{"/containerLogs/ns/p/c", 400, "no such file"},
		{"/containerLogs/ns/p", 400, "Missing container name."},
		{"/containerLogs/ns", 400, "Missing podID."},
		{"/containerLogs", 400, "Missing podID."},
		{"/containerLogs/ns/q/c", 404, `pod "q" does not exist`},
		{"/containerLogs/ns/p/d", 404, `container "d" not found in pod "p"`},
		{"/containerLogs/ns/p/late", 400, `container "late" in pod "p" is waiting to start: PodInitializing`},
		{"/containerLogs/ns/p/c?tailLines=-1", 422, "Invalid request."},
		{"/containerLogs/ns/p/c?tailLines=x", 400, "Unable to decode query."},
	} {
		if code, text, _ := l.fetch(t, web, http.MethodGet, c.path, nil); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %q, want %d %q", c.path, code, text, c.code, c.text)
		}
	}
	write("one")
	write("two")
	if code, text, header := l.fetch(t, web, http.MethodGet, "/containerLogs/ns/p/c?tailLines=1&unknown=x", nil); code != 200 || text != "two\n" || header.Get("Content-Type") != "text/plain; charset=utf-8" {
		t.Errorf("%d %q %v", code, text, header)
	}
	a, err := web.Get("https://" + l.address + "/containerLogs/ns/p/c?follow=true&tailLines=1")
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	in := bufio.NewReader(a.Body)
	for _, want := range []string{"two\n", "three\n", "four\n"} {
		if line, err := in.ReadString('\n'); err != nil || line != want {
			t.Fatalf("%q, %v", line, err)
		}
		if want != "four\n" {
			write(map[string]string{"two\n": "three", "three\n": "four"}[want])
		}
	}
	set(v1.ContainerState{Terminated: &v1.ContainerStateTerminated{ContainerID: "containerd://id"}})
	if rest, err := io.ReadAll(in); err != nil || len(rest) > 0 {
		t.Errorf("%q, %v", rest, err)
	}
}
