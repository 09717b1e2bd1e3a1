package pod_test

import (
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// TestC_1_21_1_C_1_21_2_Restarts holds the restart decision to its table.
//
// Shows: C-1.21.1, C-1.21.2
func TestC_1_21_1_C_1_21_2_Restarts(t *testing.T) {
	t.Parallel()
	rule := func(a v1.ContainerRestartRuleAction, op v1.ContainerRestartRuleOnExitCodesOperator, codes ...int32) v1.ContainerRestartRule {
		return v1.ContainerRestartRule{Action: a, ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: op, Values: codes}}
	}
	const (
		one = v1.ContainerRestartRuleActionRestart
		all = v1.ContainerRestartRuleActionRestartAllContainers
		in  = v1.ContainerRestartRuleOnExitCodesOpIn
		not = v1.ContainerRestartRuleOnExitCodesOpNotIn
	)
	own := func(p v1.ContainerRestartPolicy, rules ...v1.ContainerRestartRule) *v1.Container {
		return &v1.Container{RestartPolicy: &p, RestartPolicyRules: rules}
	}
	type answer struct{ restart, all bool }
	no, yes, every := answer{}, answer{restart: true}, answer{true, true}
	for _, c := range []struct {
		name      string
		policy    v1.RestartPolicy
		container *v1.Container
		exit      int32
		want      answer
	}{
		{"no policy, good end", "", &v1.Container{}, 0, yes},
		{"Always, good end", v1.RestartPolicyAlways, nil, 0, yes},
		{"OnFailure, good end", v1.RestartPolicyOnFailure, nil, 0, no},
		{"OnFailure, bad end", v1.RestartPolicyOnFailure, &v1.Container{}, 1, yes},
		{"Never, bad end", v1.RestartPolicyNever, nil, 1, no},
		{"own Never in Always", v1.RestartPolicyAlways, own("Never"), 1, no},
		{"own Always in Never", v1.RestartPolicyNever, own("Always"), 0, yes},
		{"own OnFailure in Never, bad end", v1.RestartPolicyNever, own("OnFailure"), 2, yes},
		{"own OnFailure in Always, good end", v1.RestartPolicyAlways, own("OnFailure"), 0, no},
		{"in", v1.RestartPolicyNever, own("Never", rule(one, in, 1, 42)), 42, yes},
		{"in, another code", v1.RestartPolicyNever, own("Never", rule(one, in, 1, 42)), 2, no},
		{"not in", v1.RestartPolicyNever, own("Never", rule(one, not, 0)), 7, yes},
		{"not in, that code", v1.RestartPolicyNever, own("Never", rule(one, not, 0)), 0, no},
		{"all", v1.RestartPolicyAlways, own("Never", rule(all, in, 42)), 42, every},
		{"all, good end", v1.RestartPolicyAlways, own("Never", rule(all, in, 0)), 0, every},
		{"the first rule that matches", v1.RestartPolicyNever, own("Never", rule(one, in, 1), rule(all, in, 1, 2)), 1, yes},
		{"the second rule matches", v1.RestartPolicyNever, own("Never", rule(one, in, 1), rule(all, in, 1, 2)), 2, every},
		{"no rule matches", v1.RestartPolicyAlways, own("OnFailure", rule(one, in, 9)), 3, yes},
		{"an unknown action is as none", v1.RestartPolicyAlways, own("Never", rule("Other", in, 3)), 3, no},
		{"a rule without codes matches nothing", v1.RestartPolicyAlways, own("Never", v1.ContainerRestartRule{Action: one}), 3, no},
		{"rules without a policy of its own say nothing", v1.RestartPolicyNever, &v1.Container{RestartPolicyRules: []v1.ContainerRestartRule{rule(one, in, 3)}}, 3, no},
	} {
		var got answer
		if got.restart, got.all = pod.Restarts(c.policy, c.container, c.exit); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// TestC_1_19_6_KilledByAProbe restarts by the policy alone, whatever the code.
//
// Shows: C-1.19.6
func TestC_1_19_6_KilledByAProbe(t *testing.T) {
	t.Parallel()
	never := v1.ContainerRestartPolicyNever
	ruled := &v1.Container{RestartPolicy: &never, RestartPolicyRules: []v1.ContainerRestartRule{{
		Action:    v1.ContainerRestartRuleActionRestartAllContainers,
		ExitCodes: &v1.ContainerRestartRuleOnExitCodes{Operator: v1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{0}},
	}}}
	for _, c := range []struct {
		killed    string
		policy    v1.RestartPolicy
		container *v1.Container
		restart   bool
		all       bool
	}{
		{string(pod.Liveness), v1.RestartPolicyOnFailure, nil, true, false},
		{string(pod.Startup), "", &v1.Container{}, true, false},
		{string(pod.Liveness), v1.RestartPolicyNever, nil, false, false},
		{string(pod.Liveness), v1.RestartPolicyAlways, ruled, false, false},
		{pod.HookFailed, v1.RestartPolicyOnFailure, nil, false, false},
		{"", v1.RestartPolicyAlways, ruled, true, true},
	} {
		restart, all := pod.ContainerNotes{Killed: c.killed}.Restarts(c.policy, c.container, 0)
		if restart != c.restart || all != c.all {
			t.Errorf("%q under %q: %t, %t", c.killed, c.policy, restart, all)
		}
	}
}
