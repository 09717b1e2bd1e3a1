// Package apiserver is the source of the pods that an API server has bound to this node,
// with the ConfigMaps and Secrets that they name. It reads them through pkg/apiclient: one
// complete list, then a watch, which goes on where it was cut. It lists again whenever a
// watch may have missed something.
//
// Each pod and each object is one source.File, named by the kubeconfig, namespace and
// name. Any answer that is not a complete one of the API is an error: the last good set
// stays in use.
//
// The source removes a pod when the server says that it was deleted, or when two complete
// lists, a moment apart, lack it. It removes no pod because the server does not answer,
// nor because of one list.
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
	// lingerFor is how long events are gathered before they make a snapshot.
	lingerFor = 5 * time.Millisecond
)

// Config configures an api source.
type Config struct {
	// Kubeconfig is the path of the file that Reader's client uses. It names the source and
	// its files.
	Kubeconfig string
	// Reader reads from the API server.
	Reader *apiclient.Reader
	// Node is the name of the node whose pods are read, in any case; an API server
	// knows it in lower case.
	Node string
	// Spec converts a pod of the server to its spec; file is the name of its
	// source.File. A nil Spec rejects the pod, and the problems say why; beside a Spec
	// they are notices. It is called by one goroutine at a time and may keep p.
	Spec func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem)
	// OnPod gets every pod that the server binds to the node, mirrors included, as the
	// server shows it now: in the order of its lists and events, from the goroutine of
	// Sets. gone says that it was deleted, or that a list lacks it; p is then its last
	// state. p is shared and read only. Seen must not block; it may be nil.
	OnPod func(p *v1.Pod, gone bool)
	// Services has Reader read services while there are pods.
	Services bool
	// Log gets debug messages of lists and watches; nil for none.
	Log *slog.Logger
}

// Source is an api source.
type Source struct {
	cfg           Config
	reader        *apiclient.Reader
	linger, first time.Duration // the constants above; tests have less time
	again         time.Duration // retryRefused; tests have less time
}

var _ source.Source = (*Source)(nil)

// New returns the source of the pods that the server has bound to cfg.Node. It sends
// nothing before Sets.
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

// Name returns "api:" and the kubeconfig's path: a server that moved is no other
// layer.
func (s *Source) Name() string { return "api:" + s.cfg.Kubeconfig }

// file returns the name of the source.File of a pod.
func (s *Source) file(k pod.Key) string { return s.cfg.Kubeconfig + "#" + k.String() }

// Sets implements source.Source. Its first set comes with the first complete
// list and waits for nothing else (unlike C-1.8.1). It never ends by itself.
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

// run is the state of one run of Sets. It belongs to the goroutine that ranges over Sets.
type run struct {
	*Source
	*pods
	*objects
	yield     func(source.Snapshot, error) bool
	pause     time.Duration      // before the newest round
	at        apiclient.Position // of the next watch
	cut       bool               // the last one did not end when it was due
	lastError string             // that was yielded, "" after a set
	yielded   bool               // a set
	left      bool               // the caller has left the loop
}

// round lists if a list has to come first, and watches for as long as watches end when
// they are due. The error says why there is no list, or no watch; nil means that it is
// time to try again.
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

// readSet reads the complete set. Where that would remove a pod, or give its name to another
// one, a second list has to agree: a server that was restored from a backup, or lost its
// data, answers without an error (F71).
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
	r.watchFrom(first) // changes between the two come again as events
	return nil
}

// watchFrom makes the next watch begin at l.
func (r *run) watchFrom(l podList) {
	// Where a reflector has seen a newer version meanwhile, the next list decides whether the
	// server was set back.
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

// flush yields the set as it is now.
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

// errBackInTime is the error while a second list has not confirmed the first.
var errBackInTime = errors.New("the server's data is older than in the last list (was it restored from a backup?): pods are removed only after a second list confirms it")
