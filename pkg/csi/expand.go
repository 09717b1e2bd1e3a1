package csi

import (
	"context"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	v1 "k8s.io/api/core/v1"
)

// expand has the driver enlarge the file system of a volume that a controller has enlarged, and
// reports the size to the claim. A driver that does not expand volumes on the node has nothing to
// do: its controller reports the size.
func (o *operation) expand(ctx context.Context) error {
	pv, claim := o.request.Persistent, o.request.Claim
	if pv == nil || claim == nil || o.request.ReadOnly {
		return nil
	}
	size, shown := pv.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if shown.IsZero() || size.Cmp(shown) <= 0 || o.driver == nil || !o.abilities.expands {
		return nil
	}
	secrets, err := o.secrets(ctx, "NodeExpandSecretRef", pv.Spec.CSI.NodeExpandSecretRef)
	if err == nil {
		err = o.callExpand(ctx, size.Value(), secrets)
	}
	if err == nil {
		err = o.cluster.API.SetClaimSize(ctx, claim, size)
	}
	if err != nil {
		return fmt.Errorf("MountVolume.Setup failed while expanding volume for volume %q : %w", o.user.name, err)
	}
	o.cfg.Log.Info("Volume expanded", "driver", o.id.driver, "volume", shownHandle(o.id.handle), "size", size.String())
	return nil
}

// callExpand calls the driver.
func (o *operation) callExpand(ctx context.Context, size int64, secrets map[string]string) error {
	target := o.userTarget(o.user)
	q := &csipb.NodeExpandVolumeRequest{
		VolumeId: o.id.handle, VolumePath: target, CapacityRange: &csipb.CapacityRange{RequiredBytes: size},
		VolumeCapability: o.capability(), Secrets: secrets,
	}
	if o.abilities.stages {
		q.StagingTargetPath = o.stageTarget(o.id)
	}
	ctx, stop := context.WithTimeout(ctx, callTimeout)
	defer stop()
	defer o.driver.note(ctx, "NodeExpandVolume", o.id.handle, target)()
	if _, err := o.driver.node.NodeExpandVolume(ctx, q); err != nil {
		return short(err)
	}
	return nil
}
