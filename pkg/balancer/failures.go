package balancer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// The waits of Run.
const (
	firstRetry   = time.Second
	lastRetry    = time.Minute
	restoreEvery = 5 * time.Second // at most, if another program keeps on changing the rules
	reportEvery  = 10 * time.Minute
	lookEvery    = time.Minute // at most, for a kube-proxy whose rules the kernel does not report
)

// recovery is what Run remembers of failures, so that it reports each cause once.
type recovery struct {
	trouble    string    // the last error that was reported to Config.Trouble
	unprepared string    // the last error of the devices of pods that was logged
	unguarded  string    // the last error of Filter.Guard that was logged
	lingering  string    // the last error about UDP connections that was logged
	failures   int       // in a row
	restored   time.Time // when rules were restored that others had changed
	reported   time.Time // when that was reported
	looked     time.Time // when Filter.Proxy found no kube-proxy, or one
}

// fail reports an error of the packet filter or the store, once in a row.
func (b *Balancer) fail(err error) {
	var proxy *proxyError
	reason := ReasonNoFilter
	if errors.As(err, &proxy) {
		reason = ReasonProxy
	}
	if b.trouble == err.Error() {
		return
	}
	b.trouble = err.Error()
	b.cfg.Log.Error("Failed to serve Services; pods keep running", "error", err)
	if b.cfg.Trouble != nil {
		b.cfg.Trouble(reason, err.Error())
	}
}

// proxyError says that a kube-proxy runs on the node.
type proxyError struct{ found string }

func (e *proxyError) Error() string {
	return "a kube-proxy serves this node (" + e.found + "): two proxies must not serve one node; stop it and remove its rules (kube-proxy --cleanup)"
}

// guard protects the loopback addresses, unless they are. Without the guard, no device may stay open.
func (b *Balancer) guard() error {
	if b.guarded {
		return nil
	}
	err := b.cfg.Filter.Guard()
	b.guarded = err == nil
	if err == nil {
		b.unguarded = ""
		return nil
	}
	if err.Error() != b.unguarded {
		b.unguarded = err.Error()
		b.cfg.Log.Warn("Loopback addresses are not protected from pods", "error", err)
	}
	if b.open {
		if closed := b.cfg.Filter.Restore(); closed != nil {
			return errors.Join(err, closed)
		}
		b.open = false
	}
	return err
}

// noteRestored reports that others had changed the rules.
func (b *Balancer) noteRestored() {
	b.restored = time.Now()
	if !b.reported.IsZero() && time.Since(b.reported) < reportEvery {
		return
	}
	b.reported = time.Now()
	b.cfg.Log.Warn("Restored rules of the packet filter, which another program had changed")
	if b.cfg.Trouble != nil {
		b.cfg.Trouble(ReasonRestored, "Restored rules of the packet filter, which another program had changed")
	}
}

// Protect keeps the guard of the loopback addresses where nothing serves Services, until ctx ends. The
// guard stays.
func Protect(ctx context.Context, f Filter, log *slog.Logger) {
	b := &Balancer{cfg: Config{Filter: f, Log: log}, due: make(chan struct{}, 1)}
	defer f.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watch(ctx, func() {}) })
	b.wake()
	again := time.NewTimer(0)
	again.Stop()
	defer again.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.due:
		case <-again.C:
		}
		b.guarded = false
		if b.guard() != nil {
			b.failures++
			again.Reset(backoff.After(b.failures, firstRetry, lastRetry))
			continue
		}
		b.failures = 0
	}
}
