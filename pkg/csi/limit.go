package csi

import (
	"context"
	"maps"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// objectEvery is how often the CSIDriver object of a driver is read, for its update period.
const objectEvery = 2 * time.Minute

// refresher asks drivers again how many volumes the node may have, as often as their CSIDriver objects
// say, and when the controller could not attach a volume for lack of room.
type refresher struct {
	*Volumes
	plans map[string]*limitPlan
}

// limitPlan says when a driver is asked for its limit.
type limitPlan struct {
	period time.Duration // of the CSIDriver object; 0: the driver is not asked
	read   time.Time     // when the object is read again
	ask    time.Time     // when the driver is asked again
}

// follow sets the period of the driver's object.
func (p *limitPlan) follow(object *storagev1.CSIDriver, now time.Time) {
	period := time.Duration(0)
	if object != nil && object.Spec.NodeAllocatableUpdatePeriodSeconds != nil {
		period = max(0, time.Duration(*object.Spec.NodeAllocatableUpdatePeriodSeconds)*time.Second)
	}
	if period != p.period {
		p.period, p.ask = period, now.Add(period)
	}
	p.read = now.Add(objectEvery)
}

// next returns when there is something to do.
func (p *limitPlan) next() time.Time {
	if p.period > 0 && p.ask.Before(p.read) {
		return p.ask
	}
	return p.read
}

// run keeps the limits current until ctx ends.
func (r *refresher) run(ctx context.Context) {
	r.plans = make(map[string]*limitPlan)
	for ctx.Err() == nil {
		backoff.SleepOr(ctx, max(r.round(ctx), retryFirst), r.refresh)
		backoff.Sleep(ctx, waitFirst) // limits the calls if a driver registers repeatedly
	}
}

// round refreshes the limits that are due, and returns the wait until the next round.
func (r *refresher) round(ctx context.Context) time.Duration {
	if r.cluster.API == nil {
		return confirmEvery
	}
	r.mu.Lock()
	registered := slices.Sorted(maps.Keys(r.drivers))
	full := r.full
	r.full = make(map[string]bool)
	r.mu.Unlock()
	maps.DeleteFunc(r.plans, func(name string, _ *limitPlan) bool { return !slices.Contains(registered, name) })
	wait := confirmEvery
	for _, name := range registered {
		p := r.plans[name]
		if p == nil {
			p = &limitPlan{}
			r.plans[name] = p
		}
		r.keep(ctx, name, p, full[name])
		wait = min(wait, time.Until(p.next()))
	}
	return wait
}

// keep reads the object of a driver, and asks the driver, if that is due.
func (r *refresher) keep(ctx context.Context, name string, p *limitPlan, full bool) {
	if now := time.Now(); !now.Before(p.read) {
		reading, stop := context.WithTimeout(ctx, askTimeout)
		object, err := r.cluster.API.CSIDriver(reading, name)
		stop()
		if err != nil {
			r.cfg.Log.Debug("Failed to read CSIDriver object", "driver", name, "error", err)
			p.read = now.Add(objectEvery)
			return
		}
		p.follow(object, now)
	}
	if p.period > 0 && (full || !time.Now().Before(p.ask)) {
		if err := r.askLimit(ctx, name); err != nil {
			r.cfg.Log.Warn("Failed to update the volume limit of a CSI driver", "driver", name, "error", err)
		}
		p.ask = time.Now().Add(p.period)
	}
}

// askLimit asks a driver for its limit. The node ID and the topology are those of its registration: the
// API server lets no node change them.
func (r *refresher) askLimit(ctx context.Context, name string) error {
	d := r.acquire(name)
	if d == nil {
		return nil
	}
	defer r.release(d)
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	defer d.note(ctx, "NodeGetInfo", "", "")()
	answer, err := d.node.NodeGetInfo(ctx, &csipb.NodeGetInfoRequest{})
	if err != nil {
		return pluginconn.ShortError(err)
	}
	info, err := infoOf(answer)
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if d.info.limit != info.limit {
		r.cfg.Log.Info("Volume limit of a CSI driver has changed", "driver", name, "before", d.info.limit, "now", info.limit)
		d.info.limit = info.limit
		wake(r.due)
	}
	return nil
}

// noteFull makes the refresher ask a driver for its limit, if the controller could not attach a volume
// because the node has too many.
func (v *Volumes) noteFull(driver string, a *storagev1.VolumeAttachment) {
	if e := a.Status.AttachError; a.Status.Attached || e == nil || e.ErrorCode == nil || *e.ErrorCode != int32(codes.ResourceExhausted) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.full[driver] = true
	wake(v.refresh)
}
