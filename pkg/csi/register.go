package csi

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	utilversion "k8s.io/apimachinery/pkg/util/version"
)

// maxDrivers limits the drivers that are registered at once.
const maxDrivers = 256

// aliveTimeout is how long Register waits for an answer of the registered driver when another one
// registers under its name.
const aliveTimeout = time.Second

// Check implements device.Handler: it returns an error for a driver that no retry can make usable.
// The texts are the kubelet's.
func (v *Volumes) Check(name, endpoint string, versions []string) error {
	err := checkName(name)
	if err == nil && len(versions) == 0 {
		err = fmt.Errorf("kubernetes.io/csi: ValidatePlugin for CSI driver %q failed. Plugin returned an empty list for supported versions", name)
	}
	if err == nil {
		if _, wrong := utilversion.HighestSupportedVersion(versions); wrong != nil {
			err = fmt.Errorf("kubernetes.io/csi: ValidatePlugin for CSI driver %q failed. None of the versions specified %q are supported. err=%w", name, versions, wrong)
		}
	}
	if err != nil {
		return fmt.Errorf("validation failed for CSI Driver %.80s at endpoint %s: %w", name, endpoint, err)
	}
	return nil
}

// Register implements device.Handler: it connects to a driver.
func (v *Volumes) Register(ctx context.Context, name, endpoint string) error {
	if was := v.acquire(name); was != nil {
		alive := was.socket != endpoint && was.alive(ctx)
		v.release(was)
		if alive {
			return fmt.Errorf("kubernetes.io/csi: RegisterPlugin for CSI driver %q failed. Another driver with the same name is already registered at %s", name, was.socket)
		}
	}
	next, err := v.connect(ctx, name, endpoint)
	if err != nil {
		return err
	}
	if err := v.collision(next.info.topology); err != nil {
		_ = next.conn.Close()
		return err
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.drivers[name] == nil && len(v.drivers) >= maxDrivers {
		_ = next.conn.Close()
		return fmt.Errorf("%d CSI drivers are registered: no more are accepted", maxDrivers)
	}
	v.closeLocked(v.drivers[name])
	v.drivers[name] = next
	delete(v.gone, name)
	v.cfg.Log.Info("CSI driver registered", "driver", name, "socket", endpoint)
	v.changedLocked()
	return nil
}

// alive reports whether a driver still answers.
func (d *driver) alive(ctx context.Context) bool {
	ctx, stop := context.WithTimeout(ctx, aliveTimeout)
	defer stop()
	_, err := csipb.NewIdentityClient(d.conn).GetPluginInfo(ctx, &csipb.GetPluginInfoRequest{})
	return err == nil
}

// Unregister implements device.Handler: it removes the driver of a socket. Calls that have begun
// continue.
func (v *Volumes) Unregister(name, endpoint string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.drivers[name]
	if d == nil || d.socket != endpoint {
		return
	}
	v.closeLocked(d)
	delete(v.drivers, name)
	for old := range v.gone { // most have been removed from the CSINode object long ago
		if len(v.gone) < maxDrivers {
			break
		}
		delete(v.gone, old)
	}
	v.gone[name] = true
	v.cfg.Log.Info("CSI driver unregistered", "driver", name, "socket", endpoint)
	v.changedLocked()
}

// acquire returns the registered driver of a name for an operation, or nil. The caller releases it.
func (v *Volumes) acquire(name string) *driver {
	v.mu.Lock()
	defer v.mu.Unlock()
	d := v.drivers[name]
	if d != nil {
		d.calls++
	}
	return d
}

// release ends an operation with a driver, which may be nil.
func (v *Volumes) release(d *driver) {
	if d == nil {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if d.calls--; d.closed && d.calls == 0 {
		_ = d.conn.Close()
	}
}

// closeLocked closes the connection of a driver if no operation uses it. The caller holds v.mu.
func (v *Volumes) closeLocked(d *driver) {
	if d == nil || d.closed {
		return
	}
	if d.closed = true; d.calls == 0 {
		_ = d.conn.Close()
	}
}

// checkTopology returns an error for topology that cannot be labels of a node.
func checkTopology(segments map[string]string) error {
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		if wrong := validation.IsQualifiedName(key); len(wrong) > 0 {
			return fmt.Errorf("topology key %.80q is not a label: %s", key, wrong[0])
		}
		if wrong := validation.IsValidLabelValue(segments[key]); len(wrong) > 0 {
			return fmt.Errorf("topology %s: value %.80q is not a valid label value: %s", key, segments[key], wrong[0])
		}
	}
	return nil
}

// collision returns an error if the Node has a label of this topology with another value. The text
// is the kubelet's.
func (v *Volumes) collision(segments map[string]string) error {
	n := v.node()
	if n == nil {
		return nil
	}
	for _, key := range slices.Sorted(maps.Keys(segments)) {
		if has, ok := n.Labels[key]; ok && has != segments[key] {
			return fmt.Errorf("error updating Node object with CSI driver node info: detected topology value collision: driver reported %q:%q but existing label is %q:%q", key, segments[key], key, has)
		}
	}
	return nil
}

// node returns the Node object, or nil while it is unknown.
func (v *Volumes) node() *v1.Node {
	if v.cluster.Node == nil {
		return nil
	}
	return v.cluster.Node()
}

// errNotRegistered returns the kubelet's error for a driver that is not registered.
func errNotRegistered(driver string) error {
	return fmt.Errorf("driver name %s not found in the list of registered CSI drivers", driver)
}

// errNoCluster is the error of a volume on a node without an API server.
var errNoCluster = errors.New("volumes of CSI drivers need an API server (--kubeconfig)")
