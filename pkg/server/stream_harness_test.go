package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/remotecommand"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// fixture is a server and a runtime with one pod, ns/p. Its container c runs; its container
// late does not run yet.
type fixture struct {
	*port
	cfg Config
	rt  *critest.Runtime
	cri *cri.Runtime
	key pod.Key
	box string // the sandbox
}

func newFixture(t *testing.T, change ...func(*Config)) *fixture {
	t.Helper()
	l := &fixture{rt: critest.New(), key: pod.Key{Namespace: "ns", Name: "p"}}
	critest.ServeStreams(t, l.rt)
	var err error
	if l.cri, err = cri.Dial(cri.Config{Endpoint: critest.Serve(t, l.rt), Node: "n"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.cri.Close() })
	labels := map[string]string{pod.LabelPodNamespace: "ns", pod.LabelPodName: "p", pod.LabelPodUID: "u", pod.LabelNode: "n"}
	box := &runtimeapi.PodSandboxConfig{Metadata: &runtimeapi.PodSandboxMetadata{Namespace: "ns", Name: "p", Uid: "u"}, Labels: labels}
	a, err := l.rt.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: box})
	if err != nil {
		t.Fatal(err)
	}
	l.box = a.GetPodSandboxId()
	own := map[string]string{pod.LabelContainerName: "c"}
	for k, v := range labels {
		own[k] = v
	}
	c, err := l.rt.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: l.box, SandboxConfig: box, Config: &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: "c"}, Labels: own, Command: []string{"serve"}, Image: &runtimeapi.ImageSpec{Image: "i:1", UserSpecifiedImage: "i:1"},
	}})
	if err == nil {
		_, err = l.rt.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: c.GetContainerId()})
	}
	if err != nil {
		t.Fatal(err)
	}
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "u"},
		Spec:       v1.PodSpec{Containers: []v1.Container{{Name: "c"}, {Name: "late"}}},
	}
	l.cfg = testConfig(filepath.Join(root(t), "nodectl.sock"))
	of(l.cfg).pod = func(namespace, name string) *v1.Pod {
		if namespace != "ns" || name != "p" {
			return nil
		}
		return p
	}
	l.cfg.Containers = of(l.cfg)
	of(l.cfg).exec = func(ctx context.Context, p *v1.Pod, c string, cmd []string, s Streams) (*url.URL, error) {
		return l.cri.ExecURL(ctx, string(p.UID), c, cmd, cri.Streams(s))
	}
	of(l.cfg).attach = func(ctx context.Context, p *v1.Pod, c string, s Streams) (*url.URL, error) {
		return l.cri.AttachURL(ctx, string(p.UID), c, cri.Streams(s))
	}
	of(l.cfg).portForward = func(ctx context.Context, p *v1.Pod) (*url.URL, error) {
		return l.cri.PortForwardURL(ctx, string(p.UID))
	}
	of(l.cfg).run = func(ctx context.Context, p *v1.Pod, c string, cmd []string) ([]byte, error) {
		id, err := l.cri.RunningContainer(ctx, string(p.UID), c)
		if err != nil {
			return nil, err
		}
		code, out, err := l.cri.ExecSync(ctx, id, cmd, time.Minute)
		if err == nil && code != 0 {
			err = fmt.Errorf("command '%s' exited with %d: %s", cmd, code, out)
		}
		return out, err
	}
	of(l.cfg).checkpoint = func(ctx context.Context, p *v1.Pod, c, path string, timeout time.Duration) error {
		return l.cri.CheckpointContainer(ctx, string(p.UID), c, path, timeout)
	}
	l.cfg.CheckpointDir = filepath.Join(t.TempDir(), "checkpoints")
	for _, f := range change {
		f(&l.cfg)
	}
	l.port = opened(t, l.cfg)
	return l
}

// url is a path of the server with a query.
func (l *fixture) url(path string, query ...string) *url.URL {
	q := url.Values{}
	for i := 0; i < len(query); i += 2 {
		q.Add(query[i], query[i+1])
	}
	return &url.URL{Scheme: "https", Host: l.address, Path: path, RawQuery: q.Encode()}
}

// clients returns client-go's executors for SPDY and for both WebSocket protocols.
func (l *fixture) clients(t *testing.T, name string, u *url.URL) map[string]remotecommand.Executor {
	t.Helper()
	spdy, err1 := remotecommand.NewSPDYExecutor(l.config(t, name), http.MethodPost, u)
	ws, err2 := remotecommand.NewWebSocketExecutor(l.config(t, name), http.MethodGet, u.String())
	v4, err3 := remotecommand.NewWebSocketExecutorForProtocols(l.config(t, name), http.MethodGet, u.String(), "v4.channel.k8s.io")
	if err := errors.Join(err1, err2, err3); err != nil {
		t.Fatal(err)
	}
	return map[string]remotecommand.Executor{"SPDY": spdy, "WebSocket 5": ws, "WebSocket 4": v4}
}

// streamingServer starts a server that stands for a runtime's streaming server.
func streamingServer(t *testing.T, answer http.HandlerFunc) *url.URL {
	t.Helper()
	s := httptest.NewServer(answer)
	t.Cleanup(s.Close)
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func execTo(u *url.URL) func(context.Context, *v1.Pod, string, []string, Streams) (*url.URL, error) {
	return func(context.Context, *v1.Pod, string, []string, Streams) (*url.URL, error) { return u, nil }
}

func forwardTo(u *url.URL) func(context.Context, *v1.Pod) (*url.URL, error) {
	return func(context.Context, *v1.Pod) (*url.URL, error) { return u, nil }
}
