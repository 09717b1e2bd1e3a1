package e2e

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

type once chan *remotecommand.TerminalSize

func (o once) Next() *remotecommand.TerminalSize { return <-o }

func TestTmpStdin(t *testing.T) {
	s := parallelStage(t)
	authority := filepath.Join(s.scratch, "ca.crt")
	who := s.doorman(authority)
	s.write("web.yaml", manifest("web", []string{container("main", "forever", `command: [/bb/busybox, sh, -c, "while read x; do echo got $x; [ $x = bye ] && exit 0; done"]`, "stdin: true", `volumeMounts: [{name: bb, mountPath: /bb/busybox}]`)}, `volumes: [{name: bb, hostPath: {path: /usr/bin/busybox}}]`, "restartPolicy: Never"))
	port := freePort(t)
	s.serve("--port", port, "--client-ca-file", authority)
	s.awaitRunning("web", "main")
	pod := "default/" + s.full("web")
	at := func(path string, query ...string) *url.URL {
		q := url.Values{}
		for i := 0; i < len(query); i += 2 {
			q.Add(query[i], query[i+1])
		}
		return &url.URL{Scheme: "https", Host: "127.0.0.1:" + port, Path: path, RawQuery: q.Encode()}
	}
	both := func(u *url.URL) map[string]remotecommand.Executor {
		a, _ := remotecommand.NewSPDYExecutor(who, http.MethodPost, u)
		b, _ := remotecommand.NewWebSocketExecutor(who, http.MethodGet, u.String())
		return map[string]remotecommand.Executor{"SPDY": a, "WebSocket": b}
	}
	text := strings.Repeat("0123456789abcdef", 1<<18)
	for name, x := range both(at("/exec/"+pod+"/main", "command", "/bb/busybox", "command", "cat", "input", "1", "output", "1", "error", "1")) {
		begin := time.Now()
		var out bytes.Buffer
		err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard})
		t.Logf("%s: cat %d bytes %v %s", name, out.Len(), err, time.Since(begin))
		if out.String() != text || err != nil {
			t.Error("bad")
		}
	}
	{
		a, err := s.node.Runtime.Exec(t.Context(), &cri.ExecRequest{ContainerId: s.awaitRunning("web", "main")["main"].id, Cmd: []string{"/bb/busybox", "head", "-c", "5"}, Stdin: true, Stdout: true, Stderr: true})
		s.must(err)
		u, _ := url.Parse(a.Url)
		x, _ := remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		err = x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard})
		t.Logf("containerd alone: %q %v", out.String(), err)
		cancel()
	}
	for name, x := range map[string]remotecommand.Executor{} {
		_ = at("/exec/"+pod+"/main", "command", "/bb/busybox", "command", "head", "command", "-c", "command", "5", "input", "1", "output", "1", "error", "1")
		begin := time.Now()
		var out bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		err := x.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: strings.NewReader(text), Stdout: &out, Stderr: io.Discard})
		if ctx.Err() != nil {
			t.Fatal("hang ", name)
		}
		cancel()
		t.Logf("%s: head %q %v %s", name, out.String(), err, time.Since(begin))
	}
	for name, x := range both(at("/exec/"+pod+"/main", "command", "/bb/busybox", "command", "sh", "command", "-c", "command", "/bb/busybox sleep 0.3; /bb/busybox stty size; exit 4", "input", "1", "output", "1", "tty", "1")) {
		var out bytes.Buffer
		q := make(once, 1)
		q <- &remotecommand.TerminalSize{Width: 132, Height: 43}
		in, w := io.Pipe()
		err := x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: &out, Tty: true, TerminalSizeQueue: q})
		t.Logf("%s: tty %q %v", name, out.String(), err)
		close(q)
		w.Close()
	}
	for name, x := range both(at("/attach/"+pod+"/main", "input", "1", "output", "1")) {
		in, w := io.Pipe()
		out := &bytes.Buffer{}
		ended := make(chan error, 1)
		go func() { ended <- x.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out}) }()
		io.WriteString(w, "hello\n")
		time.Sleep(500 * time.Millisecond)
		if name == "WebSocket" {
			io.WriteString(w, "bye\n")
			t.Logf("%s: attach %q %v", name, out.String(), <-ended)
			break
		}
		w.Close()
		select {
		case err := <-ended:
			t.Logf("%s: attach %q %v", name, out.String(), err)
		case <-time.After(3 * time.Second):
			t.Logf("%s: attach goes on %q", name, out.String())
		}
	}
}
