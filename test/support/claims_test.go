//go:build linux

package support

import (
	"context"
	"slices"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
)

// shelf stands for the driver of ResourceClaims: a container gets the CDI device x.test/CLAIM=REQUEST.
type shelf struct{}

func (shelf) Changed() <-chan struct{} { return nil }

func (shelf) HealthChanged() <-chan struct{} { return nil }

func (shelf) Adopt([]pod.ClaimHolder) {}

func (shelf) Prepare(context.Context, *pod.Spec) error { return nil }

func (shelf) Of(want *pod.Spec, container string) (all []pod.ClaimAllocation, _ error) {
	c, _ := want.Container(container)
	for _, of := range want.Pod.Spec.ResourceClaims {
		name := ""
		if of.ResourceClaimName != nil {
			name = *of.ResourceClaimName
		}
		for _, s := range want.Pod.Status.ResourceClaimStatuses {
			if s.Name == of.Name && of.ResourceClaimTemplateName != nil {
				name = *s.ResourceClaimName
			}
		}
		for _, r := range c.Resources.Claims {
			if r.Name == of.Name && name != "" {
				request := r.Request
				if request == "" {
					request = "all"
				}
				all = append(all, pod.ClaimAllocation{Name: name, Devices: []pod.ClaimDevice{{CDI: []string{"x.test/" + name + "=" + request}}}})
			}
		}
	}
	return all, nil
}

func (shelf) Health(string) map[string]map[pod.DeviceName]pod.DeviceHealth { return nil }

func (shelf) Uses(string) bool { return false }

func (shelf) Release(context.Context, string) error { return nil }

func (shelf) Leave(string) {}

func (shelf) Sweep(func(string) bool) {}

// claimProofs are those of ResourceClaims.
func claimProofs() []proof {
	const (
		of     = "resourceClaims: [{name: a, resourceClaimName: gpu}, {name: b, resourceClaimTemplateName: nics}]"
		status = "resourceClaimStatuses: [{name: b, resourceClaimName: nic}]"
		gets   = "resources: {claims: [{name: a}, {name: b, request: fast}]}"
	)
	rows := func(at string) string {
		return "spec.resourceClaims spec.resourceClaims[].name spec.resourceClaims[].resourceClaimName " +
			at + ".resources.claims " + at + ".resources.claims[].name " + at + ".resources.claims[].request"
	}
	look := func(n *node) error {
		var got []string
		for _, d := range n.ctr().GetCDIDevices() {
			got = append(got, d.GetName())
		}
		slices.Sort(got)
		return is("CDI devices", strings.Join(got, " "), "x.test/gpu=all x.test/nic=fast")
	}
	return []proof{
		{name: "resource claims", rows: rows("spec.containers[]"), spec: of, status: status, container: gets, look: look},
		{
			name: "resource claims of an init container", rows: rows("spec.initContainers[]"), status: status,
			spec: of + ", initContainers: [{name: first, image: 'app:1', command: [exit, '0'], " + gets + "}]",
			look: func(n *node) error { n.container = "first"; return look(n) },
		},
	}
}
