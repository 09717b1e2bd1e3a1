package plan_test

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/plan"
)

// TestC_1_31_AppArmor: a pod with an AppArmor profile does not start where the kernel has no
// AppArmor (row 5); one with Unconfined does.
//
// Shows: C-1.31
func TestC_1_31_AppArmor(t *testing.T) {
	t.Parallel()
	const no = "AppArmor: the pod asks for an AppArmor profile, and AppArmor is not enabled on this node"
	for text, want := range map[string]string{
		"": "",
		"securityContext: {appArmorProfile: {type: Unconfined}}":                                                        "",
		"securityContext: {appArmorProfile: {type: RuntimeDefault}}":                                                    no,
		"containers: [{name: c, image: i, securityContext: {appArmorProfile: {type: Localhost, localhostProfile: p}}}]": no,
		"containers: [{name: c, image: i, securityContext: {appArmorProfile: {type: Unconfined}}}]":                     "",
		"initContainers: [{name: a, image: i, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]":             no,
		"ephemeralContainers: [{name: e, image: i, securityContext: {appArmorProfile: {type: RuntimeDefault}}}]":        no,
		"|annotations: {container.apparmor.security.beta.kubernetes.io/c: localhost/p}":                                 no,
		"|annotations: {container.apparmor.security.beta.kubernetes.io/c: unconfined}":                                  "",
		"os: {name: windows}, securityContext: {appArmorProfile: {type: RuntimeDefault}}|labels: {a: b}":                no,
	} {
		p := sized(t, "p", "file", text)
		if got := refusalOf(p, nil, plan.Node{NoAppArmor: true}); got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if got := refusalOf(p, nil, plan.Node{}); got != "" {
			t.Errorf("%s, with AppArmor or unknown: %q", text, got)
		}
	}
}
