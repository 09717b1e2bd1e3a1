package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// classes has the rights that every route needs. The test fails for a route that is missing
// here or has other rights, so that each new route gets a decision.
var classes = map[string]string{
	"GET /v1/updates": "local", "GET /v1/pods": "local", "GET /v1/sources": "local", "GET /v1/events": "local",
	"GET /v1/node": "local", "GET /v1/images": "local", "GET /v1/devices": "local", "GET /v1/services": "local", "GET /v1/allocations": "local", "GET /v1/pulls": "local", "GET /v1/workloads": "local", "GET /v1/reclaim": "local", "GET /v1/why/{namespace}/{pod}": "local",
	"POST /v1/images/pull": "local", "POST /v1/images/remove": "local", "POST /v1/images/prune": "local",
	"POST /v1/workloads/{kind}/{namespace}/{name}/{verb}": "local",
	"POST /v1/drain": "local", "POST /v1/restart/{namespace}/{pod}": "local", "POST /v1/delete/{namespace}/{pod}": "local",

	"GET /healthz": "get healthz proxy", "GET /livez": "get healthz proxy", "GET /readyz": "get healthz proxy",
	"GET /healthz/{check}": "get healthz proxy", "GET /livez/{check}": "get healthz proxy", "GET /readyz/{check}": "get healthz proxy",
	"GET /pods": "get pods proxy", "GET /runningpods": "get pods proxy", "GET /configz": "get configz proxy",
	"GET /stats/summary": "get stats", "GET /metrics": "get metrics", "GET /metrics/resource": "get metrics",
	"GET /metrics/cadvisor": "get metrics", "GET /metrics/probes": "get metrics",
	"GET /containerLogs": "get proxy", "GET /containerLogs/{namespace}": "get proxy",
	"GET /containerLogs/{namespace}/{pod}": "get proxy", "GET /containerLogs/{namespace}/{pod}/{container}": "get proxy",

	"GET /exec/{namespace}/{pod}/{container}": "create exec proxy", "GET /exec/{namespace}/{pod}/{uid}/{container}": "create exec proxy",
	"POST /exec/{namespace}/{pod}/{container}": "create exec proxy", "POST /exec/{namespace}/{pod}/{uid}/{container}": "create exec proxy",
	"GET /attach/{namespace}/{pod}/{container}": "create attach proxy", "GET /attach/{namespace}/{pod}/{uid}/{container}": "create attach proxy",
	"POST /attach/{namespace}/{pod}/{container}": "create attach proxy", "POST /attach/{namespace}/{pod}/{uid}/{container}": "create attach proxy",
	"POST /run/{namespace}/{pod}/{container}": "create run proxy", "POST /run/{namespace}/{pod}/{uid}/{container}": "create run proxy",
	"GET /portForward/{namespace}/{pod}": "create portForward proxy", "GET /portForward/{namespace}/{pod}/{uid}": "create portForward proxy",
	"POST /portForward/{namespace}/{pod}": "create portForward proxy", "POST /portForward/{namespace}/{pod}/{uid}": "create portForward proxy",
	"POST /checkpoint/{namespace}/{pod}/{container}": "create checkpoint",
	"GET /debug/pprof": "get proxy", "GET /debug/pprof/{profile}": "get proxy", "PUT /debug/flags/v": "update proxy",
	"GET /logs": "get log", "GET /logs/{path...}": "get log",
}

// concrete returns a path that matches a route.
func concrete(path string) string {
	return strings.NewReplacer("{namespace}", "ns", "{pod}", "p", "{uid}", "u", "{kind}", "Deployment", "{name}", "web", "{verb}", "pause", "{container}", "c", "{check}", "ping", "{profile}", "cmdline", "{path...}", "apt/history.log").Replace(path)
}

// TestRoutes_EachRoute_IsCompleteAndClassified: every route has all its fields, and is in
// classes.
//
// Shows: D1
func TestRoutes_EachRoute_IsCompleteAndClassified(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for _, it := range routes() {
		for _, method := range it.methods {
			name := method + " " + it.path
			if seen[name] {
				t.Errorf("%s stands there twice", name)
			}
			seen[name] = true
			class := "local"
			if it.kubelet {
				class = it.verbFor(method) + " " + strings.Join(it.subresources, " ")
			}
			if class != classes[name] {
				t.Errorf("%s is %q, and ought to be %q", name, class, classes[name])
			}
		}
		if it.kubelet == strings.HasPrefix(it.path, "/v1/") || filepath.Clean(it.path) != it.path {
			t.Errorf("%s: the path does not fit the kind of route, or is not clean", it.path)
		}
		if (it.timeout == 0) != (it.kind != document) {
			t.Errorf("%s: a timeout of %s", it.path, it.timeout)
		}
		if it.kubelet && len(it.query) > 0 || it.serve == nil || it.body > 64<<10 || it.body > 0 && it.kind != document {
			t.Errorf("%s is not whole", it.path)
		}
		if it.privileged != (it.verb == "create" || slices.Contains(it.methods, http.MethodPost) || slices.Contains(it.methods, http.MethodPut)) {
			t.Errorf("%s: exactly the routes that change something must be privileged", it.path)
		}
		if it.health != (it.kubelet && it.subresources[0] == "healthz") {
			t.Errorf("%s: on the health port", it.path)
		}
	}
	for name := range classes {
		if !seen[name] {
			t.Errorf("there is no %s", name)
		}
	}
}

// TestSocket_EachRoute_AnswersAsRegistered: methods, paths, parameters and
// bodies.
//
// Shows: C-1.40.12, D1
func TestSocket_EachRoute_AnswersAsRegistered(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(root(t), "nodectl.sock")
	cfg := testConfig(socket)
	web, _ := started(t, cfg)
	for _, it := range routes() {
		path := concrete(it.path)
		for _, method := range it.methods {
			code, text := plain(t, web, method, path, "")
			if it.path == "/v1/updates" || it.path == "/v1/sources" || it.path == "/v1/pods" || it.path == "/pods" {
				if code != http.StatusOK || !json.Valid([]byte(text)) {
					t.Errorf("%s %s: %d %s", method, path, code, text)
				}
			} else if strings.HasPrefix(it.path, "/debug/pprof") {
				if code != http.StatusOK || text == "" {
					t.Errorf("%s %s: %d %s", method, path, code, text)
				}
			} else if it.health {
				if code != http.StatusOK || text != "ok" {
					t.Errorf("%s %s: %d %s", method, path, code, text)
				}
			} else if code != http.StatusNotImplemented { // testConfig has no other parts
				t.Errorf("%s %s: %d %s", method, path, code, text)
			}
			if code, _ := plain(t, web, method, path+"?a=%zz", ""); code != http.StatusBadRequest {
				t.Errorf("%s with a broken query: %d", path, code)
			}
			code, text = plain(t, web, method, path+"?absent=1", "")
			if unknown := code == http.StatusBadRequest && strings.Contains(text, "absent"); unknown == it.kubelet {
				t.Errorf("%s with an unknown parameter: %d %s", path, code, text)
			}
			if code, _ := plain(t, web, method, path, strings.Repeat("b", int(it.body)+1)); code != http.StatusRequestEntityTooLarge {
				t.Errorf("%s with a body: %d", path, code)
			}
		}
		for _, method := range []string{http.MethodHead, http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodTrace, "PROPFIND"} {
			if slices.Contains(it.methods, method) {
				continue
			}
			code, text, header := full(t, web, method, path, "")
			if method == http.MethodHead && it.health {
				if code != http.StatusOK || text != "" {
					t.Errorf("HEAD %s: %d %q", path, code, text)
				}
				continue
			}
			if code != http.StatusMethodNotAllowed || header.Get("Allow") != strings.Join(it.methods, ", ") {
				t.Errorf("%s %s: %d, Allow %q", method, path, code, header.Get("Allow"))
			}
		}
		// With one more part, a containerLogs path matches the next route.
		strange := []string{path + "//", strings.ToUpper(path), "/" + path, path + "%2f", "/x/.." + path}
		if !it.kubelet {
			strange = append(strange, path+"/")
		} else if code, _ := plain(t, web, it.methods[0], path+"/", ""); code == http.StatusNotFound {
			t.Errorf("%s/ is another path", path)
		}
		for _, path := range strange {
			if code, _ := plain(t, web, it.methods[0], path, ""); code != http.StatusNotFound {
				t.Errorf("%s: %d", path, code)
			}
		}
	}
	for _, path := range []string{"/", "/v1", "/v2/pods", "/debug/vars", "/debug/flags", "/logs/..", "/spec/", "/stats", "/exec", "/run", "/statusz", "/cri/"} {
		if code, _ := plain(t, web, http.MethodGet, path, ""); code != http.StatusNotFound {
			t.Errorf("%s: %d", path, code)
		}
	}
}

func plain(t *testing.T, web *http.Client, method, path, body string) (int, string) {
	t.Helper()
	code, text, _ := full(t, web, method, path, body)
	return code, text
}

// TestTLS_EveryRouteAndCaller_HasItsCode calls every route of the TLS port, first without a
// certificate and with one of another authority. Then it calls them as a user without rights, one
// who may only get, one whose access review fails, and one who may do everything.
//
// Shows: D1
func TestTLS_EveryRouteAndCaller_HasItsCode(t *testing.T) {
	t.Parallel()
	p := opened(t, testConfig(filepath.Join(root(t), "nodectl.sock")))
	callers := map[string]*http.Client{}
	for _, name := range []string{"", "unknown", "guest", "reader", "unasked", "admin"} {
		callers[name] = p.web(t, name)
	}
	asked := 0
	for _, it := range routes() {
		path := concrete(it.path)
		for _, method := range it.methods {
			class := classes[method+" "+it.path]
			for name, web := range callers {
				code, text, header := p.fetch(t, web, method, path, nil)
				asked++
				want := map[string]int{"": 401, "unknown": 401, "guest": 403, "reader": 403, "unasked": 500, "admin": 0}[name]
				if name == "reader" && strings.HasPrefix(class, "get ") {
					want = 0
				}
				switch {
				case class == "local" && want != 401:
					want = 404 // not on the TLS port
				case want == 0 && (code == 401 || code == 403 || code == 404):
					t.Errorf("%s %s as %s: %d %s", method, path, name, code, text)
				}
				if want != 0 && code != want {
					t.Errorf("%s %s as %q: %d %s, want %d", method, path, name, code, text, want)
				}
				words := map[int]string{401: "Unauthorized", 403: fmt.Sprintf("Forbidden (user=%s, verb=%s, resource=nodes, subresource(s)=[%s])\n", name, it.verbFor(method), strings.Join(it.subresources, " "))}[want]
				if words != "" && text != words {
					t.Errorf("%s as %q: %q, want %q", path, name, text, words)
				}
				if want == 500 && !strings.HasPrefix(text, "Authorization error (user=unasked, verb=") {
					t.Errorf("%s: %q", path, text)
				}
				if header.Get("X-Content-Type-Options") != "nosniff" || header.Get("Cache-Control") != "no-store" || header.Get("Access-Control-Allow-Origin") != "" {
					t.Errorf("%s: %v", path, header)
				}
			}
			if it.verb == "create" && it.kind == upgrade {
				upgrade := http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Sec-Websocket-Protocol": {"v5.channel.k8s.io"}}
				if code, _, _ := p.fetch(t, callers["reader"], method, path, upgrade); code != 403 {
					t.Errorf("%s by a WebSocket, with get alone: %d", path, code)
				}
			}
		}
	}
	for _, path := range []string{"/", "/debug/vars", "/logs/..", "/spec/", "/v1/pods", "/checkpoint", "/unknown"} {
		for name, want := range map[string]int{"": 401, "unknown": 401, "guest": 404, "admin": 404} {
			if code, _, _ := p.fetch(t, callers[name], http.MethodGet, path, nil); code != want {
				t.Errorf("%s as %q: %d", path, name, code)
			}
		}
	}
	if asked < 200 {
		t.Errorf("only %d questions", asked)
	}
}

// TestTLS_NoAccess_EveryRouteIsDenied: a TLS port without an Access refuses all requests.
//
// Shows: D1
func TestTLS_NoAccess_EveryRouteIsDenied(t *testing.T) {
	t.Parallel()
	s := New(Config{})
	if _, refusal := s.authenticateTLS(&http.Request{}); refusal == nil || refusal.Code != http.StatusUnauthorized {
		t.Errorf("%v", refusal)
	}
	for i := range s.routes {
		q := &request{Request: &http.Request{Method: s.routes[i].methods[0]}, route: &s.routes[i], caller: Caller{Name: "anna"}}
		if refusal := (&listenerHandler{Server: s}).authorize(q); refusal == nil || refusal.Code != http.StatusForbidden {
			t.Errorf("%s: %v", s.routes[i].path, refusal)
		}
	}
}

func FuzzFind(f *testing.F) {
	for _, it := range routes() {
		f.Add(concrete(it.path))
		f.Add(concrete(it.path) + "/%2e%2e/x")
	}
	s := New(Config{})
	f.Fuzz(func(t *testing.T, path string) {
		u, err := url.Parse("https://node:10250" + path)
		if err != nil {
			return
		}
		q, refusal := s.find(&http.Request{Method: http.MethodGet, URL: u}, func(r *route) bool { return r.kubelet })
		if q == nil {
			if refusal == nil || refusal.Code != http.StatusNotFound {
				t.Fatalf("%q: %v", path, refusal)
			}
			return
		}
		if refusal != nil && refusal.Code == http.StatusMethodNotAllowed {
			return
		}
		for name, value := range q.values {
			if value == "" || strings.ContainsAny(value, "/\x00") && (name != "path" || !filepath.IsLocal(value)) {
				t.Fatalf("%q: %s is %q", path, name, value)
			}
		}
		// The values put into the route's path give the request's path again.
		again := q.route.path
		for name, value := range q.values {
			again = strings.ReplaceAll(again, "{"+name+"}", url.PathEscape(value))
			again = strings.ReplaceAll(again, "{"+name+"...}", strings.ReplaceAll(url.PathEscape(value), "%2F", "/"))
		}
		back, err := url.Parse(again)
		if err != nil || strings.TrimSuffix(u.Path, "/") != strings.TrimSuffix(back.Path, "/") && u.Path != "/" {
			t.Fatalf("%q is %q, %v", path, again, err)
		}
	})
}
