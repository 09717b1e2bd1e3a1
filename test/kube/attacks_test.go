package kube

import (
	"bufio"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// readable and privileged are paths of the node's server: readable ones return data,
// privileged ones take over the connection.
var (
	readable = []string{"/pods", "/runningpods/", "/metrics", "/metrics/resource", "/metrics/cadvisor", "/metrics/probes", "/stats/summary", "/configz",
		"/healthz", "/healthz/syncloop", "/containerLogs/attacks/victim/main"}
	privileged = []string{"/exec/attacks/victim/main?command=id&output=1", "/attach/attacks/victim/main?output=1", "/portForward/attacks/victim?port=80"}
)

// caller returns a client of the node's port with the certificate of pair; nil for none.
func (w *world) caller(pair *cluster.Pair) *http.Client {
	w.Helper()
	config := &tls.Config{InsecureSkipVerify: true}
	if pair != nil {
		cert, err := tls.LoadX509KeyPair(pair.CertFile, pair.KeyFile)
		if err != nil {
			w.Fatal(err)
		}
		// Presented whatever CAs the server names.
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &cert, nil }
	}
	transport := &http.Transport{TLSClientConfig: config}
	w.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Timeout: wait.Limit, Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
}

// issue returns a user's certificate of the cluster's authority.
func (w *world) issue(user string, groups ...string) *cluster.Pair {
	w.Helper()
	p := w.cluster.Authority.Issue(w, path.Base(w.Name())+"-"+user, cluster.Identity{User: user, Groups: groups})
	return &p
}

// asks sends one request with the path unchanged and returns the answer. It asks for the
// protocol upgrade if that is not empty.
func (w *world) asks(c *http.Client, method, path, upgrade string) (code int, text string) {
	w.Helper()
	r, err := http.NewRequestWithContext(w.Context(), method, "https://"+w.address+":"+w.port+"/", nil)
	if err != nil {
		w.Fatal(err)
	}
	r.URL.Opaque = "//" + r.URL.Host + path // the client does not clean the path
	switch upgrade {
	case "websocket":
		protocol := "v5.channel.k8s.io"
		if strings.HasPrefix(path, "/portForward/") {
			protocol = "SPDY/3.1+portforward.k8s.io"
		}
		for name, value := range map[string]string{
			"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", "Sec-WebSocket-Protocol": protocol,
		} {
			r.Header.Set(name, value)
		}
	case "SPDY/3.1":
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", upgrade)
		r.Header.Set("X-Stream-Protocol-Version", "v4.channel.k8s.io")
		if strings.HasPrefix(path, "/portForward/") {
			r.Header.Set("X-Stream-Protocol-Version", "portforward.k8s.io")
		}
	}
	answer, err := c.Do(r)
	if err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusSwitchingProtocols {
		return answer.StatusCode, ""
	}
	body, err := io.ReadAll(io.LimitReader(answer.Body, 1<<20))
	if err != nil {
		w.Fatalf("%s %s: %v", method, path, err)
	}
	return answer.StatusCode, string(body)
}

// everyWay requests every route, and returns the codes that are not want.
func (w *world) everyWay(c *http.Client, want int) (wrong []string) {
	w.Helper()
	try := func(method, path, upgrade string) {
		if code, _ := w.asks(c, method, path, upgrade); code != want {
			wrong = append(wrong, fmt.Sprintf("%s %s %s: %d", method, path, upgrade, code))
		}
	}
	for _, path := range readable {
		try("GET", path, "")
	}
	for _, path := range privileged {
		try("GET", path, "websocket")
		try("POST", path, "SPDY/3.1")
	}
	try("POST", "/run/attacks/victim/main?cmd=id", "")
	try("POST", "/checkpoint/attacks/victim/main", "")
	return wrong
}

// TestD1_TheServer: attacks on the node's port.
//
// Shows: D1
func TestD1_TheServer(t *testing.T) {
	t.Parallel()
	w := shared(t).in(t, "attacks")
	secret := filepath.Join(t.TempDir(), "shadow")
	if err := os.WriteFile(secret, []byte("canary-of-the-host\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	w.pod("victim", sleeps)
	t.Run("Parts", func(t *testing.T) { // returns when all have
		for _, p := range []part{
			{"NobodyIsAnonymous", (*world).nobody},
			{"WithoutARole", (*world).noRole},
			{"NodesProxyGetIsNoExec", (*world).proxyGet},
			{"Paths", (*world).paths},
			{"SlowHeaders", (*world).slowHeaders},
			{"LogsAreNoWindow", func(w *world) { w.logLinks(secret) }},
		} {
			t.Run("D1_"+p.name, func(t *testing.T) {
				t.Parallel()
				of := *w
				of.TB = t
				p.run(&of)
			})
		}
	})
	if log := w.agent.Log(t); strings.Contains(log, "canary-of-the-host") {
		t.Error("the secret is in the agent's log")
	}
}

// unauthenticated: no credential, a certificate of another authority, an unknown token and an expired
// certificate get 401 on every route.
func (w *world) nobody() {
	other := cluster.NewAuthority(w, w.TempDir(), "ca").Issue(w, "admin", cluster.Identity{User: "admin", Groups: []string{"system:masters"}})
	expired := w.cluster.Authority.Issue(w, "expired", cluster.Identity{User: "admin", Groups: []string{"system:masters"}, NotAfter: time.Now().Add(-time.Minute)})
	for name, pair := range map[string]*cluster.Pair{"none": nil, "another authority": &other, "expired": &expired} {
		for _, wrong := range w.everyWay(w.caller(pair), http.StatusUnauthorized) {
			w.Errorf("%s: %s", name, wrong)
		}
	}
	r, err := http.NewRequestWithContext(w.Context(), http.MethodGet, "https://"+w.address+":"+w.port+"/pods", nil)
	if err != nil {
		w.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer hunter2")
	answer, err := w.caller(nil).Do(r)
	if err != nil {
		w.Fatal(err)
	}
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusUnauthorized {
		w.Errorf("a made up token: %s", answer.Status)
	}
	// Without TLS there is no answer.
	c, err := net.Dial("tcp", w.address+":"+w.port)
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(wait.Limit))
	_, _ = io.WriteString(c, "GET /pods HTTP/1.1\r\nHost: n1\r\n\r\n")
	if line, _ := bufio.NewReader(c).ReadString('\n'); strings.Contains(line, " 200 ") {
		w.Errorf("without TLS: %q", line)
	}
}

// noRole: a user whom the cluster knows and who has no permissions.
func (w *world) noRole() {
	for _, wrong := range w.everyWay(w.caller(w.issue("passer-by")), http.StatusForbidden) {
		w.Error(wrong)
	}
	// A node has no permissions on another node.
	for _, wrong := range w.everyWay(w.caller(w.issue("system:node:n2", "system:nodes")), http.StatusForbidden) {
		w.Error(wrong)
	}
	// The requests themselves are valid: a member of system:masters gets answers, and 101 for
	// upgrades.
	upgraded := 0
	for _, other := range w.everyWay(w.caller(w.issue("root", "system:masters")), http.StatusOK) {
		if strings.HasSuffix(other, ": 101") {
			upgraded++
		} else if !strings.HasPrefix(other, "POST /checkpoint/") { // this test's runtime does not support it
			w.Errorf("a master, %s", other)
		}
	}
	if upgraded != 2*len(privileged) {
		w.Errorf("a master was given %d of %d connections", upgraded, 2*len(privileged))
	}
}

// grant gives a user a verb on subresources of nodes.
func (w *world) grant(user, verb, resources string) {
	w.Helper()
	w.kubectl("create", "clusterrole", user, "--verb="+verb, "--resource="+resources)
	w.kubectl("create", "clusterrolebinding", user, "--clusterrole="+user, "--user="+user)
	w.await(func() error { // the API server's authorizer learns of it by a watch
		resource, of, _ := strings.Cut(strings.Split(resources, ",")[0], "/")
		out, err := w.try("auth", "can-i", verb, resource, "--subresource="+of, "--as="+user, "-q")
		if err != nil {
			err = fmt.Errorf("%w %s", err, out)
		}
		return err
	})
}

// proxyGet: a user with get on nodes/proxy runs nothing, by any method.
func (w *world) proxyGet() {
	w.grant("peeks", "get", "nodes/proxy")
	c := w.caller(w.issue("peeks"))
	for _, path := range []string{"/pods", "/containerLogs/attacks/victim/main", "/configz", "/healthz"} {
		if code, text := w.asks(c, "GET", path, ""); code != http.StatusOK {
			w.Errorf("%s: %d %s", path, code, text)
		}
	}
	for _, path := range privileged {
		for _, it := range [][2]string{{"GET", "websocket"}, {"GET", "SPDY/3.1"}, {"POST", "SPDY/3.1"}, {"GET", ""}} {
			if code, _ := w.asks(c, it[0], path, it[1]); code != http.StatusForbidden {
				w.Errorf("%s %s %s: %d", it[0], path, it[1], code)
			}
		}
	}
	for _, path := range []string{"/run/attacks/victim/main?cmd=id", "/checkpoint/attacks/victim/main"} {
		if code, _ := w.asks(c, "POST", path, ""); code != http.StatusForbidden {
			w.Errorf("%s: %d", path, code)
		}
	}
	w.grant("execs", "create", "nodes/exec")
	if code, _ := w.asks(w.caller(w.issue("execs")), "GET", privileged[0], "websocket"); code != http.StatusSwitchingProtocols {
		w.Errorf("who may create nodes/exec: %d", code)
	}
	for _, path := range privileged[1:] {
		if code, _ := w.asks(w.caller(w.issue("execs")), "GET", path, "websocket"); code != http.StatusForbidden {
			w.Errorf("who may create nodes/exec alone, %s: %d", path, code)
		}
	}
}

// paths: no spelling of a path opens a route that another spelling does not, and none a file
// of the host, not even for system:masters.
func (w *world) paths() {
	master, passer := w.caller(w.issue("root", "system:masters")), w.caller(w.issue("passer-by"))
	for _, path := range []string{
		"/containerLogs/../../../../etc/passwd", "/containerLogs/attacks/victim/../../../../../etc/passwd", "/containerLogs/attacks/..%2f..%2f..%2fetc%2fpasswd/main",
		"/containerLogs/attacks/victim/..%2f..%2f..%2f..%2fetc%2fpasswd", "/containerLogs/%2e%2e/%2e%2e/etc", "/containerLogs/attacks/victim/main%00/etc/passwd",
		"/logs/", "/logs/../../etc/passwd", "/logs/%2e%2e/%2e%2e/etc/passwd", "//exec/attacks/victim/main?command=id&output=1", "/exec//attacks/victim/main?command=id&output=1",
		"/./exec/attacks/victim/main?command=id&output=1", "/healthz/../exec/attacks/victim/main?command=id&output=1", "/healthz/..%2fexec/attacks/victim/main",
		"/%65xec/attacks/victim/main?command=id&output=1", "/EXEC/attacks/victim/main?command=id", "/pods/../metrics", "/debug/pprof/", "/debug/pprof/heap", "/debug/flags/v", "/spec/", "/cri/exec/x",
		"/v1/pods", "/v1/node", "/v1/updates", "/v1/restart/attacks/victim", "/v1/../pods", "/metrics/../pods", "/",
	} {
		for _, upgrade := range []string{"", "websocket"} {
			code, text := w.asks(passer, "GET", path, upgrade)
			if code != http.StatusForbidden && code != http.StatusNotFound && code != http.StatusBadRequest && code != http.StatusMethodNotAllowed {
				w.Errorf("a passer-by, %s %s: %d %q", path, upgrade, code, text)
			}
			code, text = w.asks(master, "GET", path, upgrade)
			if code < 400 || code >= 500 || strings.Contains(text, "root:") {
				w.Errorf("a master, %s %s: %d %q", path, upgrade, code, text)
			}
		}
	}
}

// slowHeaders: a connection whose header comes byte by byte is cut off.
func (w *world) slowHeaders() {
	c, err := tls.Dial("tcp", w.address+":"+w.port, &tls.Config{InsecureSkipVerify: true})
	if err != nil {
		w.Fatal(err)
	}
	defer c.Close()
	if _, err := io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: n1\r\nX-Slow: "); err != nil {
		w.Fatal(err)
	}
	ended := make(chan error, 1) // the reader sends one error and ends
	var reader sync.WaitGroup
	defer reader.Wait()
	reader.Go(func() {
		_, err := io.Copy(io.Discard, c)
		ended <- err
	})
	sent := 0
	wait.Until(w, "the connection is cut", func() (int, bool) {
		select {
		case <-ended:
			return sent, true
		default:
			_, _ = io.WriteString(c, strconv.Itoa(sent%10)) // fails when the connection has been closed
			sent++
			return sent, false
		}
	})
}

// logLinks: a pod that can write to the log directory cannot make nodectl read files of the
// host for it.
func (w *world) logLinks(secret string) {
	w.apply(fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: forger}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: %s
    command: [sh, -c, "echo innocent; %s"]
    volumeMounts: [{name: logs, mountPath: /logs}]
  volumes: [{name: logs, hostPath: {path: %q}}]
`, busybox, sleeps, w.machine.LogsDir))
	w.awaitReady("forger")
	w.awaitOutput("innocent", "logs", "forger")
	dir := w.TempDir() // the target of a link to a directory
	if err := os.WriteFile(filepath.Join(dir, "0.log"), []byte("2026-01-01T00:00:00.000000000Z stdout F canary-of-the-host\n"), 0o644); err != nil {
		w.Fatal(err)
	}
	const back = "cd /logs/attacks_forger_*; if [ -e was ]; then rm main && mv was main; fi; rm -f main/0.log; touch main/0.log; "
	for name, script := range map[string]string{
		"a link":                 "ln -sf " + secret + " main/0.log",
		"a link of /proc":        "ln -sf /proc/1/environ main/0.log",
		"a link that climbs":     "ln -sf ../../../../../../../../../.." + secret + " main/0.log",
		"a link to a log":        "ln -sf " + dir + "/0.log main/0.log",
		"a pipe":                 "rm main/0.log && mkfifo main/0.log",
		"a device":               "rm main/0.log && mknod main/0.log c 1 5",
		"a link for a directory": "mv main was && ln -s " + dir + " main",
	} {
		w.kubectl("exec", "forger", "--", "sh", "-c", back+script)
		for _, args := range [][]string{{"logs", "forger"}, {"get", "--raw", "/api/v1/namespaces/attacks/pods/forger/log?follow=true&tailLines=5"}} {
			out, err := output(w.command(args...))
			if !failed(err) || strings.Contains(out, "canary-of-the-host") || len(out) > 1000 {
				w.Errorf("%s, %v: %v %q", name, args, err, out[:min(len(out), 1000)])
			}
		}
	}
}

// failed reports whether a command exited by itself with an error.
func failed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.Exited()
}

// output runs a command to its end; a command that does not end is an error.
func output(cmd *exec.Cmd) (string, error) {
	stop := time.AfterFunc(wait.Limit, func() { _ = cmd.Process.Kill() })
	defer stop.Stop()
	out, err := cmd.CombinedOutput()
	return string(out), err
}
