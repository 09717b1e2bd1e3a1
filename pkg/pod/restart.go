package pod

import (
	"slices"

	v1 "k8s.io/api/core/v1"
)

// Restarts is the restart decision for a container that ended with exitCode (C-1.21):
// the first rule of its own that the code matches, else its own policy, else the pod's;
// "" is Always. all says that every container of the pod restarts, not only this one
// (C-1.21.3). c may be nil: then only the pod's policy decides. The caller has to
// exclude init containers that succeeded.
func Restarts(policy v1.RestartPolicy, c *v1.Container, exitCode int32) (restart, all bool) {
	if c != nil && c.RestartPolicy != nil {
		i := slices.IndexFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool { return ruleMatches(r, exitCode) })
		if i >= 0 {
			switch c.RestartPolicyRules[i].Action {
			case v1.ContainerRestartRuleActionRestart:
				return true, false
			case v1.ContainerRestartRuleActionRestartAllContainers:
				return true, true
			}
		}
		policy = v1.RestartPolicy(*c.RestartPolicy)
	}
	switch policy {
	case v1.RestartPolicyNever:
		return false, false
	case v1.RestartPolicyOnFailure:
		return exitCode != 0, false
	}
	return true, false
}

// RulesRestartAll reports whether a container of the pod has a rule that restarts them all.
func RulesRestartAll(spec *v1.PodSpec) bool {
	has := func(c v1.Container) bool {
		return slices.ContainsFunc(c.RestartPolicyRules, func(r v1.ContainerRestartRule) bool {
			return r.Action == v1.ContainerRestartRuleActionRestartAllContainers
		})
	}
	return slices.ContainsFunc(spec.InitContainers, has) || slices.ContainsFunc(spec.Containers, has)
}

// Restarts is pod.Restarts for this container: after a kill by a probe only the policy
// decides, without the exit code (C-1.19.6). A container that was killed on request
// restarts under any policy.
func (l ContainerNotes) Restarts(policy v1.RestartPolicy, c *v1.Container, exitCode int32) (restart, all bool) {
	switch {
	case l.Killed == OnRequest:
		return true, false
	case !l.ByProbe():
		return Restarts(policy, c, exitCode)
	}
	if c != nil && c.RestartPolicy != nil {
		policy = v1.RestartPolicy(*c.RestartPolicy)
	}
	return policy != v1.RestartPolicyNever, false
}

// ByProbe reports whether the agent killed this container because of a probe.
func (l ContainerNotes) ByProbe() bool {
	return l.Killed == string(Liveness) || l.Killed == string(Startup)
}

// ruleMatches reports whether a restart rule matches an exit code.
func ruleMatches(r v1.ContainerRestartRule, exitCode int32) bool {
	if r.ExitCodes == nil {
		return false
	}
	in := slices.Contains(r.ExitCodes.Values, exitCode)
	switch r.ExitCodes.Operator {
	case v1.ContainerRestartRuleOnExitCodesOpIn:
		return in
	case v1.ContainerRestartRuleOnExitCodesOpNotIn:
		return !in
	}
	return false
}
