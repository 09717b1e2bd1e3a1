package plan_test

import (
	"testing"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/pod"
)

// TestAdmit_FeatureIsOff_PodsThatNeedItAreRejected: with the kubelet's words. The
// refusal is final if an API server has assigned the pod.
//
// Shows: C-1.31, C-1.34.7, C-1.21.3
func TestAdmit_FeatureIsOff_PodsThatNeedItAreRejected(t *testing.T) {
	t.Parallel()
	const (
		whole = "PodLevelResourcesNotSupported: PodLevelResources feature gate is disabled"
		all   = "PodFeatureUnsupported: Pod requires node features that are not available: RestartAllContainersOnContainerExits"
	)
	for text, c := range map[string]struct{ off, want string }{
		"":                                    {pod.FeaturePodResources, ""},
		"resources: {}":                       {pod.FeaturePodResources, ""},
		"resources: {requests: {cpu: 1}}":     {pod.FeaturePodResources, whole},
		"resources: {limits: {memory: 64Mi}}": {pod.FeaturePodResources, whole},
		asks("cpu: 1"):                        {pod.FeaturePodResources, ""},
		"containers: [{name: c, image: i, restartPolicy: Always, restartPolicyRules: [{action: Restart, exitCodes: {operator: In, values: [7]}}]}]":                                                    {pod.FeatureRestartAll, ""},
		"containers: [{name: c, image: i, restartPolicy: Always, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [7]}}]}]":                                       {pod.FeatureRestartAll, all},
		"initContainers: [{name: a, image: i, restartPolicy: Never, restartPolicyRules: [{action: RestartAllContainers, exitCodes: {operator: In, values: [7]}}]}], containers: [{name: c, image: i}]": {pod.FeatureRestartAll, all},
	} {
		for _, source := range []string{"file", pod.SourceAPI} {
			p := sized(t, "p", source, text)
			off := plan.Node{Disabled: pod.Disabled{pod.FeatureDeclared, c.off}}
			if got := refusalOf(p, nil, off); got != c.want {
				t.Errorf("%s of %s: %q, want %q", text, source, got, c.want)
			}
			if _, refused := plan.Admit([]*pod.Spec{p}, nil, off); len(refused) == 1 && refused[0].Final != (source == pod.SourceAPI) {
				t.Errorf("%s of %s: final is %v", text, source, refused[0].Final)
			}
			if got := refusalOf(p, nil, plan.Node{Disabled: pod.Disabled{pod.FeatureDeclared}}); got != "" {
				t.Errorf("%s of %s, with the feature: %q", text, source, got)
			}
		}
	}
}

// TestFitResize_OfThePodAsAWhole_NeedsItsFeature: a resize of containers does not.
//
// Shows: C-1.34.2, C-1.34.7
func TestFitResize_OfThePodAsAWhole_NeedsItsFeature(t *testing.T) {
	t.Parallel()
	const was = "resources: {limits: {memory: 64Mi}}, containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]"
	for text, want := range map[string]string{
		was: "",
		"resources: {limits: {memory: 64Mi}}, containers: [{name: c, image: i, resources: {limits: {cpu: 2}}}]":    "",
		"resources: {limits: {memory: 65536Ki}}, containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]": "",
		"resources: {limits: {memory: 32Mi}}, containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]":    "Infeasible InPlacePodLevelResourcesVerticalScaling is disabled",
		"containers: [{name: c, image: i, resources: {limits: {cpu: 1}}}]":                                         "Infeasible InPlacePodLevelResourcesVerticalScaling is disabled",
	} {
		current, updated := sized(t, "p", pod.SourceAPI, was), sized(t, "p", pod.SourceAPI, text)
		reason, message := plan.NewEdits([]*pod.Spec{current}, plan.Node{Disabled: pod.Disabled{pod.FeaturePodResize}}).FitResize(updated, current)
		if got := reason + " " + message; got != want && (want != "" || reason != "") {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
		if reason, message := plan.NewEdits([]*pod.Spec{current}, plan.Node{}).FitResize(updated, current); reason != "" {
			t.Errorf("%s, with the feature: %s %s", text, reason, message)
		}
	}
}
