package apiserver

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodectl/nodectl/pkg/backoff"
)

// firstLease and lastLease bound the waits between tries to renew a lease.
const (
	firstLease = 200 * time.Millisecond
	lastLease  = 7 * time.Second
)

// keepLease renews the lease every quarter of its duration until ctx ends,
// independently of the status (C-1.25.8). It creates the lease once the object exists,
// which owns it.
func (h *Heartbeat) keepLease(ctx context.Context) {
	var last *coordinationv1.Lease
	wait, every := firstLease, h.cfg.LeaseDuration/4
	for {
		is, err := h.renew(ctx, last)
		if ctx.Err() != nil {
			return
		}
		h.note("lease", err)
		last = is
		next := jitter(every)
		if err != nil {
			next, wait = min(wait, every), backoff.Next(wait, firstLease, lastLease)
		} else {
			wait = firstLease
		}
		timer := time.NewTimer(next)
		select {
		case <-timer.C:
		case <-h.created:
		case <-ctx.Done():
		}
		timer.Stop()
		if ctx.Err() != nil {
			return
		}
	}
}

// renew creates or renews the lease, and returns it as the server has it now; nil when
// it has to be read first.
func (h *Heartbeat) renew(ctx context.Context, last *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	name, uid := h.cfg.Observer.Name(), h.UID()
	if last == nil {
		var err error
		last, err = h.leases.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			if uid == "" {
				return nil, nil // a lease without its node would never be deleted
			}
			made, err := h.leases.Create(ctx, h.lease(nil, name, uid), metav1.CreateOptions{})
			if err != nil {
				return nil, err // with an error, a client returns an empty lease
			}
			return made, nil
		}
		if err != nil {
			return nil, err
		}
	}
	is, err := h.leases.Update(ctx, h.lease(last, name, uid), metav1.UpdateOptions{})
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			return nil, err // the next try reads it
		}
		return last, err
	}
	return is, nil
}

// lease returns the wanted lease, from the existing one.
func (h *Heartbeat) lease(from *coordinationv1.Lease, name string, uid types.UID) *coordinationv1.Lease {
	l := from.DeepCopy()
	if from == nil {
		l = &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: LeaseNamespace}}
	}
	seconds, now := int32(h.cfg.LeaseDuration/time.Second), metav1.NewMicroTime(time.Now())
	l.Spec.HolderIdentity, l.Spec.LeaseDurationSeconds, l.Spec.RenewTime = &name, &seconds, &now
	if uid != "" {
		l.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: name, UID: uid}}
	}
	return l
}
