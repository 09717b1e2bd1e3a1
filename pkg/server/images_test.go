package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// imageAnswers is an Images whose answers depend on the name.
type imageAnswers struct {
	calls []string
	pulls []ImagePull
}

func (a *imageAnswers) Pulls(context.Context) []ImagePull { return a.pulls }

func (a *imageAnswers) call(what, name string) error {
	a.calls = append(a.calls, what+" "+name)
	switch name {
	case "used":
		return &StatusError{Code: http.StatusConflict, Message: "image used is used by pod default/web"}
	case "broken":
		return errors.New("secret detail")
	}
	return nil
}

func (a *imageAnswers) PullImage(_ context.Context, name string) (string, error) {
	return "sha256:1", a.call("pull", name)
}

func (a *imageAnswers) RemoveImage(_ context.Context, name string) ([]string, error) {
	return []string{name, "other:1"}, a.call("remove", name)
}

func (a *imageAnswers) PruneImages(_ context.Context, dry bool) (ImageRemovals, error) {
	what := "prune"
	if dry {
		what = "look"
	}
	return ImageRemovals{Removed: []ImageRemoval{{ID: "sha256:1", Name: "old:1", Bytes: 5, Why: "unused"}}, Kept: []ImageRemoval{}}, a.call(what, "")
}

// TestImages_Socket_ReturnsResultOrReason: each route about images asks the part for the image that
// the query names, and answers with the result or the reason. Only the socket has them.
//
// Shows: D1
func TestImages_Socket_ReturnsResultOrReason(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	images := &imageAnswers{}
	cfg.Images, cfg.Node = images, of(cfg)
	seen := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	of(cfg).images = func(context.Context) ([]Image, error) {
		return []Image{{ID: "sha256:1", Names: []string{"a:1"}, Size: 7, FirstSeen: seen, UsedBy: []string{"pod default/web"}, Archive: true}}, nil
	}
	p := opened(t, cfg)
	web := client(cfg.Socket)
	for _, c := range []struct {
		method, path string
		code         int
		text         string
		calls        string // of the part, after this request
	}{
		{http.MethodGet, "", 200, `{"kind":"ImageList","images":[{"id":"sha256:1","names":["a:1"],"size":7,"firstSeen":"2026-11-27T00:00:00Z","usedBy":["pod default/web"],"archive":true}]}`, ""},
		{http.MethodPost, "/pull?name=" + url.QueryEscape("r.io/a:1@sha256:0"), 200, `{"id":"sha256:1"}`, "pull r.io/a:1@sha256:0"},
		{http.MethodPost, "/pull", 400, "no image is named", ""},
		{http.MethodPost, "/pull?name=used", 409, "image used is used by pod default/web", "pull used"},
		{http.MethodPost, "/pull?name=a&other=b", 400, "no parameter other", ""},
		{http.MethodPost, "/remove?name=a%3A1", 200, `{"names":["a:1","other:1"]}`, "remove a:1"},
		{http.MethodPost, "/remove?name=", 400, "no image is named", ""},
		{http.MethodPost, "/remove?name=used", 409, "image used is used by pod default/web", "remove used"},
		{http.MethodPost, "/remove?name=broken", 500, "see its log", "remove broken"},
		{http.MethodPost, "/prune", 200, `"removed":[{"id":"sha256:1","name":"old:1","bytes":5,"why":"unused"}],"kept":[]`, "prune "},
		{http.MethodPost, "/prune?dryRun=true", 200, `"removed":[{"id":`, "look "},
		{http.MethodGet, "/prune?dryRun=true", 405, "does not support GET", ""},
	} {
		images.calls = nil
		code, text := plain(t, web, c.method, "/v1/images"+c.path, "")
		if code != c.code || !strings.Contains(text, c.text) || strings.Join(images.calls, ",") != c.calls || strings.Contains(text, "secret detail") {
			t.Errorf("%s %s: %d %s, calls %q; want %d %s, %q", c.method, c.path, code, text, images.calls, c.code, c.text, c.calls)
		}
		if code, text, _ := p.fetch(t, p.web(t, "admin"), c.method, "/v1/images"+c.path, nil); code != 404 {
			t.Errorf("%s %s on TLS: %d %s", c.method, c.path, code, text)
		}
	}
}

// TestPulls_Socket_HaveTheirProgress: /v1/pulls lists pulls with the progress that is known, and an
// empty list without any.
func TestPulls_Socket_HaveTheirProgress(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	images := &imageAnswers{}
	cfg.Images = images
	web, _ := started(t, cfg)
	since := time.Date(2026, 11, 27, 0, 0, 0, 0, time.UTC)
	for want, pulls := range map[string][]ImagePull{
		`{"kind":"PullList","pulls":[]}`: nil,
		`{"kind":"PullList","pulls":[{"image":"a:1","since":"2026-11-27T00:00:00Z","bytes":5,"total":10},{"image":"b:1","since":"2026-11-27T00:00:00Z","waiting":true}]}`: {
			{Image: "a:1", Since: since, Bytes: 5, Total: 10}, {Image: "b:1", Since: since, Waiting: true},
		},
	} {
		images.pulls = pulls
		if code, text := plain(t, web, http.MethodGet, "/v1/pulls", ""); code != 200 || strings.TrimSpace(text) != want {
			t.Errorf("%d %s, want %s", code, text, want)
		}
	}
}

// TestImages_NoImage_ListIsEmpty: a node without images has a list, not null.
func TestImages_NoImage_ListIsEmpty(t *testing.T) {
	t.Parallel()
	cfg := testConfig(filepath.Join(root(t), "nodectl.sock"))
	cfg.Node = of(cfg)
	of(cfg).images = func(context.Context) ([]Image, error) { return nil, nil }
	web, _ := started(t, cfg)
	if code, text := plain(t, web, http.MethodGet, "/v1/images", ""); code != 200 || strings.TrimSpace(text) != `{"kind":"ImageList","images":[]}` {
		t.Errorf("%d %s", code, text)
	}
}
