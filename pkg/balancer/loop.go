package balancer

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/service/nft"
)

// Run keeps the rules of Services in the packet filter up to date until ctx ends. The rules stay.
func (b *Balancer) Run(ctx context.Context) {
	defer b.cfg.Filter.Close()
	var watching sync.WaitGroup
	defer watching.Wait()
	watching.Go(func() { b.watch(ctx, b.noteProxy) })
	_ = b.guard() // it logs its failure
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
		if wait := b.step(); wait > 0 {
			again.Reset(wait)
		}
	}
}

// watch records changes of the rules by other programs. It calls proxied after a kube-proxy has made
// rules.
func (b *Balancer) watch(ctx context.Context, proxied func()) {
	err := b.cfg.Filter.Watch(ctx, func() {
		b.mu.Lock()
		b.foreign = true
		b.mu.Unlock()
		b.due.Send()
	}, proxied)
	if err != nil && ctx.Err() == nil {
		b.cfg.Log.Info("Failed to watch packet filter; not noticing changes by other programs", "error", err)
	}
}

// noteProxy records that a kube-proxy may serve the node. It wakes Run only the first time, because a
// kube-proxy changes its rules often.
func (b *Balancer) noteProxy() {
	b.mu.Lock()
	known := b.proxied
	b.proxied = true
	b.mu.Unlock()
	if !known {
		b.due.Send()
	}
}

// step brings the store and the packet filter up to date. It returns the wait until the next attempt,
// or 0 if a change must come first.
func (b *Balancer) step() time.Duration {
	b.mu.Lock()
	if b.answers == Waiting {
		foreign := b.foreign // only the guard is restored before all sources have answered
		b.mu.Unlock()
		if foreign {
			b.guarded = false
			_ = b.guard() // it logs its failure
		}
		return 0
	}
	b.decide()
	d, foreign, complete := b.decision, b.foreign, b.answers == Complete
	b.mu.Unlock()
	b.report(d, complete)
	wait, err := b.apply(d, foreign, complete)
	if err != nil {
		b.failures++
		b.fail(err)
		return backoff.After(b.failures, firstRetry, lastRetry)
	}
	b.failures = 0
	return wait
}

// report calls Config.Refused for new problems, and Config.Views after a change.
func (b *Balancer) report(d service.Decision, complete bool) {
	refused := make(map[service.Refusal]bool, len(d.Refused))
	for _, r := range d.Refused {
		refused[r] = true
		if b.refused[r] || b.cfg.Refused == nil {
			continue
		}
		if o := b.Object(r.Key); o != nil {
			b.cfg.Refused(o, r.Problem)
		}
	}
	b.refused = refused
	views := make([]*service.View, len(d.Services))
	for i := range d.Services {
		views[i] = d.Services[i].View
	}
	if !slices.Equal(views, b.views) || b.views == nil || complete != b.whole {
		b.views, b.whole = views, complete
		if b.cfg.Views != nil {
			b.cfg.Views(views, complete)
		}
	}
}

// apply stores the allocations before it makes the rules, so that a Service keeps an address that a
// client has seen. If Services may be missing, it does not remove the rules of a set without Services.
func (b *Balancer) apply(d service.Decision, foreign, complete bool) (wait time.Duration, err error) {
	if !d.KeepsAddresses(b.saved) && !d.Allocations.Equal(b.stored) {
		if err := b.cfg.Store.Save(d.Allocations); err != nil {
			return 0, err
		}
		b.stored = d.Allocations
	}
	b.saved = d
	if foreign {
		if wait := restoreEvery - time.Since(b.restored); !b.restored.IsZero() && wait > 0 {
			return wait, nil
		}
		b.mu.Lock()
		b.foreign = false
		b.mu.Unlock()
		b.cfg.Filter.Forget()
		b.guarded = false
		defer func() {
			if err == nil && b.guarded {
				b.noteRestored()
			}
		}()
	}
	if len(d.Services) == 0 {
		if b.guard() != nil { // it logs its failure
			wait = lastRetry
		}
		if complete {
			err = b.remove()
		}
		return wait, err
	}
	if foreign || b.mayBeProxied() {
		if err := b.findProxy(); err != nil {
			return 0, err
		}
	}
	if wait, err = b.rules(d); err != nil {
		return 0, err
	}
	if b.trouble != "" {
		b.trouble = ""
		b.cfg.Log.Info("Services are served again")
	}
	return wait, nil
}

// mayBeProxied reports whether findProxy must look for a kube-proxy. The kernel does not report rules
// of iptables-legacy. So after a change of Services or endpoints, findProxy looks for them if the last
// look was lookEvery ago.
func (b *Balancer) mayBeProxied() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.proxied || b.trouble != "" || !b.inFilter || !b.routed || time.Since(b.looked) >= lookEvery
}

// findProxy returns an error if a kube-proxy serves the node, after it has removed the rules.
func (b *Balancer) findProxy() error {
	b.mu.Lock()
	b.proxied = false
	b.mu.Unlock()
	found, err := b.cfg.Filter.Proxy()
	if err != nil {
		return err
	}
	if b.looked = time.Now(); found == "" {
		return nil
	}
	b.mu.Lock()
	b.proxied = true
	b.mu.Unlock()
	return errors.Join(&proxyError{found}, b.remove())
}

// remove removes the rules and the routes.
func (b *Balancer) remove() error {
	if !b.inFilter {
		return nil
	}
	err := errors.Join(b.cfg.Filter.Restore(), b.cfg.Filter.Remove())
	for _, p := range b.cfg.CIDRs {
		err = errors.Join(err, b.cfg.Filter.Route(p, false))
	}
	if err == nil {
		b.inFilter, b.routed, b.open, b.prepared = false, false, false, prepared{}
	}
	return err
}

// rules makes the rules of all Services. It returns the wait until the next attempt of the optional
// parts, or 0 if all are in force.
func (b *Balancer) rules(d service.Decision) (again time.Duration, err error) {
	desired := nft.Desired{CIDRs: b.cfg.CIDRs}
	for i := range d.Services {
		desired.Rules = append(desired.Rules, d.Services[i].Rules)
	}
	b.inFilter = true
	for _, p := range b.cfg.CIDRs {
		if b.routed {
			break
		}
		if err := b.cfg.Filter.Route(p, true); err != nil {
			return 0, err
		}
	}
	b.routed = true
	if b.guard() != nil { // it logs its failure
		again = lastRetry
	}
	if err = b.devices(&desired); err != nil && err.Error() != b.unprepared {
		b.unprepared = err.Error()
		b.cfg.Log.Warn("Failed to prepare the devices of pods for Services", "error", err)
	}
	n, err := b.cfg.Filter.Apply(desired)
	if n > 0 {
		b.cfg.Log.Debug("Changed the rules of Services", "services", len(d.Services), "messages", n)
	}
	if !errors.Is(err, nft.ErrDatagrams) {
		return again, err
	}
	if err.Error() != b.lingering {
		b.lingering = err.Error()
		b.cfg.Log.Warn("Some UDP clients may still use endpoints that have left", "error", err)
	}
	return lastRetry, nil
}

// prepared are the devices of endpoints that Run has prepared.
type prepared struct {
	rules     [][]service.Rule // of the Services with these endpoints; nil: all must be prepared again
	at        time.Time        // when all were prepared
	links     []netip.Prefix
	loopback6 bool
}

// devices prepares the devices of endpoints, only under the guard, and notes their Links. It prepares
// those of Services whose rules have changed, and those of all Services at most once in lookEvery.
func (b *Balancer) devices(desired *nft.Desired) error {
	if !b.guarded || !b.prepared.loopback6 || time.Since(b.prepared.at) >= lookEvery {
		b.prepared = prepared{at: time.Now(), loopback6: b.guarded}
	}
	var backends []netip.Addr
	for i, rules := range desired.Rules {
		if i < len(b.prepared.rules) && nft.Same(rules, b.prepared.rules[i]) {
			continue
		}
		for j := range rules {
			for _, at := range rules[j].Backends {
				backends = append(backends, at.Addr())
			}
		}
	}
	slices.SortFunc(backends, netip.Addr.Compare)
	backends = slices.Compact(backends)
	links, err := b.cfg.Filter.Links(backends)
	var err2 error
	if b.guarded {
		b.open = true
		var works bool
		works, err2 = b.cfg.Filter.Prepare(backends)
		b.prepared.loopback6 = b.prepared.loopback6 && works
	}
	b.prepared.links = sortedUnion(b.prepared.links, links)
	desired.Links, desired.Loopback6 = b.prepared.links, b.prepared.loopback6
	b.prepared.rules = desired.Rules
	if err = errors.Join(err, err2); err != nil {
		b.prepared = prepared{}
	}
	return err
}

// sortedUnion returns the networks of both lists, sorted and without repetition.
func sortedUnion(a, b []netip.Prefix) []netip.Prefix {
	all := slices.Concat(a, b)
	slices.SortFunc(all, func(x, y netip.Prefix) int { return cmp.Or(x.Addr().Compare(y.Addr()), x.Bits()-y.Bits()) })
	return slices.Compact(all)
}
