package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
	"k8s.io/cri-streaming/pkg/streaming/portforward"
	"k8s.io/cri-streaming/pkg/streaming/remotecommand"
	utilexec "k8s.io/utils/exec"

	"github.com/nodectl/nodectl/pkg/client"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/test/wait"
)

// node answers like a kubelet without WebSocket's v5: its streams are SPDY's. It runs the
// commands of its one container on this machine, and forwards to this machine's ports.
type node struct {
	sizes chan remotecommand.TerminalSize // cap 1: the first size a terminal has
}

func (n *node) ExecInContainer(ctx context.Context, _, _, _ string, cmd []string, in io.Reader, out, errOut io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize, _ time.Duration) error {
	if tty {
		n.sizes <- <-resize
	}
	c := exec.CommandContext(ctx, cmd[0], cmd[1:]...)
	c.Stdin, c.Stdout, c.WaitDelay = in, out, 20*time.Second // for its last output, on a busy machine
	if errOut != nil {
		c.Stderr = errOut
	}
	err := c.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		return utilexec.CodeExitError{Err: err, Code: ended.ExitCode()}
	}
	return err
}

func (n *node) AttachContainer(_ context.Context, _, _, _ string, in io.Reader, out, _ io.WriteCloser, _ bool, _ <-chan remotecommand.TerminalSize) error {
	_, err := io.Copy(out, in)
	return err
}

func (n *node) PortForward(_ context.Context, _, _ string, port int32, stream io.ReadWriteCloser) error {
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return err
	}
	defer conn.Close()
	go func() { _, _ = io.Copy(conn, stream); _ = conn.(*net.TCPConn).CloseWrite() }()
	_, err = io.Copy(stream, conn)
	return err
}

func (n *node) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	switch parts[0] {
	case "exec", "attach":
		if parts[2] == "missing" {
			w.WriteHeader(http.StatusNotFound)
			_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Failure", Message: `pod "missing" does not exist`, Code: 404})
			return
		}
		o, err := remotecommand.NewOptions(r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if parts[0] == "attach" {
			remotecommand.ServeAttach(w, r, n, parts[2], "", parts[3], o, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
			return
		}
		remotecommand.ServeExec(w, r, n, parts[2], "", parts[3], r.URL.Query()["command"], o, time.Minute, time.Minute, remotecommand.SupportedStreamingProtocols)
	case "portForward":
		portforward.ServePortForward(w, r, n, parts[2], "", nil, time.Minute, time.Minute, []string{"portforward.k8s.io"})
	case "pods", "v1":
		if r.Header.Get("Authorization") == "Bearer wrong" {
			http.Error(w, "Unauthorized", http.StatusUnauthorized)
			return
		}
		n.documents(w, r)
	default:
		http.NotFound(w, r)
	}
}

func (n *node) documents(w http.ResponseWriter, r *http.Request) {
	web := v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1", UID: types.UID("u1")}}
	switch {
	case strings.HasSuffix(r.URL.Path, "/pods") && r.URL.Query().Get("watch") == "true":
		for _, what := range []string{"ADDED", "BOOKMARK", "DELETED"} {
			if what == "BOOKMARK" && r.URL.Query().Get("allowWatchBookmarks") != "true" {
				continue
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"type": what, "object": web})
		}
		if r.URL.Query().Get("break") != "" {
			_ = http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
	case strings.HasSuffix(r.URL.Path, "/pods"):
		_ = json.NewEncoder(w).Encode(v1.PodList{Items: []v1.Pod{web}})
	case r.URL.Path == "/v1/restart/default/web-n1" && r.Method == http.MethodPost:
		if r.URL.RawQuery != "container=c&gracePeriodSeconds=3" {
			http.Error(w, r.URL.RawQuery, http.StatusBadRequest)
		}
	default:
		w.WriteHeader(http.StatusTeapot)
		_, _ = io.WriteString(w, "short and stout\xff\n")
	}
}

// agent returns a client of a nodectl server, whose runtime is a node.
func agent(t *testing.T, n *node) *client.Client {
	t.Helper()
	runtime, err := streaming.NewServer(streaming.DefaultConfig, criNode{n})
	if err != nil {
		t.Fatal(err)
	}
	streams := httptest.NewServer(runtime)
	t.Cleanup(streams.Close)
	at := func(url string, err error) (*url.URL, error) { return parse(streams.URL, url, err) }
	web := v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web-n1", UID: "u1"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}}},
	}
	socket := filepath.Join(t.TempDir(), "s")
	s := server.New(server.Config{
		Socket: socket, Log: slog.New(slog.DiscardHandler), StreamIdle: time.Minute,
		Pods: onePod{web: web}, Containers: streamed{runtime: runtime, at: at},
	})
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		if err := s.Serve(ctx); err != nil {
			t.Error(err)
		}
	})
	return answering(t, socket)
}

// onePod shows one pod.
type onePod struct {
	otherPods
	web v1.Pod
}

type otherPods interface{ server.Pods }

func (o onePod) Pods() []v1.Pod { return []v1.Pod{o.web} }

func (o onePod) Pod(_, name string) *v1.Pod {
	if name != o.web.Name {
		return nil
	}
	return &o.web
}

// streamed gets its streams from the streaming server of a runtime, at the URL that at makes.
type streamed struct {
	server.Containers
	runtime streaming.Server
	at      func(url string, err error) (*url.URL, error)
}

func (f streamed) ExecURL(_ context.Context, _ *v1.Pod, c string, command []string, s server.Streams) (*url.URL, error) {
	r, err := f.runtime.GetExec(&runtimeapi.ExecRequest{ContainerId: c, Cmd: command, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY})
	return f.at(r.GetUrl(), err)
}

func (f streamed) AttachURL(_ context.Context, _ *v1.Pod, c string, s server.Streams) (*url.URL, error) {
	r, err := f.runtime.GetAttach(&runtimeapi.AttachRequest{ContainerId: c, Stdin: s.Stdin, Stdout: s.Stdout, Stderr: s.Stderr, Tty: s.TTY})
	return f.at(r.GetUrl(), err)
}

func (f streamed) PortForwardURL(context.Context, *v1.Pod) (*url.URL, error) {
	r, err := f.runtime.GetPortForward(&runtimeapi.PortForwardRequest{PodSandboxId: "s"})
	return f.at(r.GetUrl(), err)
}

// answering returns a client once the agent answers.
func answering(t *testing.T, socket string) *client.Client {
	t.Helper()
	c := at(t, socket)
	wait.NoError(t, func() error { _, err := c.Pods(t.Context()); return err })
	return c
}

func parse(base, text string, err error) (*url.URL, error) {
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(text)
	if err != nil {
		return nil, err
	}
	b, err := url.Parse(base)
	u.Scheme, u.Host = b.Scheme, b.Host
	return u, err
}

// criNode is a node for the streaming server of a CRI runtime.
type criNode struct{ *node }

func (n criNode) Exec(ctx context.Context, id string, cmd []string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return n.ExecInContainer(ctx, "", "", id, cmd, in, out, err, tty, resize, 0)
}

func (n criNode) Attach(ctx context.Context, id string, in io.Reader, out, err io.WriteCloser, tty bool, resize <-chan remotecommand.TerminalSize) error {
	return n.AttachContainer(ctx, "", "", id, in, out, err, tty, resize)
}

func (n criNode) PortForward(ctx context.Context, _ string, port int32, stream io.ReadWriteCloser) error {
	return n.node.PortForward(ctx, "", "", port, stream)
}

// local returns a client of a node behind a socket.
func local(t *testing.T, n *node) *client.Client {
	t.Helper()
	socket := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewUnstartedServer(n)
	_ = s.Listener.Close()
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	return at(t, socket)
}

func at(t *testing.T, socket string) *client.Client {
	t.Helper()
	c, err := client.New(client.Config{Socket: socket, Dial: func(ctx context.Context) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}})
	if err != nil {
		t.Fatal(err)
	}
	return c
}
