package server

import (
	"context"
	"io"
	"iter"
	"net/url"
	"time"

	v1 "k8s.io/api/core/v1"
)

// answers are all parts of a Config, from functions that a test may set.
type answers struct {
	pods        func() []v1.Pod
	pod         func(namespace, name string) *v1.Pod
	watchPods   func(context.Context) iter.Seq2[string, *v1.Pod]
	sources     func() ([]byte, error)
	updates     func(context.Context, url.Values) (iter.Seq2[[]byte, error], error)
	node        func(context.Context) (*v1.Node, error)
	images      func(context.Context) ([]Image, error)
	events      func(context.Context, bool) iter.Seq2[string, *v1.Event]
	logs        func(context.Context, io.Writer, LogRequest) error
	exec        func(context.Context, *v1.Pod, string, []string, Streams) (*url.URL, error)
	attach      func(context.Context, *v1.Pod, string, Streams) (*url.URL, error)
	portForward func(context.Context, *v1.Pod) (*url.URL, error)
	run         func(context.Context, *v1.Pod, string, []string) ([]byte, error)
	checkpoint  func(context.Context, *v1.Pod, string, string, time.Duration) error
	restart     func(context.Context, string, string, []string, *int64) error
	delete      func(context.Context, string, string, string, *int64) error
	drain       func(ctx context.Context, grace *int64, undo bool) error
	summary     func(context.Context, bool) (any, error)
}

// of returns the answers of a Config that testConfig has made.
func of(cfg Config) *answers { return cfg.Pods.(*answers) }

func (a *answers) Pods() []v1.Pod { return a.pods() }
func (a *answers) Pod(namespace, name string) *v1.Pod {
	if a.pod == nil {
		return nil
	}
	return a.pod(namespace, name)
}
func (a *answers) WatchPods(ctx context.Context) iter.Seq2[string, *v1.Pod] { return a.watchPods(ctx) }
func (a *answers) Sources() ([]byte, error)                                 { return a.sources() }
func (a *answers) Updates(ctx context.Context, q url.Values) (iter.Seq2[[]byte, error], error) {
	return a.updates(ctx, q)
}
func (a *answers) Node(ctx context.Context) (*v1.Node, error)         { return a.node(ctx) }
func (a *answers) RunningPods(ctx context.Context) ([]*v1.Pod, error) { return nil, nil }
func (a *answers) Images(ctx context.Context) ([]Image, error)        { return a.images(ctx) }
func (a *answers) Reclaim(context.Context, []string) (Reclaim, error) { return Reclaim{}, nil }
func (a *answers) Events(ctx context.Context, watch bool) iter.Seq2[string, *v1.Event] {
	return a.events(ctx, watch)
}
func (a *answers) Logs(ctx context.Context, w io.Writer, l LogRequest) error {
	return a.logs(ctx, w, l)
}
func (a *answers) ExecURL(ctx context.Context, p *v1.Pod, c string, command []string, s Streams) (*url.URL, error) {
	return a.exec(ctx, p, c, command, s)
}
func (a *answers) AttachURL(ctx context.Context, p *v1.Pod, c string, s Streams) (*url.URL, error) {
	return a.attach(ctx, p, c, s)
}
func (a *answers) PortForwardURL(ctx context.Context, p *v1.Pod) (*url.URL, error) {
	return a.portForward(ctx, p)
}
func (a *answers) Run(ctx context.Context, p *v1.Pod, c string, command []string) ([]byte, error) {
	return a.run(ctx, p, c, command)
}
func (a *answers) Checkpoint(ctx context.Context, p *v1.Pod, c, path string, timeout time.Duration) error {
	return a.checkpoint(ctx, p, c, path, timeout)
}
func (a *answers) Restart(ctx context.Context, namespace, name string, containers []string, grace *int64) error {
	return a.restart(ctx, namespace, name, containers, grace)
}
func (a *answers) Drain(ctx context.Context, grace *int64) error { return a.drain(ctx, grace, false) }

func (a *answers) Undrain(ctx context.Context) error { return a.drain(ctx, nil, true) }

func (a *answers) Delete(ctx context.Context, namespace, name, uid string, grace *int64) error {
	return a.delete(ctx, namespace, name, uid, grace)
}
func (a *answers) Summary(ctx context.Context, only bool) (any, error) { return a.summary(ctx, only) }
