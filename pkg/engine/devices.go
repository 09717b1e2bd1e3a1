package engine

import (
	"context"
	"maps"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/activity"
	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podview"
)

// handleDevices handles a change of the devices of plugins, or of the drivers of claims. Admission
// judges the waiting pods again. The workers of pods with devices or claims try failed steps again,
// and report the health of the devices.
func (l *loop) handleDevices(ctx context.Context) {
	l.ids.devices++
	if !l.start.dispatching() {
		return
	}
	l.admit(ctx)
	for _, e := range l.pods {
		if e.updates != nil && e.want != nil && (pod.RequestsDevices(e.want.Pod) || pod.HasClaims(e.want.Pod)) {
			l.queueUpdate(e, false)
		}
	}
}

// adoptDevices passes the devices of the containers of a listing to Config.Devices. Once a listing
// has found all pods, it passes only the devices of orphaned pods: the workers of other pods may
// have freed devices since the listing was made.
func (l *loop) adoptDevices(found listing) {
	if l.cfg.Devices == nil {
		return
	}
	records := plan.RecordsOf(found.pods, found.records)
	var holders []pod.DeviceHolder
	add := func(have pod.Actual) {
		if o, orphaned := l.orphans[have.Key]; l.nodeState.devicesKnown && (!orphaned || l.isForeign(o)) {
			return
		}
		if h := holderOf(have, records[have.Key]); len(h.Containers) > 0 || len(h.Others) > 0 {
			holders = append(holders, h)
		}
	}
	for _, have := range found.pods {
		add(have)
	}
	for _, key := range sortedKeys(records) {
		if r := records[key]; len(r.Devices) > 0 && !slices.ContainsFunc(found.pods, func(a pod.Actual) bool { return a.UID == r.UID }) {
			add(pod.Actual{Key: key, UID: r.UID})
		}
	}
	l.nodeState.devicesKnown = l.nodeState.devicesKnown || found.err == nil && found.only == nil
	l.cfg.Devices.Adopt(holders, l.nodeState.devicesKnown)
}

// holderOf returns the devices of a pod, by its containers and its record. A terminated pod has
// none when nothing of it runs.
func holderOf(have pod.Actual, rec pod.Record) pod.DeviceHolder {
	h := pod.DeviceHolder{Key: have.Key, UID: have.UID}
	if rec.UID == have.UID && rec.Terminal != "" && !podview.MayRun(have) {
		return h
	}
	h.Containers = devicesOf(have, rec)
	for _, c := range have.Dead {
		if c.MayRun() {
			h.Others = append(h.Others, c.Devices...)
		}
	}
	return h
}

// devicesOf returns the devices of a pod's containers, by name: of the newest ones that the runtime
// shows, and of removed ones by the record.
func devicesOf(have pod.Actual, rec pod.Record) map[string][]pod.DeviceAllocation {
	all := make(map[string][]pod.DeviceAllocation)
	if rec.UID == have.UID || have.Empty() {
		maps.Copy(all, rec.Devices)
	}
	for name, c := range have.Containers {
		delete(all, name)
		if len(c.Devices) > 0 {
			all[name] = c.Devices
		}
	}
	return all
}

// allocateDevices returns the devices of a container that is about to be created. Another spec
// that ends the container, or a halt of the node, cancels it.
func (w *worker) allocateDevices(ctx context.Context, v plan.View, container string) (all []pod.DeviceAllocation, err error) {
	c, _ := v.Want.Container(container)
	had := devicesOf(v.Have, w.rec.Record)
	if w.env.devices == nil || c == nil || len(pod.DeviceRequests(v.Want.Pod, c)) == 0 && len(had[container]) == 0 {
		return nil, nil
	}
	before, was := v.Have.Containers[container]
	replaces := was && before.Hash == v.Want.ContainerHashes[container]
	allocating, cancel := context.WithCancel(ctx)
	defer cancel()
	superseded := false
	news := func() {
		if w.mustEnd(v.Want, container) || w.update.halt.Message != "" {
			superseded = true
			cancel()
		}
	}
	near, only := w.env.cpus.Near(v.Want.Placed[container])
	var devices []pod.DeviceAllocation
	err = w.call(ctx, w.env.starts.SlotTimeout(), news, func() (err error) {
		defer activity.Begin(ctx, activity.Call{Kind: activity.Plugin, Name: "allocate devices", Target: container})()
		devices, err = w.env.devices.Allocate(allocating, pod.DeviceRequest{
			Want: v.Want, Container: container, Have: had, Replaces: replaces, Near: near, Only: only,
		})
		return err
	})
	switch {
	case superseded:
		return nil, errStale
	case err != nil:
		return nil, err
	}
	return devices, nil
}

// noteDevices records the devices of a container that is about to be removed: its successor gets
// them, also from the next agent.
func (w *worker) noteDevices(have pod.Actual, s plan.Step) {
	c, want := have.Containers[s.Container], w.update.want
	if c.ID != s.ID || len(c.Devices) == 0 || want == nil || deleting(want) || want.UID() != have.UID || w.rec.Terminal != "" {
		return
	}
	if w.rec.Devices == nil {
		w.rec.Devices = make(map[string][]pod.DeviceAllocation)
	}
	w.rec.Devices[s.Container], w.rec.dirty = c.Devices, true
	w.save()
}

// keepDevices frees the devices of containers that request none and do not run. If the pod has
// terminated, it frees the devices of all containers.
func (w *worker) keepDevices(v plan.View, terminated bool) {
	if w.env.devices == nil || v.Want == nil {
		return
	}
	keep := make(map[string]bool)
	if !terminated {
		for _, list := range [][]v1.Container{v.Want.Pod.Spec.InitContainers, v.Want.Pod.Spec.Containers} {
			for i := range list {
				if len(pod.DeviceRequests(v.Want.Pod, &list[i])) > 0 {
					keep[list[i].Name] = true
				}
			}
		}
		for name, c := range v.Have.Containers {
			if c.MayRun() && len(c.Devices) > 0 {
				keep[name] = true
			}
		}
	}
	w.env.devices.Keep(v.Want.UID(), keep)
}

// releaseDevices frees all devices of a pod.
func (w *worker) releaseDevices(uid string) {
	if w.env.devices != nil {
		w.env.devices.Keep(uid, nil)
	}
}

// unhealthyDevices returns the devices of the pod's containers that are not healthy, by resource
// and ID.
func (w *worker) unhealthyDevices(have pod.Actual) map[string]map[string]bool {
	if w.env.devices == nil {
		return nil
	}
	var all map[string]map[string]bool
	for _, c := range have.Containers {
		for _, a := range c.Devices {
			for _, id := range a.Devices {
				if w.env.devices.Healthy(a.Resource, id) {
					continue
				}
				if all == nil {
					all = make(map[string]map[string]bool)
				}
				if all[a.Resource] == nil {
					all[a.Resource] = make(map[string]bool)
				}
				all[a.Resource][id] = true
			}
		}
	}
	return all
}
