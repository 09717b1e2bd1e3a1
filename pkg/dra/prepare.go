package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	resourcev1 "k8s.io/api/resource/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// maxSteps limits the steps of one operation: each driver needs one.
const maxSteps = 4 * maxDevices

// Prepare prepares all claims of a pod; it may take as long as their drivers need. It asks the API
// server only for claims that are not prepared yet. An error is a *pod.StartError: the pod waits.
func (c *Claims) Prepare(ctx context.Context, want *pod.Spec) error {
	began := time.Now()
	prepared, err := c.prepareAll(ctx, want)
	if prepared > 0 || err != nil {
		c.handled("PrepareResources", began, err)
	}
	return err
}

// prepareAll prepares all claims of a pod, and returns how many were not prepared yet.
func (c *Claims) prepareAll(ctx context.Context, want *pod.Spec) (int, error) {
	if err := c.forgive(ctx, want.UID()); err != nil {
		return 0, waits(pod.ReasonPrepareClaims, err)
	}
	all, err := c.resolve(ctx, want)
	if err != nil {
		return 0, err
	}
	for _, one := range all {
		if err := c.ready(one.claim, want.UID(), one.name); err != nil {
			return 0, err
		}
	}
	for _, one := range all {
		if err := c.prepare(ctx, want, one); err != nil {
			return 0, err
		}
	}
	return len(all), nil
}

// forgive notes that a source has the pod. It waits until Run has finished its current work for the
// pod.
func (c *Claims) forgive(ctx context.Context, uid string) error {
	c.mu.Lock()
	_, left := c.left[uid]
	delete(c.left, uid)
	c.mu.Unlock()
	if !left {
		return nil
	}
	for _, id := range c.claimsOf(uid) {
		unlock, err := c.lock(ctx, id)
		if err != nil {
			return err
		}
		unlock()
	}
	return nil
}

// request is a claim that a pod uses by a name.
type request struct {
	name  string // in the pod
	claim *resourcev1.ResourceClaim
	sum   string // sumOf the claim
}

// of returns r for a claim that a desired pod uses.
func (r record) of(q request) record {
	r.Namespace, r.Name, r.UID, r.Allocation = q.claim.Namespace, q.claim.Name, string(q.claim.UID), q.sum
	return r.withDrivers(driversOf(q.claim))
}

// waits returns the error of a pod that waits for its claims.
func waits(reason string, err error) error {
	return &pod.StartError{Reason: reason, Err: fmt.Errorf("prepare dynamic resources: %w", err)}
}

// resolve returns the claims of a pod that are not prepared yet. It checks all of them before one is
// prepared.
func (c *Claims) resolve(ctx context.Context, want *pod.Spec) ([]request, error) {
	var all []request
	used := pod.ClaimsOf(want.Pod)
	for i := range used {
		of := &used[i]
		if r, known := c.find(want.UID(), of.Name); known && r.prepared(c.boot) {
			continue
		}
		name, owned, err := pod.ClaimName(want.Pod, of)
		if err != nil {
			return nil, waits(pod.ReasonWaitsForClaim, err)
		}
		if name == "" {
			continue
		}
		if c.cluster.API == nil {
			return nil, waits(pod.ReasonWaitsForClaim, errNoCluster)
		}
		claim, err := c.cluster.API.ResourceClaim(ctx, want.Namespace, name)
		if err != nil {
			return nil, waits(pod.ReasonPrepareClaims, fmt.Errorf("fetch ResourceClaim %s: %w", name, err))
		}
		if err := checkClaim(want.Pod, name, owned, claim); err != nil {
			return nil, waits(pod.ReasonWaitsForClaim, err)
		}
		sum, err := sumOf(claim)
		if err != nil {
			return nil, waits(pod.ReasonPrepareClaims, err)
		}
		if err := c.conflict(claim, sum); err != nil {
			return nil, waits(pod.ReasonWaitsForClaim, err)
		}
		all = append(all, request{of.Name, claim, sum})
	}
	return all, nil
}

// conflict returns the reason why a claim has to wait: the node still has another claim of its
// name, or its earlier allocation.
func (c *Claims) conflict(claim *resourcev1.ResourceClaim, sum string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for uid, r := range c.claims {
		switch {
		case r.Namespace != claim.Namespace || r.Name != claim.Name:
		case uid != string(claim.UID):
			return fmt.Errorf("old ResourceClaim with same name %s and different UID %s still exists (previous pod force-deleted?!)", claim.Name, uid)
		case r.Allocation != "" && r.Allocation != sum:
			return fmt.Errorf("ResourceClaim %s: its earlier allocation is not unprepared yet", claim.Name)
		}
	}
	return nil
}

// ready returns an error if a driver of a claim is missing.
func (c *Claims) ready(claim *resourcev1.ResourceClaim, uid, name string) error {
	r, known := c.get(string(claim.UID))
	if step := Next(c.wanted(r.withDrivers(driversOf(claim)), known, uid, name)); step.Action == WaitDriver {
		return waits(pod.ReasonWaitsForDriver, errors.New(step.Why))
	}
	return nil
}

// wanted observes a claim that a desired pod uses by a name.
func (c *Claims) wanted(r record, known bool, uid, name string) State {
	s := c.observe(r, known, uid)
	s.Wanted, s.Noted = true, r.uses(uid, name)
	return s
}

// observe observes a claim for a pod.
func (c *Claims) observe(r record, known bool, uid string) State {
	s := State{Recorded: known}
	for other := range r.Pods {
		if other == uid {
			s.Noted = true
		} else {
			s.Others++
		}
	}
	for _, d := range r.Drivers {
		s.Drivers = append(s.Drivers, Driver{Name: d.Name, Progress: d.progress(c.boot), Registered: c.registered(d.Name)})
	}
	return s
}

// lock locks a claim for an operation.
func (c *Claims) lock(ctx context.Context, uid string) (unlock func(), err error) {
	defer c.noteWait(ctx, uid)()
	waiting, stop := context.WithTimeout(ctx, lockTimeout)
	defer stop()
	unlock, err = c.locks.Lock(waiting, uid)
	if err != nil {
		return nil, fmt.Errorf("wait for another operation on the claim: %w", err)
	}
	return unlock, nil
}

// prepare takes steps until a claim is prepared for a pod.
func (c *Claims) prepare(ctx context.Context, want *pod.Spec, q request) error {
	uid, id := want.UID(), string(q.claim.UID)
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return waits(pod.ReasonPrepareClaims, err)
	}
	defer unlock()
	if err := c.conflict(q.claim, q.sum); err != nil { // another pod may have changed it
		return waits(pod.ReasonWaitsForClaim, err)
	}
	for range maxSteps {
		r, known := c.get(id)
		r = r.of(q)
		switch step := Next(c.wanted(r, known, uid, q.name)); step.Action {
		case Finish:
			return nil
		case WaitDriver:
			return waits(pod.ReasonWaitsForDriver, errors.New(step.Why))
		case Note:
			err = c.change(id, func(r record) record { return r.of(q).withPod(uid, q.name) }, "noted")
		case Prepare:
			err = c.prepareAt(ctx, r, step.Driver)
		default:
			err = errors.New(step.Why)
		}
		if err != nil {
			return waits(pod.ReasonPrepareClaims, err)
		}
	}
	return waits(pod.ReasonPrepareClaims, fmt.Errorf("the claim is not prepared after %d steps", maxSteps))
}

// prepareAt calls one driver to prepare a claim.
func (c *Claims) prepareAt(ctx context.Context, r record, name string) error {
	d := c.acquire(name)
	if d == nil {
		return fmt.Errorf("DRA driver %s is not registered", name)
	}
	defer c.release(d)
	if err := c.progress(r.UID, name, Begun, nil, "prepare begun"); err != nil {
		return err
	}
	devices, err := d.prepare(ctx, r)
	if err == nil {
		err = c.step("prepared")
	}
	if err != nil {
		return err
	}
	return c.progress(r.UID, name, Done, devices, "prepare done")
}

// Of returns the devices of claims that a container gets, after Prepare. An error is a
// *pod.StartError.
func (c *Claims) Of(want *pod.Spec, container string) ([]pod.ClaimAllocation, error) {
	is, _ := want.Container(container)
	if is == nil {
		return nil, nil
	}
	requests, used := pod.ClaimRequests(want.Pod, is), pod.ClaimsOf(want.Pod)
	var all []pod.ClaimAllocation
	for i := range used {
		of := &used[i]
		names, asked := requests[of.Name]
		if !asked {
			continue
		}
		r, known := c.find(want.UID(), of.Name)
		if !known || !r.prepared(c.boot) {
			name, _, err := pod.ClaimName(want.Pod, of)
			if err == nil && name == "" {
				continue
			}
			return nil, waits(pod.ReasonWaitsForClaim, fmt.Errorf("unable to get claim info for ResourceClaim %s in namespace %s", name, want.Namespace))
		}
		all = append(all, pod.ClaimAllocation{Namespace: r.Namespace, Name: r.Name, UID: r.UID, Devices: requested(r.devices(), names)})
	}
	return all, nil
}

// Release unprepares the claims of a pod whose containers have all exited, except those that other
// pods use. It may be repeated.
func (c *Claims) Release(ctx context.Context, uid string) error {
	if !c.Uses(uid) {
		return nil
	}
	began := time.Now()
	err := c.releaseAll(ctx, uid, nil)
	c.handled("UnprepareResources", began, err)
	return err
}

// releaseAll is Release as long as still returns true for the pod; nil stands for true.
func (c *Claims) releaseAll(ctx context.Context, uid string, still func(uid string) bool) error {
	var failed []error
	for _, id := range c.claimsOf(uid) {
		if err := c.unprepare(ctx, id, uid, still); err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("unprepare dynamic resources: %w", errors.Join(failed...))
	}
	return nil
}

// unprepare takes steps until a pod does not use a claim any more.
func (c *Claims) unprepare(ctx context.Context, id, uid string, still func(uid string) bool) error {
	unlock, err := c.lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	if still != nil && !still(uid) {
		return nil
	}
	for range maxSteps {
		r, known := c.get(id)
		switch step := Next(c.observe(r, known, uid)); step.Action {
		case Finish:
			return nil
		case WaitDriver:
			return errors.New(step.Why)
		case Drop:
			err = c.change(id, func(r record) record { return r.without(uid) }, "dropped")
		case Unprepare:
			err = c.unprepareAt(ctx, r, step.Driver)
		case Forget:
			err = c.forget(id)
		default:
			err = errors.New(step.Why)
		}
		if err != nil {
			return err
		}
	}
	return fmt.Errorf("the claim is not unprepared after %d steps", maxSteps)
}

// unprepareAt calls one driver to unprepare a claim.
func (c *Claims) unprepareAt(ctx context.Context, r record, name string) error {
	d := c.acquire(name)
	if d == nil {
		return fmt.Errorf("DRA driver %s is not registered", name)
	}
	defer c.release(d)
	if err := c.progress(r.UID, name, Begun, nil, "unprepare begun"); err != nil {
		return err
	}
	err := d.unprepare(ctx, r)
	if err == nil {
		err = c.step("unprepared")
	}
	if err != nil {
		return err
	}
	return c.progress(r.UID, name, None, nil, "unprepare done")
}

// forget removes the file of a claim of which no driver has anything.
func (c *Claims) forget(id string) error {
	c.mu.Lock()
	delete(c.written, id)
	c.mu.Unlock()
	if err := os.Remove(c.path(id)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("checkpoint ResourceClaim state: %w", err)
	}
	c.mu.Lock()
	delete(c.claims, id)
	delete(c.inUse, id)
	c.mu.Unlock()
	return c.step("forgotten")
}
