package csi

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/nodectl/nodectl/pkg/pluginconn"
	"github.com/nodectl/nodectl/pkg/pod"
)

// errNoUsage says that a driver does not report the usage of volumes.
var errNoUsage = errors.New("the driver does not report the usage of volumes")

// Usage returns the usage of a volume of a pod, by the volume's name in the pod. known is false for
// a volume that no driver has mounted. It waits for the driver's answer.
func (v *Volumes) Usage(ctx context.Context, uid, volume string) (usage pod.VolumeUsage, known bool, err error) {
	if checkElement(uid) != nil {
		return usage, false, nil
	}
	for _, u := range v.usersIn(uid) {
		d, err := readData(v.userDir(u))
		if err != nil || d[keyInPod] != volume || d.progress(v.boot) != Done {
			continue
		}
		usage, err = v.usage(ctx, d, v.userTarget(u))
		return usage, true, err
	}
	return usage, false, nil
}

// usage asks the driver.
func (v *Volumes) usage(ctx context.Context, d data, path string) (usage pod.VolumeUsage, err error) {
	by := v.acquire(d[keyDriver])
	if by == nil {
		return usage, errNotRegistered(d[keyDriver])
	}
	defer v.release(by)
	able, err := by.abilities(ctx)
	if err == nil && !able.measures {
		err = errNoUsage
	}
	if err != nil {
		return usage, err
	}
	ctx, stop := context.WithTimeout(ctx, askTimeout)
	defer stop()
	defer by.note(ctx, "NodeGetVolumeStats", d[keyHandle], path)()
	answer, err := by.node.NodeGetVolumeStats(ctx, &csipb.NodeGetVolumeStatsRequest{VolumeId: d[keyHandle], VolumePath: path})
	if err != nil {
		return usage, pluginconn.ShortError(err)
	}
	if v.cfg.Health && able.conditions {
		usage.Health = healthOf(answer.GetVolumeCondition())
	}
	for _, u := range answer.GetUsage() {
		if u.GetTotal() < 0 || u.GetAvailable() < 0 || u.GetUsed() < 0 {
			return pod.VolumeUsage{}, fmt.Errorf("CSI driver %s reports a negative usage", by.name)
		}
		switch u.GetUnit() {
		case csipb.VolumeUsage_BYTES:
			usage.Capacity, usage.Available, usage.Used = uint64(u.GetTotal()), uint64(u.GetAvailable()), uint64(u.GetUsed())
		case csipb.VolumeUsage_INODES:
			usage.Inodes, usage.InodesFree, usage.InodesUsed = uint64(u.GetTotal()), uint64(u.GetAvailable()), uint64(u.GetUsed())
		case csipb.VolumeUsage_UNKNOWN:
		}
	}
	if usage == (pod.VolumeUsage{}) {
		return usage, fmt.Errorf("CSI driver %s reports no usage", by.name)
	}
	return usage, nil
}

// healthOf returns the condition of a volume. As in the kubelet, a driver that reports conditions, and
// none for this volume, says that the volume is healthy.
func healthOf(c *csipb.VolumeCondition) pod.VolumeHealth {
	return pod.VolumeHealth{Known: true, Abnormal: c.GetAbnormal(), Message: pluginconn.Short(c.GetMessage())}
}
