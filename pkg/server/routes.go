package server

import (
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// answerKind says when an answer ends.
type answerKind int

const (
	document answerKind = iota // ends within the route's timeout
	stream                     // has no time limit
	upgrade                    // takes over the connection
)

// route is one entry of the registry. The server refuses a request that matches no route.
type route struct {
	methods []string
	path    string // "/exec/{namespace}/{pod}/{container}"; a last {path...} is one part or more
	kind    answerKind
	// watch makes a document a stream if the query has watch=true.
	watch   bool
	query   []string      // allowed parameters; the kubelet's routes ignore unknown ones
	body    int64         // limit of a request's body in bytes; 0: no body
	timeout time.Duration // for a document

	// kubelet marks a route of the kubelet. The socket and the TLS listener serve it. As in
	// the kubelet, its path may end with a slash, and its errors are plain text. Only the
	// socket serves the other routes.
	kubelet bool
	// verb is the verb that the caller needs on one of the node's subresources; if
	// empty, the method decides (C-1.40.3).
	verb         string
	subresources []string
	privileged   bool // calls have a line in the audit file
	debugging    bool // disabled by enableDebuggingHandlers: false (C-1.40.11)
	// disabled returns the answer of the TLS port while a setting disables the route, else "". It
	// may be nil.
	disabled func(*Config) string
	health   bool // the health listener serves it too
	files    bool // it answers with files of the machine; such requests have a limit of their own

	serve func(*Server, http.ResponseWriter, *request) error
}

// request is one request to one route.
type request struct {
	*http.Request
	route   *route
	caller  Caller
	limiter *requestLimiter   // of the listener that the request came to
	values  map[string]string // of the path
	params  url.Values
	// result is the call's result for the audit file: "ok", "error" or the code of a StatusError.
	// For a command it may be "exit N" with its exit code, or "left" if the session ended first.
	result string
	began  bool // the streams of an upgrade were opened
	// notRecorded is the number of refusals of this caller without an audit line.
	notRecorded int
}

const (
	quickTimeout = 30 * time.Second
	slowTimeout  = 2 * time.Minute
	runTimeout   = 10 * time.Minute // for calls that wait for a command, the runtime or a disk
	pullTimeout  = 30 * time.Minute // the time limit of the runtime's client for a pull
)

// routes returns the registry of all routes.
func routes() []route {
	get, post, both := []string{http.MethodGet}, []string{http.MethodPost}, []string{http.MethodGet, http.MethodPost}
	list := []route{
		{methods: get, path: "/v1/updates", query: []string{"mode", "full", "source", "namespace", "selector", "max", "notices"}, kind: stream, serve: (*Server).updates},
		{methods: get, path: "/v1/pods", query: []string{"watch", "allowWatchBookmarks", "namespace", "name"}, watch: true, timeout: quickTimeout, serve: (*Server).localPods},
		{methods: get, path: "/v1/sources", timeout: quickTimeout, serve: (*Server).sources},
		{methods: get, path: "/v1/events", query: []string{"watch", "namespace", "pod"}, watch: true, timeout: quickTimeout, serve: (*Server).events},
		{methods: get, path: "/v1/node", timeout: quickTimeout, serve: (*Server).node},
		{methods: get, path: "/v1/why/{namespace}/{pod}", timeout: quickTimeout, serve: (*Server).why},
		{methods: get, path: "/v1/images", timeout: quickTimeout, serve: (*Server).images},
		{methods: get, path: "/v1/services", timeout: quickTimeout, serve: (*Server).services},
		{methods: get, path: "/v1/devices", timeout: quickTimeout, serve: (*Server).devices},
		{methods: get, path: "/v1/allocations", timeout: quickTimeout, serve: (*Server).allocations},
		{methods: get, path: "/v1/workloads", query: []string{"kind", "history"}, timeout: quickTimeout, serve: (*Server).workloads},
		{methods: get, path: "/v1/pulls", timeout: quickTimeout, serve: (*Server).pulls},
		{methods: get, path: "/v1/reclaim", query: []string{"assume"}, timeout: slowTimeout, serve: (*Server).reclaim},
		{methods: post, path: "/v1/images/pull", query: []string{"name"}, timeout: pullTimeout, privileged: true, serve: (*Server).pullImage},
		{methods: post, path: "/v1/images/remove", query: []string{"name"}, timeout: runTimeout, privileged: true, serve: (*Server).removeImage},
		{methods: post, path: "/v1/images/prune", query: []string{"dryRun"}, timeout: runTimeout, privileged: true, serve: (*Server).pruneImages},
		{methods: post, path: "/v1/drain", query: []string{"gracePeriodSeconds", "undo"}, timeout: quickTimeout, privileged: true, serve: (*Server).drainNode},
		{methods: post, path: "/v1/workloads/{kind}/{namespace}/{name}/{verb}", query: []string{"replicas", "currentReplicas", "revision", "job", "field"}, timeout: quickTimeout, privileged: true, serve: (*Server).changeWorkload},
		{methods: post, path: "/v1/restart/{namespace}/{pod}", query: []string{"container", "gracePeriodSeconds"}, timeout: runTimeout, privileged: true, serve: (*Server).restart},
		{methods: post, path: "/v1/delete/{namespace}/{pod}", query: []string{"gracePeriodSeconds", "uid"}, timeout: runTimeout, privileged: true, serve: (*Server).delete},
	}
	add := func(r route) {
		r.kubelet = true
		list = append(list, r)
	}
	for _, path := range []string{"/healthz", "/livez", "/readyz", "/healthz/{check}", "/livez/{check}", "/readyz/{check}"} {
		add(route{methods: get, path: path, timeout: quickTimeout, health: true, subresources: []string{"healthz", "proxy"}, serve: (*Server).healthz})
	}
	add(route{methods: get, path: "/pods", timeout: quickTimeout, subresources: []string{"pods", "proxy"}, serve: (*Server).pods})
	add(route{methods: get, path: "/runningpods", timeout: quickTimeout, debugging: true, subresources: []string{"pods", "proxy"}, serve: (*Server).runningPods})
	add(route{methods: get, path: "/configz", timeout: quickTimeout, subresources: []string{"configz", "proxy"}, serve: (*Server).configz})
	add(route{methods: get, path: "/stats/summary", timeout: slowTimeout, subresources: []string{"stats"}, serve: (*Server).summary})
	for path, serve := range map[string]func(*Server, http.ResponseWriter, *request) error{
		"/metrics": (*Server).metrics, "/metrics/resource": (*Server).resourceMetrics,
		"/metrics/cadvisor": (*Server).cadvisorMetrics, "/metrics/probes": (*Server).probeMetrics,
	} {
		add(route{methods: get, path: path, timeout: slowTimeout, subresources: []string{"metrics"}, serve: serve})
	}
	for _, path := range []string{"/containerLogs", "/containerLogs/{namespace}", "/containerLogs/{namespace}/{pod}", "/containerLogs/{namespace}/{pod}/{container}"} {
		add(route{methods: get, path: path, kind: stream, debugging: true, subresources: []string{"proxy"}, serve: (*Server).containerLogs})
	}
	for _, end := range []string{"/{namespace}/{pod}/{container}", "/{namespace}/{pod}/{uid}/{container}"} {
		add(route{methods: both, path: "/exec" + end, kind: upgrade, verb: "create", subresources: []string{"exec", "proxy"}, privileged: true, debugging: true, serve: (*Server).exec})
		add(route{methods: both, path: "/attach" + end, kind: upgrade, verb: "create", subresources: []string{"attach", "proxy"}, privileged: true, debugging: true, serve: (*Server).attach})
		add(route{methods: post, path: "/run" + end, timeout: runTimeout, body: 64 << 10, verb: "create", subresources: []string{"run", "proxy"}, privileged: true, debugging: true, serve: (*Server).runCommand})
	}
	for _, end := range []string{"/{namespace}/{pod}", "/{namespace}/{pod}/{uid}"} {
		add(route{methods: both, path: "/portForward" + end, kind: upgrade, verb: "create", subresources: []string{"portForward", "proxy"}, privileged: true, debugging: true, serve: (*Server).portForward})
	}
	add(route{methods: get, path: "/debug/pprof", timeout: quickTimeout, debugging: true, disabled: profilesOff, subresources: []string{"proxy"}, serve: (*Server).profiles})
	add(route{methods: get, path: "/debug/pprof/{profile}", timeout: slowTimeout, debugging: true, disabled: profilesOff, subresources: []string{"proxy"}, serve: (*Server).profile})
	for _, path := range []string{"/logs", "/logs/{path...}"} {
		add(route{methods: get, path: path, timeout: runTimeout, debugging: true, files: true, disabled: systemLogsOff, subresources: []string{"log"}, serve: (*Server).systemLogs})
	}
	add(route{methods: []string{http.MethodPut}, path: "/debug/flags/v", timeout: quickTimeout, body: 16, debugging: true, disabled: flagsOff, subresources: []string{"proxy"}, privileged: true, serve: (*Server).setVerbosity})
	add(route{methods: post, path: "/checkpoint/{namespace}/{pod}/{container}", timeout: runTimeout, verb: "create", subresources: []string{"checkpoint"}, privileged: true, serve: (*Server).checkpoint})
	return list
}

// verbFor returns the verb that a caller needs for a method.
func (r *route) verbFor(method string) string {
	if r.verb != "" {
		return r.verb
	}
	return map[string]string{
		http.MethodGet: "get", http.MethodHead: "get", http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete",
	}[method]
}

// streams reports whether the answer to a query is a stream: it has no time limit.
func (r *route) streams(q url.Values) bool {
	return r.kind != document || r.watch && isTrue(q.Get("watch"))
}

// isTrue reads a boolean parameter of a query.
func isTrue(s string) bool { return s == "true" || s == "1" }

// find returns the route of a request, or an error if there is none. serves reports whether
// the listener serves a route. Health routes also answer HEAD, which Kubernetes' tests send.
func (s *Server) find(r *http.Request, serves func(*route) bool) (*request, *StatusError) {
	path := r.URL.EscapedPath()
	var methods []string
	var there *route
	for i := range s.routes {
		it := &s.routes[i]
		if !serves(it) {
			continue
		}
		values, ok := it.match(path)
		if !ok {
			continue
		}
		there = it
		if !slices.Contains(it.methods, r.Method) && (!it.health || r.Method != http.MethodHead) {
			methods = append(methods, it.methods...)
			continue
		}
		q := &request{Request: r, route: it, values: values}
		return q, q.parse()
	}
	if there != nil {
		return &request{Request: r, route: there}, &StatusError{Code: http.StatusMethodNotAllowed, Message: r.URL.Path + " does not support " + r.Method, allow: methods}
	}
	return nil, &StatusError{Code: http.StatusNotFound, Message: "there is no " + r.URL.Path}
}

// match compares an escaped path with the route's, part by part.
func (r *route) match(path string) (values map[string]string, ok bool) {
	if r.kubelet && len(path) > 1 {
		path = strings.TrimSuffix(path, "/")
	}
	want, rest := r.path, path
	for want != "" {
		if rest == "" || want[0] != '/' || rest[0] != '/' {
			return nil, false
		}
		var name, part string
		name, want = segment(want)
		if name, wild := strings.CutSuffix(name, "...}"); wild {
			value, ok := matchRest(rest[1:], url.PathUnescape)
			return map[string]string{strings.TrimPrefix(name, "{"): value}, ok
		}
		part, rest = segment(rest)
		if !strings.HasPrefix(name, "{") {
			if name != part {
				return nil, false
			}
			continue
		}
		value, err := url.PathUnescape(part)
		if err != nil || value == "" || strings.ContainsAny(value, "/\x00") {
			return nil, false
		}
		if values == nil {
			values = map[string]string{}
		}
		values[strings.Trim(name, "{}")] = value
	}
	return values, rest == ""
}

// segment cuts the first part, which begins with a slash, from a path.
func segment(path string) (part, rest string) {
	path = path[1:]
	if i := strings.IndexByte(path, '/'); i >= 0 {
		return path[:i], path[i:]
	}
	return path, ""
}

// parse sets params from the query. It returns an error for a body or a parameter that
// the route does not allow.
func (r *request) parse() *StatusError {
	if r.ContentLength < 0 && r.route.body == 0 || r.ContentLength > r.route.body {
		what := " takes no body"
		if r.route.body > 0 {
			what = " takes no body of that size"
		}
		return &StatusError{Code: http.StatusRequestEntityTooLarge, Message: r.URL.Path + what}
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return &StatusError{Code: http.StatusBadRequest, Message: "the query cannot be read"}
	}
	r.params = query
	if r.route.kubelet {
		return nil
	}
	for name := range query {
		if !slices.Contains(r.route.query, name) {
			return &StatusError{Code: http.StatusBadRequest, Message: r.URL.Path + " has no parameter " + name}
		}
	}
	return nil
}
