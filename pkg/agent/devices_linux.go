package agent

import (
	"context"
	"os"

	"golang.org/x/sys/unix"

	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/metrics"
	"github.com/nodectl/nodectl/pkg/server"
	"github.com/nodectl/nodectl/pkg/volume"
)

// newDevices returns the device plugins of this node; none is served yet.
func newDevices(cfg Config, m *metrics.Metrics) *device.Plugins {
	c := device.Config{Dir: cfg.Plugins(), Log: cfg.Log, Registered: m.PluginRegistered, Allocated: m.DevicesAllocated}
	if volume.SELinuxEnabled() {
		c.Label = func(dir string) error {
			return unix.Lsetxattr(dir, "security.selinux", []byte("system_u:object_r:container_file_t:s0"), 0) // the kubelet's
		}
	}
	return device.New(c)
}

// serveDevices serves device plugins until ctx ends. Without them pods run on: only those that
// request their devices wait.
func (a *Agent) serveDevices(ctx context.Context) {
	if os.Geteuid() != 0 {
		a.log.Info("Device plugins not served: only root may give devices to containers")
		return
	}
	if err := a.devices.Run(ctx); err != nil {
		a.log.Warn("Device plugins not served; pods that request their devices wait", "directory", a.cfg.Plugins(), "error", err,
			"hint", "--kubelet-dir names the directory of their sockets")
	}
}

// deviceList lists the resources of device plugins for the server.
func deviceList(plugins *device.Plugins) []server.DeviceResource {
	all := []server.DeviceResource{}
	for _, r := range plugins.Resources() {
		one := server.DeviceResource{Name: r.Name, Connected: r.Connected, Socket: r.Socket, Devices: []server.Device{}}
		for _, d := range r.Devices {
			health := "Unlisted"
			switch {
			case d.Listed && d.Healthy:
				health = "Healthy"
			case d.Listed:
				health = "Unhealthy"
			}
			is := server.Device{ID: d.ID, Health: health, NUMANodes: d.NUMA}
			for _, u := range d.Users {
				is.UsedBy = append(is.UsedBy, server.DeviceUser(u))
			}
			one.Devices = append(one.Devices, is)
		}
		all = append(all, one)
	}
	return all
}
