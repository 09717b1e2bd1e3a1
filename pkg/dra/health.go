package dra

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	drahealth "k8s.io/kubelet/pkg/apis/dra-health/v1alpha1"

	"github.com/nodectl/nodectl/pkg/backoff"
	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Times and limits of reports about the health of devices.
const (
	healthTimeout   = 30 * time.Second    // until a report expires whose driver names no time: the kubelet's
	healthLast      = 30 * 24 * time.Hour // the longest time that a driver may name
	maxHealth       = 4 << 20             // bytes of a report, as in the kubelet
	maxHealthStates = 8192                // devices of one plugin
)

// pace is how often a driver's reports are read. Tests have another one.
type pace struct {
	retry    time.Duration // until a stream that ended begins again
	absent   time.Duration // until a driver without the service is asked again
	interval time.Duration // between two reports that are read: further ones wait in the connection
}

// usualPace has the kubelet's retry.
var usualPace = pace{retry: 5 * time.Second, absent: time.Minute, interval: time.Second}

// reported is the health of a device until it expires.
type reported struct {
	pod.DeviceHealth
	until time.Time
}

// nextHealth returns the health of a plugin's devices after another report. Devices that it does not list
// keep theirs until that expires, as in the kubelet. A report with invalid names, or of too many devices,
// is an error.
func nextHealth(driver string, old map[pod.DeviceName]reported, list []*drahealth.DeviceHealth, now time.Time) (map[pod.DeviceName]reported, error) {
	if len(list) > maxHealthStates {
		return nil, fmt.Errorf("%d devices are listed, more than %d", len(list), maxHealthStates)
	}
	next := unexpired(old, now)
	for _, d := range list {
		name := pod.DeviceName{Driver: driver, Pool: d.GetDevice().GetPoolName(), Device: d.GetDevice().GetDeviceName()}
		for _, text := range []string{name.Pool, name.Device} {
			if err := checkText(text); err != nil {
				return nil, err
			}
		}
		next[name] = reported{healthOf(d), now.Add(timeoutOf(d))}
	}
	if len(next) > maxHealthStates {
		return nil, fmt.Errorf("%d devices have a health, more than %d", len(next), maxHealthStates)
	}
	return next, nil
}

// unexpired returns the reports that have not expired.
func unexpired(all map[pod.DeviceName]reported, now time.Time) map[pod.DeviceName]reported {
	next := make(map[pod.DeviceName]reported, len(all))
	for name, r := range all {
		if now.Before(r.until) {
			next[name] = r
		}
	}
	return next
}

// healthOf returns the health of a device in a report.
func healthOf(d *drahealth.DeviceHealth) pod.DeviceHealth {
	h := pod.DeviceHealth{Status: v1.ResourceHealthStatusUnknown, Message: d.GetMessage()}
	switch d.GetHealth() {
	case drahealth.HealthStatus_HEALTHY:
		h.Status = v1.ResourceHealthStatusHealthy
	case drahealth.HealthStatus_UNHEALTHY:
		h.Status = v1.ResourceHealthStatusUnhealthy
	case drahealth.HealthStatus_UNKNOWN:
	}
	if len(h.Message) > v1.ResourceHealthMessageMaxLength { // as the API and the kubelet limit it
		end := v1.ResourceHealthMessageMaxLength - len("...")
		for end > 0 && !utf8.RuneStart(h.Message[end]) {
			end--
		}
		h.Message = strings.Clone(h.Message[:end]) + "..."
	}
	return h
}

// timeoutOf returns how long a report about a device is valid.
func timeoutOf(d *drahealth.DeviceHealth) time.Duration {
	switch seconds := d.GetHealthCheckTimeoutSeconds(); {
	case seconds <= 0:
		return healthTimeout
	case seconds > int64(healthLast/time.Second):
		return healthLast
	default:
		return time.Duration(seconds) * time.Second
	}
}

// watchHealth keeps the health of a plugin's devices, until ctx ends. While the plugin does not report,
// their health is unknown.
func (c *Claims) watchHealth(ctx context.Context, d *driver) {
	warned := false
	for {
		err := d.watchHealth(ctx, c.pace.interval, func(list []*drahealth.DeviceHealth) error {
			warned = false
			return c.reportHealth(d, list)
		})
		c.mu.Lock()
		c.setHealthLocked(d, nil)
		c.mu.Unlock()
		if ctx.Err() != nil {
			return
		}
		wait := c.pace.retry
		switch code := status.Code(err); {
		case code == codes.Unimplemented:
			wait = c.pace.absent
		case code != codes.Unavailable && !warned:
			warned = true
			c.cfg.Log.Warn("DRA driver does not report health of devices", "driver", d.name, "socket", d.socket, "error", pluginconn.ShortError(err))
		}
		if !backoff.Sleep(ctx, wait) {
			return
		}
	}
}

// watchHealth calls report with each report of the plugin, at most one in an interval, until one is refused
// or the stream ends.
func (d *driver) watchHealth(ctx context.Context, interval time.Duration, report func([]*drahealth.DeviceHealth) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := drahealth.NewDRAResourceHealthClient(d.conn).NodeWatchResources(ctx, &drahealth.NodeWatchResourcesRequest{}, grpc.MaxCallRecvMsgSize(maxHealth))
	for err == nil {
		var answer *drahealth.NodeWatchResourcesResponse
		if answer, err = stream.Recv(); err != nil {
			break
		}
		if err = report(answer.GetDevices()); err == nil && !backoff.Sleep(ctx, interval) {
			err = ctx.Err()
		}
	}
	return err
}

// reportHealth takes a report of a plugin.
func (c *Claims) reportHealth(d *driver, list []*drahealth.DeviceHealth) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := nextHealth(d.name, d.health, list, time.Now())
	if err != nil {
		return fmt.Errorf("NodeWatchResources: %w", err)
	}
	c.setHealthLocked(d, next)
	return nil
}

// expireHealth removes the reports of a plugin that have expired.
func (c *Claims) expireHealth(d *driver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.setHealthLocked(d, unexpired(d.health, time.Now()))
}

// setHealthLocked changes the health of a plugin's devices, and wakes the receiver of HealthChanged if that
// changes the health of a device of a claim. The caller holds c.mu.
func (c *Claims) setHealthLocked(d *driver, next map[pod.DeviceName]reported) {
	if d.closed {
		return
	}
	before := c.healthOfAllLocked(d.name)
	d.health = next
	if !maps.Equal(before, c.healthOfAllLocked(d.name)) {
		c.reported.Send()
	}
	var first time.Time
	for _, r := range next {
		if first.IsZero() || r.until.Before(first) {
			first = r.until
		}
	}
	if d.expiry != nil {
		d.expiry.Stop()
	}
	if !first.IsZero() {
		d.expiry = time.AfterFunc(time.Until(first)+time.Millisecond, func() { c.expireHealth(d) })
	}
}

// healthOfAllLocked returns the health of the devices that claims have of a driver; c.mu is held.
func (c *Claims) healthOfAllLocked(driver string) map[pod.DeviceName]pod.DeviceHealth {
	all := make(map[pod.DeviceName]pod.DeviceHealth)
	for _, r := range c.claims {
		for _, of := range r.Drivers {
			if of.Name == driver {
				c.addHealthLocked(all, of)
			}
		}
	}
	return all
}

// addHealthLocked adds the known health of the devices of one driver of a claim; c.mu is held.
func (c *Claims) addHealthLocked(to map[pod.DeviceName]pod.DeviceHealth, of driverRecord) {
	for _, device := range of.Devices {
		for _, d := range c.drivers[of.Name] { // the newest plugin is the last one
			if r, ok := d.health[device.Name()]; ok {
				to[device.Name()] = r.DeviceHealth
			}
		}
	}
}

// Health returns the known health of the devices of a pod's claims, by UID of the claim. It has each
// claim that is prepared for the pod.
func (c *Claims) Health(uid string) map[string]map[pod.DeviceName]pod.DeviceHealth {
	c.mu.Lock()
	defer c.mu.Unlock()
	var all map[string]map[pod.DeviceName]pod.DeviceHealth
	for id, r := range c.claims {
		if _, uses := r.Pods[uid]; !uses {
			continue
		}
		if all == nil {
			all = make(map[string]map[pod.DeviceName]pod.DeviceHealth)
		}
		all[id] = make(map[pod.DeviceName]pod.DeviceHealth)
		for _, of := range r.Drivers {
			c.addHealthLocked(all[id], of)
		}
	}
	return all
}
