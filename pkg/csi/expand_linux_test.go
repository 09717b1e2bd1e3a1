package csi

import (
	"slices"
	"strings"
	"testing"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

func TestGrowthOf_ClaimsOfAllStates_AreTheKubelets(t *testing.T) {
	t.Parallel()
	list := func(size string) v1.ResourceList {
		if size == "" {
			return nil
		}
		return v1.ResourceList{v1.ResourceStorage: resource.MustParse(size)}
	}
	for _, c := range []struct {
		volume, shown, allocated string
		state                    v1.ClaimResourceStatus
		size                     string // "": nothing to do
		shows                    bool
	}{
		{"2Gi", "1Gi", "", "", "2Gi", false}, // an older controller
		{"2Gi", "2Gi", "", "", "", false},
		{"1Gi", "2Gi", "", "", "", false},
		{"2Gi", "", "", "", "", false}, // the claim is not bound
		{"2Gi", "1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizePending, "2Gi", true},
		{"3Gi", "1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizeInProgress, "2Gi", true},
		{"3Gi", "1Gi", "", v1.PersistentVolumeClaimNodeResizePending, "3Gi", true},
		{"2Gi", "1Gi", "2Gi", v1.PersistentVolumeClaimControllerResizeInProgress, "", false},
		{"2Gi", "1Gi", "2Gi", v1.PersistentVolumeClaimNodeResizeInfeasible, "", false},
		{"2Gi", "1Gi", "2Gi", "", "", false},
	} {
		pv, claim := &v1.PersistentVolume{}, &v1.PersistentVolumeClaim{}
		pv.Spec.Capacity, claim.Status.Capacity, claim.Status.AllocatedResources = list(c.volume), list(c.shown), list(c.allocated)
		if c.state != "" {
			claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: c.state}
		}
		got := growthOf(pv, claim)
		if size := got.size.String(); got.shows != c.shows || size != c.size && (c.size != "" || !got.size.IsZero()) {
			t.Errorf("%+v: %s, shows %t", c, size, got.shows)
		}
	}
}

// While a volume is expanded, its claim shows how far that has come, and why it failed. A driver that
// cannot expand a mounted volume is asked once.
func TestPublish_ControllerShowsTheExpansion_ClaimFollows(t *testing.T) {
	t.Parallel()
	needRoot(t)
	for code, want := range map[codes.Code][]string{
		codes.OK:                 {"resize data NodeResizeInProgress", "size data 2Gi"},
		codes.Internal:           {"resize data NodeResizeInProgress", "resize data  failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = Internal desc = no"},
		codes.OutOfRange:         {"resize data NodeResizeInProgress", "resize data NodeResizeInfeasible failed to expand pvc with Expander.NodeExpand failed to expand the volume rpc error: code = OutOfRange desc = no"},
		codes.FailedPrecondition: {"resize data NodeResizeInProgress", "resize data  failed to expand pvc with Expander.NodeExpand failed to expand the volume : rpc error: code = FailedPrecondition desc = no"},
		codes.Unavailable:        {"resize data NodeResizeInProgress"}, // it may go on
	} {
		m := newMachine(t)
		f, v := newFake(t), m.agent()
		f.able = append(f.able, csipb.NodeServiceCapability_RPC_EXPAND_VOLUME)
		m.plug(v, f)
		q := request("u1", "pv-1", "vol-1")
		q.Claim = &v1.PersistentVolumeClaim{}
		q.Claim.Name = "data"
		q.Claim.Status.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		q.Persistent.Spec.Capacity = v1.ResourceList{v1.ResourceStorage: resource.MustParse("1Gi")}
		if got := publish(t, v, q).Growth; !got.Possible || got.Done != "" || got.Failed != nil {
			t.Errorf("%s: before: %+v", code, got)
		}
		q.Persistent.Spec.Capacity[v1.ResourceStorage] = resource.MustParse("2Gi")
		q.Claim.Status.AllocatedResources = v1.ResourceList{v1.ResourceStorage: resource.MustParse("2Gi")}
		q.Claim.Status.AllocatedResourceStatuses = map[v1.ResourceName]v1.ClaimResourceStatus{v1.ResourceStorage: v1.PersistentVolumeClaimNodeResizePending}
		f.before = func(call string) error {
			if call == "NodeExpandVolume" && code != codes.OK {
				return status.Error(code, "no")
			}
			return nil
		}
		f.called()
		got := publish(t, v, q).Growth
		var said []string
		for _, what := range m.gets {
			if !strings.HasPrefix(what, "attachment ") {
				said = append(said, what)
			}
		}
		if !slices.Equal(said, want) || (got.Done != "") != (code == codes.OK) || (got.Failed == nil) != (code == codes.OK || code == codes.FailedPrecondition) {
			t.Errorf("%s: %+v, the claim: %q", code, got, said)
		}
		publish(t, v, q)
		if calls := f.called(); len(calls) != map[bool]int{true: 1, false: 2}[code == codes.FailedPrecondition] {
			t.Errorf("%s: calls %v", code, calls)
		}
		if err := v.Unpublish(t.Context(), "u1"); err != nil {
			t.Error(err)
		}
	}
}
