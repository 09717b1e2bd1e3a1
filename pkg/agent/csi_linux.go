package agent

import (
	"context"
	"os"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/nodectl/nodectl/pkg/csi"
	"github.com/nodectl/nodectl/pkg/device"
	"github.com/nodectl/nodectl/pkg/node"
	"github.com/nodectl/nodectl/pkg/stats"
	"github.com/nodectl/nodectl/pkg/volume"
)

// newCSI returns the CSI drivers of this node; nil if the agent is not root, because only root may
// mount.
func newCSI(cfg Config) *csi.Volumes {
	if os.Geteuid() != 0 {
		return nil
	}
	return csi.New(csi.Config{Node: cfg.NodeName, Dir: cfg.Plugins(), Health: cfg.VolumeHealth, Log: cfg.Log})
}

// pluginHandlers returns the handlers of CSI and DRA drivers, by type of plugin.
func (a *Agent) pluginHandlers() map[string]device.Handler {
	if a.csi == nil {
		return nil
	}
	all := map[string]device.Handler{registerapi.CSIPlugin: csiPlugins{a.csi}}
	if a.claims != nil {
		all[registerapi.DRAPlugin] = a.claims
	}
	return all
}

// csiPlugins registers CSI drivers.
type csiPlugins struct{ *csi.Volumes }

// Register implements device.Handler.
func (p csiPlugins) Register(ctx context.Context, name, endpoint string, _ []string) error {
	return p.Volumes.Register(ctx, name, endpoint)
}

// nodeDrivers returns the CSI drivers for the Node object, nil for none.
func (a *Agent) nodeDrivers() node.Drivers {
	if a.csi == nil {
		return nil
	}
	return a.csi
}

// volumeDrivers returns the CSI drivers for volumes of pods, nil for none.
func (a *Agent) volumeDrivers() volume.Drivers {
	if a.csi == nil {
		return nil
	}
	return a.csi
}

// serveCSI keeps the CSINode object current until ctx ends.
func (a *Agent) serveCSI(ctx context.Context) {
	if a.csi != nil {
		a.csi.Run(a.board.Context(ctx))
	}
}

// watchVolumes measures volumes until ctx ends, and reports volumes that their drivers find abnormal.
func (a *Agent) watchVolumes(ctx context.Context, measured *stats.Stats) {
	if a.cfg.VolumeHealth && a.csi != nil {
		measured.WatchVolumes(a.board.Context(ctx))
	}
}
