package csi

import (
	"context"
	"errors"
	"fmt"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/pluginconn"
)

// growth is the node's task for a volume that has grown.
type growth struct {
	size resource.Quantity // the volume's new size; zero: nothing has to be done
	// shows says that the claim's status shows how far the expansion has come. Controllers before
	// RecoverVolumeExpansionFailure do not use it.
	shows bool
}

// growthOf decides whether the driver has to enlarge the file system of a volume that a controller
// has enlarged, by the kubelet's rules.
func growthOf(pv *v1.PersistentVolume, claim *v1.PersistentVolumeClaim) growth {
	size, shown := pv.Spec.Capacity[v1.ResourceStorage], claim.Status.Capacity[v1.ResourceStorage]
	if shown.IsZero() || size.Cmp(shown) <= 0 {
		return growth{}
	}
	of := &claim.Status
	switch of.AllocatedResourceStatuses[v1.ResourceStorage] {
	case v1.PersistentVolumeClaimNodeResizePending, v1.PersistentVolumeClaimNodeResizeInProgress:
		if to := of.AllocatedResources[v1.ResourceStorage]; !to.IsZero() {
			size = to
		}
		return growth{size, true}
	case "":
		if of.AllocatedResources == nil {
			return growth{size, false}
		}
	}
	return growth{} // the controller is not done, or it is infeasible
}

// expand has the driver enlarge the file system of a volume that a controller has enlarged, and
// reports the size to the claim. A driver that does not expand volumes on the node has nothing to
// do: its controller reports the size.
func (o *operation) expand(ctx context.Context) (done bool, err error) {
	pv, claim := o.request.Persistent, o.request.Claim
	if pv == nil || claim == nil || o.request.ReadOnly || o.driver == nil || !o.abilities.expands {
		return false, nil
	}
	to := growthOf(pv, claim)
	if to.size.IsZero() || o.refusesGrowth() {
		return false, nil
	}
	secrets, err := o.secrets(ctx, "NodeExpandSecretRef", pv.Spec.CSI.NodeExpandSecretRef)
	if err == nil && to.shows {
		claim, err = o.cluster.API.MarkClaimResize(ctx, claim, v1.PersistentVolumeClaimNodeResizeInProgress, "")
	}
	if err != nil {
		return false, err
	}
	if err := o.callExpand(ctx, to.size.Value(), secrets); err != nil {
		return false, o.notExpanded(ctx, claim, to, err)
	}
	if err := o.cluster.API.SetClaimSize(ctx, claim, to.size); err != nil {
		return false, fmt.Errorf("mountVolume.NodeExpandVolume update pvc status failed: %w", err)
	}
	o.cfg.Log.Info("Volume expanded", "driver", o.id.driver, "volume", shownHandle(o.id.handle), "size", to.size.String())
	return true, nil
}

// notExpanded reports to the claim that a call has finally failed, and returns the kubelet's error.
// If the driver cannot enlarge a volume in use, nodectl does not call it again before the volume is
// mounted again.
func (o *operation) notExpanded(ctx context.Context, claim *v1.PersistentVolumeClaim, to growth, err error) error {
	text := "Expander.NodeExpand failed to expand the volume : %w"
	state := v1.ClaimResourceStatus("")
	code := status.Code(err)
	if code == codes.InvalidArgument || code == codes.OutOfRange || code == codes.NotFound {
		text, state = "Expander.NodeExpand failed to expand the volume %w", v1.PersistentVolumeClaimNodeResizeInfeasible
	}
	failed := fmt.Errorf(text, err)
	if to.shows && isFinal(err) {
		if _, e := o.cluster.API.MarkClaimResize(ctx, claim, state, "failed to expand pvc with "+failed.Error()); e != nil {
			o.cfg.Log.Warn("Failed to mark claim of failed expansion", "claim", claim.Namespace+"/"+claim.Name, "error", e)
		}
	}
	if code == codes.FailedPrecondition {
		o.cfg.Log.Warn("Failed to expand volume in use", "driver", o.id.driver, "volume", shownHandle(o.id.handle), "error", err)
		o.mu.Lock()
		o.of(o.id).refusesGrowth = true
		o.mu.Unlock()
		return nil
	}
	return failed
}

// refusesGrowth reports whether the driver cannot enlarge the volume while it is mounted.
func (o *operation) refusesGrowth() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at := o.volumes[o.id]
	return at != nil && at.refusesGrowth
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
		return pluginconn.ShortError(err)
	}
	return nil
}

// errGrowth is the text of a pod that cannot start because its volume is not expanded.
func (o *operation) errGrowth(err error) error {
	return fmt.Errorf("MountVolume.Setup failed while expanding volume for volume %q : %w", o.user.name, err)
}

// grow expands the volume and completes the answer of Publish. A volume that was mounted before stays
// usable if it cannot be expanded.
func (o *operation) grow(ctx context.Context) error {
	done, err := o.expand(ctx)
	switch {
	case err != nil && !o.was:
		return o.errGrowth(err)
	case err != nil && !errors.Is(err, context.Canceled):
		o.growth.Failed = o.failed("NodeExpandVolume.NodeExpandVolume", err)
	case done:
		o.growth.Done = fmt.Sprintf("MountVolume.NodeExpandVolume succeeded for volume %q %s", o.user.name, o.cfg.Node)
	}
	o.growth.Possible = o.request.Claim != nil && !o.request.ReadOnly && (!o.asked || o.abilities.expands)
	return nil
}
