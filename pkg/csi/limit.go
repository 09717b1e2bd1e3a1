package csi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
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
		r.due.Send()
	}
	return nil
}

// reasonLimit is the kubelet's reason of a pod that it rejects because a driver cannot attach more volumes to
// the node.
const reasonLimit = "VolumeAttachmentLimitExceeded"

// rejectAfter is how long a pod waits for its volumes before it is rejected for lack of room, as in the
// kubelet. Meanwhile the controller may detach volumes of other pods.
const rejectAfter = 2*time.Minute + 3*time.Second

// isFull reports whether the controller could not attach a volume because the node has too many.
func isFull(a *storagev1.VolumeAttachment) bool {
	e := a.Status.AttachError
	return !a.Status.Attached && e != nil && e.ErrorCode != nil && *e.ErrorCode == int32(codes.ResourceExhausted)
}

// noteFull makes the refresher ask a driver for its limit, if the controller could not attach a volume
// because the node has too many.
func (v *Volumes) noteFull(driver string, a *storagev1.VolumeAttachment) {
	if !isFull(a) {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.full[driver] = true
	v.refresh.Send()
}

// hasPeriod reports whether the CSIDriver object says that the driver is asked for its limit.
func (o *operation) hasPeriod() bool {
	return o.object != nil && o.object.Spec.NodeAllocatableUpdatePeriodSeconds != nil && *o.object.Spec.NodeAllocatableUpdatePeriodSeconds > 0
}

// notAttached returns why the controller has not attached the volume, nil if it gives no reason. The Node
// does not list a volume whose attachment has failed, so isAttached did not read the attachment. As in the
// kubelet, it is read for drivers whose limit may change.
func (o *operation) notAttached(ctx context.Context) error {
	if o.attachment == nil && o.hasPeriod() {
		reading, stop := context.WithTimeout(ctx, askTimeout)
		a, err := o.cluster.API.VolumeAttachment(reading, o.id.attachment(o.cfg.Node))
		stop()
		if err != nil {
			o.cfg.Log.Debug("VolumeAttachment not read", "driver", o.id.driver, "error", err)
		} else if a != nil && a.Spec.NodeName == o.cfg.Node && a.Spec.Attacher == o.id.driver {
			o.attachment = a
		}
	}
	if o.attachment == nil {
		return nil
	}
	o.noteFull(o.id.driver, o.attachment)
	return attachError(o.attachment)
}

// noteWait notes that the pod waits for the attachment of the volume, unless it waits already.
func (o *operation) noteWait() {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.of(o.id)
	if at.waits == nil {
		at.waits = make(map[user]time.Time)
	}
	if at.waits[o.user].IsZero() {
		at.waits[o.user] = time.Now()
	}
}

// noteNoWait notes that the pod does not wait for the attachment any more.
func (o *operation) noteNoWait() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if at := o.volumes[o.id]; at != nil {
		delete(at.waits, o.user)
	}
}

// rejected returns the error of a volume that is not attached: a *pod.RejectError if the kubelet would reject
// the pod. It does so if the node has too many volumes of the driver for as long as a pod may wait. The
// text is the kubelet's.
func (o *operation) rejected(err error) error {
	if !o.hasPeriod() || !isFull(o.attachment) {
		return err
	}
	o.mu.Lock()
	since := o.of(o.id).waits[o.user]
	o.mu.Unlock()
	if since.IsZero() || time.Since(since) < o.rejectAfter {
		return err
	}
	volumes := []string{o.request.Volume}
	return &pod.RejectError{Reason: reasonLimit, Err: err, Message: fmt.Sprintf(
		"Node has reached its volume attachment limit, rejecting pod. unmounted volumes=%v, unattached volumes=%v, failed to process volumes=%v: %v",
		volumes, volumes, []string{}, context.DeadlineExceeded)}
}
