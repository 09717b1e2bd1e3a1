// Package apiserver reads the pods that an API server has bound to this node:
// one complete list, then a watch, which goes on where it was cut, and a list again
// whenever that leaves room for doubt. Beside them it reads what they need from their server: the
// ConfigMaps and Secrets they name, each by itself, services, and tokens.
//
// Each pod and each object is one source.File, named by the kubeconfig, namespace
// and name. Any answer that is not a complete one of the API is "I could not
// look": the last good set stands.
//
// The one rule: a pod goes when the server says that it was deleted, or when two
// complete lists, a moment apart, lack it; never because of silence, and never
// because of one list.
package apiserver

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/apiclient"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/source"
)

const (
	// A failed look is repeated after about firstRetry, then more and more
	// rarely, after about lastRetry at most.
	firstRetry = 800 * time.Millisecond
	lastRetry  = 30 * time.Second
	// confirmAfter lies between two lists that must agree on what is gone.
	confirmAfter = 2 * time.Second
	// firstAnswer is how long pods wait for the first answer of what they name.
	firstAnswer = time.Second
	// lingerFor is how long events are gathered before they make a snapshot.
	lingerFor = 5 * time.Millisecond
	// A watch is asked for this long, and as long again at most.
	watchFor = 5 * time.Minute
	// watchGrace is how much longer a watch may last than it was asked for
	// before its connection is taken for dead.
	watchGrace = 15 * time.Second
	// doubtAfter is how long after the server's last word a watch may still go on
	// where another stopped.
	doubtAfter = 2 * time.Minute
)

// Config is what an api source needs.
type Config struct {
	// Kubeconfig is the path of the file that says where the server is and how
	// to be let in. It and the files it names are read again before every
	// request, so that a rotated certificate, token or authority, and another
	// server, need no restart.
	Kubeconfig string
	// Client speaks to Kubeconfig's server, and is others' too: they share its
	// connections. nil is one of its own.
	Client *apiclient.Client
	// Node is the name of the node whose pods are read, in any case; an API server
	// knows it in lower case.
	Node string
	// Spec makes what is wanted of a pod as the server holds it; file is the
	// name of its source.File. A nil Spec rejects the pod, and the problems say
	// why; beside a Spec they are notices. It is called by one goroutine at a
	// time and may keep p.
	Spec func(p *v1.Pod, file string) (*pod.Spec, []pod.Problem)
	// Seen is told of every pod that the server binds to the node, mirrors included,
	// as the server shows it now: in the order of its lists and events, by the
	// goroutine of Sets. gone says that it was deleted, or that a list lacks it; p is
	// then as it was last. p is shared: nobody writes to it. It must not block; nil
	// tells nobody.
	Seen func(p *v1.Pod, gone bool)
	// Offline lets pods start without the addresses of services while the server has
	// not answered.
	Offline bool
	// Services has services read while there are pods (Source.Services).
	Services bool
	// Log hears, at debug, of lists and watches; nil is silence.
	Log *slog.Logger
	// UserAgent is sent with every request.
	UserAgent string
}

// Source is an api source.
type Source struct {
	cfg    Config
	client *apiclient.Client
	// The constants above; tests have less time.
	retry, rarest, confirm, linger, first, watched, grace, doubt, patience time.Duration
	pageSize                                                               int

	mu       sync.Mutex // guards what follows
	services *services  // nil: not known
	silent   bool       // the server did not answer at least once
	tokens   map[tokenKey]*token
	denied   map[authorizationv1.ResourceAttributes]time.Time // until when that is not asked for again
	data     context.Context                                  // of epoch; nil: nobody reads
	setBack  func()                                           // ends data
	newest   string                                           // resource version that any watch of objects has heard of

	classes classes
}

var _ source.Source = (*Source)(nil)

// New returns the source of the pods that cfg.Kubeconfig's server has bound to
// cfg.Node. The error is a pod.Problem where the kubeconfig or a file it names
// cannot be read or used; one of cfg.Client is an error of Sets. Nothing is sent
// before Sets.
func New(cfg Config) (*Source, error) {
	switch {
	case cfg.Kubeconfig == "":
		return nil, errors.New("no kubeconfig")
	case cfg.Node == "":
		return nil, errors.New("no node name")
	case cfg.Spec == nil:
		return nil, errors.New("no Spec")
	}
	cfg.Node = strings.ToLower(cfg.Node)
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		cfg: cfg, pageSize: 500,
		retry: firstRetry, rarest: lastRetry, confirm: confirmAfter, linger: lingerFor, first: firstAnswer, watched: watchFor, grace: watchGrace, doubt: doubtAfter, patience: leavePatience,
	}
	if s.client = cfg.Client; s.client != nil {
		return s, nil
	}
	var err error
	s.client, err = apiclient.Open(apiclient.Config{File: cfg.Kubeconfig, UserAgent: cfg.UserAgent, Log: cfg.Log})
	return s, err
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
		defer s.leave()
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
			err := r.round(ctx)
			if r.left || ctx.Err() != nil {
				return
			}
			if err != nil {
				r.fail(err)
			}
			if r.left || !r.rest(ctx, r.delay(&r.pause, r.retry, err)) {
				return
			}
		}
	}
}

// run is what one run of Sets knows. It belongs to the goroutine that ranges
// over Sets.
type run struct {
	*Source
	*pods
	*objects
	yield func(source.Snapshot, error) bool
	pause time.Duration // before the newest round
	on    ground        // of the next watch
	cut   bool          // the last one did not end when it was to end
	said  string        // the error that was yielded last, "" after a set
	heard bool          // a set was yielded
	left  bool          // the caller has left the loop
}

// round lists where a list has to come first, and watches for as long as watches end
// when they are to end. It returns why it could not; nil when it is only time to try
// again.
func (r *run) round(ctx context.Context) error {
	for !r.left {
		if r.on.host == "" {
			if err := r.look(ctx); err != nil {
				return err
			}
			if !r.heard || r.set.Dirty() {
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

// look reads the complete set. Where that would take away what stands, or give a
// name to another pod, a second list has to agree: a server that was restored
// from a backup, and one that lost its data, answer in perfect order (F71).
func (r *run) look(ctx context.Context) error {
	newest := r.newestHeard()
	first, err := r.list(ctx)
	if err != nil {
		return err
	}
	back := r.setBackTo(first.rv, newest)
	doubt := r.doubts(first)
	if len(doubt) == 0 {
		r.replace(first, nil, r.flush)
		r.goFrom(first)
		return nil
	}
	if back {
		r.fail(errBackInTime)
	}
	if r.left || !r.rest(ctx, r.confirm) {
		return context.Canceled
	}
	second, err := r.list(ctx)
	switch {
	case err != nil:
		return err
	case older(second.rv, first.rv):
		return errBackInTime
	}
	gone := r.doubts(second)
	for file, uid := range gone {
		if was, ok := doubt[file]; !ok || was != uid {
			delete(gone, file)
		}
	}
	r.replace(second, gone, r.flush)
	r.goFrom(first) // what happened between the two comes again as events
	return nil
}

// goFrom has the next watch begin at l.
func (r *run) goFrom(l picture) {
	// Where more was heard of meanwhile the next look decides whether it was set back.
	r.seen, r.on, r.cut = l.rv, l.on, older(l.rv, r.newestHeard())
	r.settle()
}

// setBackTo reports whether rv, which the server has said now, is older than what was
// seen of its pods before. Where it is older than newest too, the newest version heard
// of anything when the server was asked, all is listed anew. What other watches hear
// while it answers may well be newer.
func (r *run) setBackTo(rv, newest string) bool {
	back := older(rv, r.seen)
	if back || older(rv, newest) {
		r.newEpoch()
	}
	return back
}

// list asks for the complete list.
func (r *run) list(ctx context.Context) (picture, error) {
	way, err := r.enter()
	if err != nil {
		return picture{}, err
	}
	start := time.Now()
	l, err := way.list(ctx, podsOf(r.cfg.Node), r.pageSize)
	all := picture{rv: l.rv, on: ground{host: way.host, heard: start}}
	for _, o := range l.objects {
		if p, is := o.(*v1.Pod); is {
			all.pods = append(all.pods, p)
		}
	}
	if err == nil {
		r.show(all)
	}
	r.cfg.Log.Debug("Listed pods", "kubeconfig", r.cfg.Kubeconfig, "pods", len(all.pods), "resourceVersion", l.rv, "took", time.Since(start), "failed", err != nil)
	return all, err
}

// flush yields the set as it is now.
func (r *run) flush() {
	if r.left {
		return
	}
	r.tellSilent()
	r.said, r.heard = "", true
	r.left = !r.yield(r.snapshot(), nil)
}

// fail yields why the server could not be looked at, unless that was said last.
func (r *run) fail(err error) {
	if r.left || err.Error() == r.said {
		return
	}
	r.said = err.Error()
	r.mu.Lock()
	r.silent = true
	r.mu.Unlock()
	r.left = !r.yield(source.Snapshot{}, err)
}

// delay returns how long to wait before the next round: longer and longer, and
// spread so that a fleet does not come back in step. pause is what it was before,
// first the shortest.
func (s *Source) delay(pause *time.Duration, first time.Duration, err error) time.Duration {
	*pause = min(max(2**pause, first), s.rarest)
	d := *pause/2 + rand.N(*pause)
	if refused := (*refusal)(nil); errors.As(err, &refused) {
		d = max(d, min(refused.retryAfter, s.rarest))
	}
	return d
}

// sleep reports whether d passed before ctx was done.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// errBackInTime is said while a second list has not confirmed the first.
var errBackInTime = errors.New("the server's data is older than what was read before (restored from a backup?): nothing is removed until a second list says the same")
