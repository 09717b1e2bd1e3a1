package balancer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/wakeup"
)

// The waits of Run.
const (
	firstRetry   = time.Second
	lastRetry    = time.Minute
	restoreEvery = 5 * time.Second // the shortest time between two restorations of the rules
	reportEvery  = 10 * time.Minute
	lookEvery    = time.Minute // the shortest time between two searches for rules that the kernel does not report
)

// recovery is Run's memory of failures, so that it reports each cause once.
type recovery struct {
	trouble    string    // the last error that was reported to Config.Trouble
	unprepared string    // the last error of the devices of pods that was logged
	unguarded  string    // the last error of Filter.Guard that was logged
	lingering  string    // the last error about UDP connections that was logged
	failures   int       // in a row
	restored   time.Time // the last restoration of rules that other programs had changed
	reported   time.Time // the last report of such a restoration
	looked     time.Time // the last call of Filter.Proxy without an error
}

// fail reports an error of the packet filter or the store, unless it was the last one reported.
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

// proxyError is the error of a node on which a kube-proxy runs.
type proxyError struct{ found string }

func (e *proxyError) Error() string {
	return "a kube-proxy serves this node (" + e.found + "): two proxies must not serve one node; stop it and remove its rules (kube-proxy --cleanup)"
}

// guard adds the rules that protect the loopback addresses, unless they are in force. If it fails, it
// resets the sysctls of devices.
func (b *Balancer) guard() error {
	if b.guarded {
		return nil
	}
	err := b.cfg.Filter.Guard()
	b.guarded = err == nil
	if err == nil {
		b.unguarded, b.prepared = "", prepared{}
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

// noteRestored reports that the rules were restored after another program had changed them.
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

// Protect keeps the guard of the loopback addresses in force until ctx ends, on a node that serves no
// Services. The guard stays.
func Protect(ctx context.Context, f Filter, log *slog.Logger) {
	b := &Balancer{cfg: Config{Filter: f, Log: log}, due: wakeup.New()}
	defer f.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watch(ctx, func() {}) })
	b.due.Send()
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
