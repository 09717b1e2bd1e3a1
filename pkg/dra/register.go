package dra

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// Limits of drivers that are registered at once.
const (
	maxDrivers = 256
	maxPlugins = 8 // of one driver: an update runs two for a while
)

// wipeAfter is how long a driver may be unregistered before its ResourceSlices are deleted, as in
// the kubelet.
const wipeAfter = 30 * time.Second

// Check implements device.Handler: it returns an error for a driver that no retry can make usable.
// The texts are the kubelet's.
func (c *Claims) Check(name, endpoint string, versions []string) error {
	if err := checkDriver(name); err != nil {
		return err
	}
	if _, err := serviceOf(versions); err != nil {
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: %w", name, endpoint, err)
	}
	return nil
}

// Register implements device.Handler: it connects to a driver.
func (c *Claims) Register(_ context.Context, name, endpoint string, versions []string) error {
	version, err := serviceOf(versions)
	if err != nil {
		return fmt.Errorf("invalid supported gRPC versions of DRA driver plugin %s at endpoint %s: %w", name, endpoint, err)
	}
	next, err := c.dial(name, endpoint, version)
	if err != nil {
		return fmt.Errorf("create gRPC connection to DRA driver %s plugin at endpoint %s: %w", name, endpoint, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch same := func(d *driver) bool { return d.socket == endpoint }; {
	case slices.ContainsFunc(c.drivers[name], same):
		err = fmt.Errorf("endpoint %s already registered for DRA driver plugin %s", endpoint, name)
	case len(c.drivers[name]) >= maxPlugins:
		err = fmt.Errorf("%d plugins of DRA driver %s are registered: no more are accepted", maxPlugins, name)
	case len(c.drivers[name]) == 0 && len(c.drivers) >= maxDrivers:
		err = fmt.Errorf("%d DRA drivers are registered: no more are accepted", maxDrivers)
	}
	if err != nil {
		_ = next.conn.Close()
		return err
	}
	watching, stop := context.WithCancel(context.Background()) // Unregister ends it
	next.stop = stop
	c.drivers[name], c.served = append(c.drivers[name], next), true
	c.running.Go(func() { next.watch(watching, func(connected bool) { c.connected(next, connected) }) })
	c.running.Go(func() { c.watchHealth(watching, next) })
	c.cfg.Log.Info("DRA driver registered", "driver", name, "socket", endpoint, "service", version)
	c.syncLocked(name)
	c.changed.Send()
	return nil
}

// connected records the state of a driver's connection.
func (c *Claims) connected(d *driver, connected bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.closed || d.connected == connected {
		return
	}
	if d.connected = connected; connected {
		c.changed.Send()
	}
	c.syncLocked(d.name)
}

// Unregister implements device.Handler: it removes the driver of a socket. Calls that have begun
// continue.
func (c *Claims) Unregister(name, endpoint string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.drivers[name], func(d *driver) bool { return d.socket == endpoint })
	if i < 0 {
		return
	}
	d := c.drivers[name][i]
	c.setHealthLocked(d, nil)
	if c.drivers[name] = slices.Delete(slices.Clone(c.drivers[name]), i, i+1); len(c.drivers[name]) == 0 {
		delete(c.drivers, name)
	}
	d.stop()
	if d.closed = true; d.calls == 0 {
		_ = d.conn.Close()
	}
	c.cfg.Log.Info("DRA driver unregistered", "driver", name, "socket", endpoint)
	c.syncLocked(name)
}

// acquire returns the plugin of a driver for a call, or nil: the newest one that is connected, else the
// newest one. The caller releases it.
func (c *Claims) acquire(name string) *driver {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := c.drivers[name]
	if len(all) == 0 {
		return nil
	}
	best := all[len(all)-1]
	for _, d := range all {
		if d.connected {
			best = d
		}
	}
	best.calls++
	return best
}

// release ends a call to a driver.
func (c *Claims) release(d *driver) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if d.calls--; d.closed && d.calls == 0 {
		_ = d.conn.Close()
	}
}

// registered reports whether a driver is registered.
func (c *Claims) registered(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.drivers[name]) > 0
}

// usableLocked reports whether a plugin of a driver is connected. The caller holds c.mu.
func (c *Claims) usableLocked(name string) bool {
	return slices.ContainsFunc(c.drivers[name], func(d *driver) bool { return d.connected })
}

// syncLocked makes the deletion of a driver's ResourceSlices due while the driver is not connected.
// The caller holds c.mu.
func (c *Claims) syncLocked(name string) {
	w, due := c.wipes[name]
	usable := c.usableLocked(name)
	switch {
	case usable && due:
		if w.cancel != nil {
			w.cancel()
		}
		delete(c.wipes, name)
	case !usable && !due && len(c.wipes) < 2*maxDrivers:
		c.wipes[name] = &wipe{at: time.Now().Add(wipeAfter)}
		c.due.Send()
	}
}
