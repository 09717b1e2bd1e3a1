package criproxy_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/test/criproxy"
)

// pods is a runtime with two pods, a and b, each with the containers x and y:
// container ax is of the sandbox a.
type pods struct {
	runtime
	feed chan *cri.ContainerEventResponse
}

func (r *pods) ListContainers(_ context.Context, q *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	var a cri.ListContainersResponse
	for _, id := range []string{"ax", "ay", "bx", "by"} {
		if f := q.GetFilter(); f.GetId() == "" || f.GetId() == id {
			a.Containers = append(a.Containers, &cri.Container{
				Id: id, Metadata: &cri.ContainerMetadata{Name: id[1:]}, Labels: map[string]string{"io.kubernetes.pod.name": id[:1]},
			})
		}
	}
	return &a, nil
}

func (r *pods) ListPodSandbox(_ context.Context, q *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	var a cri.ListPodSandboxResponse
	for _, id := range []string{"a", "b"} {
		if f := q.GetFilter(); f.GetId() == "" || f.GetId() == id {
			a.Items = append(a.Items, &cri.PodSandbox{Id: id, Metadata: &cri.PodSandboxMetadata{Name: id}})
		}
	}
	return &a, nil
}

func (r *pods) RunPodSandbox(_ context.Context, q *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	return &cri.RunPodSandboxResponse{PodSandboxId: q.Config.Metadata.Name}, nil
}

func (r *pods) StopPodSandbox(context.Context, *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	return &cri.StopPodSandboxResponse{}, nil
}

func (r *pods) CreateContainer(_ context.Context, q *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	return &cri.CreateContainerResponse{ContainerId: q.PodSandboxId + q.Config.Metadata.Name}, nil
}

func (r *pods) GetContainerEvents(_ *cri.GetEventsRequest, s cri.RuntimeService_GetContainerEventsServer) error {
	for e := range r.feed {
		if err := s.Send(e); err != nil {
			return err
		}
	}
	return nil
}

// client makes the calls of the tests, each of which answers only with an error.
type client struct {
	*testing.T
	cri.RuntimeServiceClient
}

func (c client) start(id string) error {
	_, err := c.StartContainer(c.Context(), &cri.StartContainerRequest{ContainerId: id})
	return err
}

func (c client) stopSandbox(id string) error {
	_, err := c.StopPodSandbox(c.Context(), &cri.StopPodSandboxRequest{PodSandboxId: id})
	return err
}

func (c client) run(name string) error {
	_, err := c.RunPodSandbox(c.Context(), &cri.RunPodSandboxRequest{Config: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: name}}})
	return err
}

func (c client) create(pod, name string) error {
	_, err := c.CreateContainer(c.Context(), &cri.CreateContainerRequest{
		PodSandboxId: pod, Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: name}},
		SandboxConfig: &cri.PodSandboxConfig{Metadata: &cri.PodSandboxMetadata{Name: pod}},
	})
	return err
}

func front(t *testing.T) (*criproxy.Proxy, client, *pods) {
	t.Helper()
	r := &pods{feed: make(chan *cri.ContainerEventResponse, 16)} // the tests' events: none waits
	p, c := serve(t, r, criproxy.Hooks{})
	return p, client{t, c}, r
}

var errFault = status.Error(codes.ResourceExhausted, "no more of it")

func TestRuleFitsAPod(t *testing.T) {
	p, c, r := front(t)
	f := p.Fault(criproxy.Rule{Pod: "a", Err: errFault})
	y := p.Fault(criproxy.Rule{Method: "StartContainer", Pod: "b", Container: "y", Err: errFault})
	for name, call := range map[string]func() error{
		"run":    func() error { return c.run("a") },
		"create": func() error { return c.create("a", "x") },
		"start":  func() error { return c.start("ax") },
		"stop":   func() error { return c.stopSandbox("a") },
		"list": func() error {
			_, err := c.ListContainers(t.Context(), &cri.ListContainersRequest{
				Filter: &cri.ContainerFilter{LabelSelector: map[string]string{"io.kubernetes.pod.name": "a"}},
			})
			return err
		},
		"y": func() error { return c.start("by") },
	} {
		if err := call(); status.Code(err) != codes.ResourceExhausted || status.Convert(err).Message() != "no more of it" {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, call := range map[string]func() error{
		"run":    func() error { return c.run("b") },
		"create": func() error { return c.create("b", "y") },
		"start":  func() error { return c.start("bx") },
		"stop":   func() error { return c.stopSandbox("b") },
		"list": func() error {
			_, err := c.ListContainers(t.Context(), &cri.ListContainersRequest{})
			return err
		},
	} {
		if err := call(); err != nil {
			t.Errorf("%s of the other pod: %v", name, err)
		}
	}
	if !slices.Equal(r.started, []string{"bx"}) {
		t.Errorf("started %v", r.started)
	}
	var about []string
	for _, m := range append(f.Calls(), y.Calls()...) {
		about = append(about, m.Method+" "+m.Pod+m.Container)
		if m.Err == nil || m.Ended.Before(m.Began) {
			t.Errorf("%+v", m)
		}
	}
	slices.Sort(about)
	want := []string{"CreateContainer ax", "ListContainers a", "RunPodSandbox a", "StartContainer ax", "StartContainer by", "StopPodSandbox a"}
	if !slices.Equal(about, want) {
		t.Errorf("the rules happened to %v", about)
	}
}

func TestRuleHappensTheNthTime(t *testing.T) {
	p, c, _ := front(t)
	f := p.Fault(criproxy.Rule{Method: "StartContainer", Skip: 1, Times: 2, Err: errFault})
	var all []codes.Code
	for range 4 {
		all = append(all, status.Code(c.start("ax")))
	}
	if want := []codes.Code{codes.OK, codes.ResourceExhausted, codes.ResourceExhausted, codes.OK}; !slices.Equal(all, want) {
		t.Errorf("answers %v, want %v", all, want)
	}
	f.Lift()
	f.Lift() // a second Lift changes nothing
	if n := len(f.Calls()); n != 2 {
		t.Errorf("happened %d times, want 2", n)
	}
}

func TestReplyLostAfterTheEffect(t *testing.T) {
	p, c, r := front(t)
	p.Fault(criproxy.Rule{Method: "StartContainer", After: true, Err: errFault})
	if err := c.start("ax"); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the client received %v", err)
	}
	if !slices.Equal(r.started, []string{"ax"}) {
		t.Errorf("started %v", r.started)
	}
}

func TestTwiceAndEmpty(t *testing.T) {
	p, c, r := front(t)
	p.Fault(criproxy.Rule{Method: "StartContainer", Twice: true})
	p.Fault(criproxy.Rule{Method: "ListPodSandbox", Empty: true})
	if err := c.start("ax"); err != nil || !slices.Equal(r.started, []string{"ax", "ax"}) {
		t.Errorf("started %v: %v", r.started, err)
	}
	if a, err := c.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{}); err != nil || len(a.Items) != 0 {
		t.Errorf("listed %v: %v", a, err)
	}
}

func TestDelayAndHang(t *testing.T) {
	p, c, _ := front(t)
	p.Fault(criproxy.Rule{Pod: "a", Delay: 200 * time.Millisecond})
	begin := time.Now()
	if err := c.start("ax"); err != nil || time.Since(begin) < 200*time.Millisecond {
		t.Errorf("after %s: %v", time.Since(begin), err)
	}
	hang := p.Fault(criproxy.Rule{Pod: "b", Hang: true})
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		_ = hang.Await(ctx, 1) // it ends early where the call does
		cancel()
	})
	if _, err := c.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: "bx"}); status.Code(err) != codes.Canceled {
		t.Errorf("a hung call: %v", err)
	}
	cancel()
	wg.Wait()
	wg.Go(func() {
		if err := c.start("bx"); err != nil {
			t.Errorf("once the hang is lifted: %v", err)
		}
	})
	if err := hang.Await(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	if err := c.start("ay"); err != nil {
		t.Errorf("the other pod: %v", err)
	}
	hang.Lift()
	wg.Wait()
}

func TestSwapLetsTheSecondGoFirst(t *testing.T) {
	p, c, r := front(t)
	f := p.Fault(criproxy.Rule{Method: "StartContainer", Swap: true})
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.start("ax"); err != nil {
			t.Error(err)
		}
	})
	if err := f.Await(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if err := c.start("bx"); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if !slices.Equal(r.started, []string{"bx", "ax"}) {
		t.Errorf("started %v", r.started)
	}
}

// TestEvents: how a rule for pod a changes the delivery of the events 0 to 4 of container ax,
// and of one of pod b.
func TestEvents(t *testing.T) {
	const all = "a0 a1 a2 a3 a4 b5"
	for _, c := range []struct {
		name string
		rule criproxy.Rule
		want string
	}{
		{"another pod", criproxy.Rule{Pod: "c", Drop: true}, all},
		{"drop", criproxy.Rule{Pod: "a", Skip: 1, Times: 2, Drop: true}, "a0 a3 a4 b5"},
		{"container", criproxy.Rule{Container: "x", Drop: true}, "b5"},
		{"twice", criproxy.Rule{Pod: "a", Times: 1, Twice: true}, "a0 a0 a1 a2 a3 a4 b5"},
		{"swap", criproxy.Rule{Pod: "a", Times: 2, Swap: true}, "a1 a0 a2 a3 a4 b5"},
		{"stale", criproxy.Rule{Pod: "a", Skip: 2, Times: 1, Delay: 2 * time.Second}, "a0 a1 a3 a4 b5 a2"},
		{"no sandbox", criproxy.Rule{Pod: "a", Skip: 3, NoSandbox: true}, "a0 a1 a2 ?3 ?4 b5"},
		{"the end", criproxy.Rule{Pod: "a", Skip: 2, Err: errFault}, "a0 a1 " + codes.ResourceExhausted.String()},
	} {
		t.Run(c.name, func(t *testing.T) {
			p, client, r := front(t)
			c.rule.Method = criproxy.Event
			p.Fault(c.rule)
			for i, whose := range strings.Split("aaaaab", "") {
				r.feed <- &cri.ContainerEventResponse{
					ContainerId: whose + "x", CreatedAt: int64(i), PodSandboxStatus: &cri.PodSandboxStatus{Metadata: &cri.PodSandboxMetadata{Name: whose}},
					ContainersStatuses: []*cri.ContainerStatus{{Id: "ax", Metadata: &cri.ContainerMetadata{Name: "x"}}},
				}
			}
			s, err := client.GetContainerEvents(t.Context(), &cri.GetEventsRequest{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for range strings.Fields(c.want) {
				e, err := s.Recv()
				if err != nil {
					got = append(got, status.Code(err).String())
					break
				}
				whose := e.GetPodSandboxStatus().GetMetadata().GetName()
				if whose == "" {
					whose = "?"
				}
				got = append(got, fmt.Sprint(whose, e.CreatedAt))
			}
			if text := strings.Join(got, " "); text != c.want {
				t.Errorf("events %s, want %s", text, c.want)
			}
			close(r.feed)
			if e, err := s.Recv(); err == nil {
				t.Errorf("one more: %v", e)
			}
		})
	}
}

// TestCallsThatFailAreCountedToo: a call counts when the client makes it.
func TestCallsThatFailAreCountedToo(t *testing.T) {
	p, c, _ := front(t)
	p.Fault(criproxy.Rule{Err: errors.New("plain")})
	if err := c.start("ax"); err == nil {
		t.Error("no error")
	}
	if n := p.Counts()["StartContainer"]; n != 1 || !slices.Equal(p.Mutations(), []string{"StartContainer"}) {
		t.Errorf("counted %v", p.Counts())
	}
	if p.Busy() != 0 {
		t.Errorf("%d are on their way", p.Busy())
	}
}
