// Package apiserver is the source of the pods that an API server has bound to this node,
// with the ConfigMaps and Secrets that they name. It reads them with pkg/apiclient: one complete list, and
// then a watch. After an interruption, the next watch continues at the last resource version. The source
// lists again if a watch may have missed a change.
//
// Each pod and each object is one source.File, named by the kubeconfig, namespace and name. An incomplete
// answer is an error, and the last good set stays in use.
//
// The source removes a pod when an event says that it was deleted, or when two complete lists, a moment
// apart, lack it. It removes no pod because the server does not answer, or because only one list lacks it.
package apiserver

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"strings"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

const (
	// firstAnswer is how long pods wait for the first answer about the objects that they name.
	firstAnswer = time.Second
	// lingerFor is how long the source collects events before it yields a snapshot.
	lingerFor = 5 * time.Millisecond
)

// Config is the configuration of an api source.
type Config struct {
	// Kubeconfig is the path of the kubeconfig of Reader. It is part of the names of the source and its
	// files.
	Kubeconfig string
	// Reader reads from the API server.
	Reader *apiclient.Reader
	// Node is the name of the node whose pods the source reads. New converts it to lower case, as an
	// API server requires.
	Node string
	// Spec converts a pod of the server to its spec; file is the name of its source.File. A nil result
	// rejects the pod, and the problems say why. If the result is not nil, the problems are notices.
	// Only one goroutine at a time calls Spec. Spec may keep p.
	Spec func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem)
	// Seen gets each pod that the server has bound to the node, also mirror pods, in the order of lists
	// and events. The goroutine of Sets calls it. gone says that the pod was deleted, or that a list
	// lacks it; p is then its last state. Seen must not change p, and must not block; it may be nil.
	OnPod func(p *v1.Pod, gone bool)
	// Services says that Reader reads Services while there are pods.
	Services bool
	// Log receives debug messages about lists and watches; nil discards them.
	Log *slog.Logger
}

// Source is an api source.
type Source struct {
	cfg           Config
	reader        *apiclient.Reader
	linger, first time.Duration // lingerFor and firstAnswer; shorter in tests
	again         time.Duration // retryRefused; shorter in tests
}

var _ source.Source = (*Source)(nil)

// New returns the source of the pods that the server has bound to cfg.Node. It sends no request before
// Sets. An error names the missing field of cfg.
func New(cfg Config) (*Source, error) {
	switch {
	case cfg.Kubeconfig == "":
		return nil, errors.New("no kubeconfig")
	case cfg.Reader == nil:
		return nil, errors.New("no API server")
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case cfg.Spec == nil:
		return nil, errors.New("no Spec")
	}
	cfg.Node = strings.ToLower(cfg.Node)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	return &Source{cfg: cfg, reader: cfg.Reader, linger: lingerFor, first: firstAnswer, again: retryRefused}, nil
}

// Name returns "api:" and the path of the kubeconfig. So a server with a new address is the same layer.
func (s *Source) Name() string { return "api:" + s.cfg.Kubeconfig }

// file returns the name of the source.File of a pod.
func (s *Source) file(k pod.Key) string { return s.cfg.Kubeconfig + "#" + k.String() }

// Sets implements source.Source. It yields the first set after the first complete list. Unlike the kubelet,
// it does not wait for the Node object (C-1.8.1). It never ends by itself.
func (s *Source) Sets(ctx context.Context) iter.Seq2[source.Snapshot, error] {
	return func(yield func(source.Snapshot, error) bool) {
		defer s.reader.Release()
		var readers sync.WaitGroup
		defer readers.Wait()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		r := &run{Source: s, yield: yield, pods: newPods(s)}
		r.objects = newObjects(func(read func(context.Context)) (end func()) {
			ctx, end := context.WithCancel(ctx)
			readers.Go(func() { read(ctx) })
			return end
		})
		for ctx.Err() == nil {
			returned := r.reader.Recovered()
			err := r.round(ctx)
			if r.left || ctx.Err() != nil {
				return
			}
			if err != nil {
				r.fail(err)
			}
			d := r.reader.Delay(&r.pause, r.reader.Tuning.FirstRetry, err)
			sleep := func(d time.Duration, or <-chan struct{}) bool { return r.sleep(ctx, d, or) }
			if r.left || !r.reader.Wait(d, returned, sleep) {
				return
			}
		}
	}
}

// run is the state of one run of Sets. Only the goroutine that ranges over Sets uses it.
type run struct {
	*Source
	*pods
	*objects
	yield     func(source.Snapshot, error) bool
	pause     time.Duration      // the delay before the newest round
	at        apiclient.Position // the position of the next watch; zero: a list comes first
	cut       bool               // the last watch was interrupted before its requested end
	lastError string             // the last yielded error; "" after a set
	yielded   bool               // a set was yielded
	left      bool               // the caller has left the loop
}

// round lists if a list has to come first, and then watches. It begins the next watch as long as each ends
// at its requested end. The error says why a list or a watch failed. If it is nil, the next round may
// begin.
func (r *run) round(ctx context.Context) error {
	for !r.left {
		if r.at.Host == "" {
			if err := r.readSet(ctx); err != nil {
				return err
			}
			if !r.yielded || r.isDirty() {
				if !r.await(ctx) {
					return context.Canceled
				}
				r.flush()
			}
		}
		if due, err := r.follow(ctx); !due {
			return err
		}
	}
	return nil
}

// look reads the complete set. If that would remove a pod, or give its name to another pod, a second list
// has to confirm it: a server that was restored from a backup, or has lost its data, answers without an
// error (F71).
func (r *run) readSet(ctx context.Context) error {
	newest := r.reader.NewestVersion()
	first, err := r.list(ctx)
	if err != nil {
		return err
	}
	back := r.reader.IsRolledBack(first.rv, r.seen, newest)
	unconfirmed := r.unconfirmed(first)
	if len(unconfirmed) == 0 {
		r.replace(first, nil, r.flush)
		r.watchFrom(first)
		return nil
	}
	if back {
		r.fail(errBackInTime)
	}
	if r.left || !r.sleep(ctx, r.reader.Tuning.Confirm, nil) {
		return context.Canceled
	}
	second, err := r.list(ctx)
	switch {
	case err != nil:
		return err
	case apiclient.Older(second.rv, first.rv):
		return errBackInTime
	}
	gone := r.unconfirmed(second)
	for file, uid := range gone {
		if was, ok := unconfirmed[file]; !ok || was != uid {
			delete(gone, file)
		}
	}
	r.replace(second, gone, r.flush)
	r.watchFrom(first) // the watch repeats the changes between the two lists as events
	return nil
}

// watchFrom makes the next watch begin at l.
func (r *run) watchFrom(l podList) {
	// If another reader has seen a newer version meanwhile, the next watch checks whether the server
	// was set back.
	r.seen, r.at, r.cut = l.rv, l.at, apiclient.Older(l.rv, r.reader.NewestVersion())
	r.syncReaders()
}

// list reads the complete list.
func (r *run) list(ctx context.Context) (podList, error) {
	transport, err := r.reader.Transport()
	if err != nil {
		return podList{}, err
	}
	start := time.Now()
	l, err := transport.List(ctx, apiclient.PodsOf(r.cfg.Node), r.reader.Tuning.PageSize)
	all := podList{rv: l.Version, at: apiclient.Position{Host: transport.Host(), LastMessage: start}}
	for _, o := range l.Objects {
		if p, is := o.(*v1.Pod); is {
			all.pods = append(all.pods, p)
		}
	}
	if err == nil {
		r.show(all)
	}
	r.cfg.Log.Debug("Listed pods", "kubeconfig", r.cfg.Kubeconfig, "pods", len(all.pods), "resourceVersion", l.Version, "took", time.Since(start), "failed", err != nil)
	return all, err
}

// flush yields the current set.
func (r *run) flush() {
	if r.left {
		return
	}
	r.markUnread()
	r.noteUnread()
	r.found = false
	r.lastError, r.yielded = "", true
	r.left = !r.yield(r.snapshot(), nil)
}

// fail yields why the server could not be read, unless the last yield was the same error.
func (r *run) fail(err error) {
	if r.left || err.Error() == r.lastError {
		return
	}
	r.lastError = err.Error()
	r.reader.SetServicesUnavailable()
	r.left = !r.yield(source.Snapshot{}, err)
}

// errBackInTime is the error until a second list has confirmed the first one.
var errBackInTime = errors.New("the server's data is older than in the last list (was it restored from a backup?): pods are removed only after a second list confirms it")
