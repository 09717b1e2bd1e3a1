package workload

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// The back-off of failed pods doubles from the first to the longest wait.
const (
	firstBackOff   = 10 * time.Second
	longestBackOff = 10 * time.Minute
)

// backOff returns when the next pod may start after a number of failures in a row.
func backOff(failures int32, last *metav1.Time) time.Time {
	if failures <= 0 || last == nil {
		return time.Time{}
	}
	wait := firstBackOff
	for n := int32(1); n < failures && wait < longestBackOff; n++ {
		wait *= 2
	}
	return last.Add(min(wait, longestBackOff))
}

// failure is the effect of a failed pod on its Job.
type failure struct {
	ignored bool   // the failure does not count
	index   bool   // its completion index has failed
	job     string // the message if the whole Job has failed; else ""
}

// judgeFailure returns the effect of a failed pod under a podFailurePolicy: the first rule that
// matches decides. If no rule matches, the failure counts.
func judgeFailure(policy *batchv1.PodFailurePolicy, p Pod) failure {
	if policy == nil || p.Status == nil {
		return failure{}
	}
	for i := range policy.Rules {
		rule := &policy.Rules[i]
		match := matchRule(rule, p)
		if match == "" {
			continue
		}
		switch rule.Action {
		case batchv1.PodFailurePolicyActionIgnore:
			return failure{ignored: true}
		case batchv1.PodFailurePolicyActionFailIndex:
			return failure{index: true}
		case batchv1.PodFailurePolicyActionFailJob:
			return failure{job: fmt.Sprintf("%s matching %v rule at index %d", match, rule.Action, i)}
		case batchv1.PodFailurePolicyActionCount:
			return failure{}
		}
	}
	return failure{}
}

// matchRule returns a message with the exit code or condition by which a rule matches a failed pod,
// or "" if the rule does not match.
func matchRule(rule *batchv1.PodFailurePolicyRule, p Pod) string {
	if codes := rule.OnExitCodes; codes != nil {
		for _, list := range [][]v1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
			for i := range list {
				if c := &list[i]; matchExitCode(codes, c) {
					return fmt.Sprintf("Container %s for pod %s failed with exit code %v", c.Name, p.Spec.Key, c.State.Terminated.ExitCode)
				}
			}
		}
		return ""
	}
	for _, c := range p.Status.Conditions {
		for _, pattern := range rule.OnPodConditions {
			if c.Type == pattern.Type && c.Status == cmp.Or(pattern.Status, v1.ConditionTrue) {
				return fmt.Sprintf("Pod %s has condition %v", p.Spec.Key, c.Type)
			}
		}
	}
	return ""
}

// matchExitCode reports whether a rule names the exit code of a container. Exit code 0 never
// matches.
func matchExitCode(rule *batchv1.PodFailurePolicyOnExitCodesRequirement, c *v1.ContainerStatus) bool {
	end := c.State.Terminated
	if end == nil || end.ExitCode == 0 || rule.ContainerName != nil && *rule.ContainerName != c.Name {
		return false
	}
	switch rule.Operator {
	case batchv1.PodFailurePolicyOnExitCodesOpIn:
		return slices.Contains(rule.Values, end.ExitCode)
	case batchv1.PodFailurePolicyOnExitCodesOpNotIn:
		return !slices.Contains(rule.Values, end.ExitCode)
	}
	return false
}

// finishedAt returns the time at which a pod finished: when its last container exited, or else when
// the pod became unready. The result is never after now.
func finishedAt(p Pod, now time.Time) time.Time {
	at := lastEnd(p)
	if c := p.readyCondition(); at.IsZero() && c != nil && c.Status == v1.ConditionFalse {
		at = c.LastTransitionTime.Time
	}
	if at.IsZero() || at.After(now) {
		return now
	}
	return at
}

// lastEnd returns the time at which the last container exited. It returns zero if a container still
// runs, or if the time is unknown. Of the init containers, only sidecars count: they exit last.
func lastEnd(p Pod) time.Time {
	if p.Status == nil {
		return time.Time{}
	}
	ended := slices.Clone(p.Status.ContainerStatuses)
	for _, c := range p.Status.InitContainerStatuses {
		if spec, init := p.Spec.Container(c.Name); init && pod.Restartable(spec) {
			ended = append(ended, c)
		}
	}
	var at time.Time
	for i := range ended {
		end := ended[i].State.Terminated
		if end == nil || end.FinishedAt.IsZero() {
			return time.Time{}
		}
		if end.FinishedAt.After(at) {
			at = end.FinishedAt.Time
		}
	}
	return at
}

// restartsExceeded reports whether the containers of the active pods restarted as often as the
// back-off limit allows. It applies to restartPolicy OnFailure, with which a failed container does
// not make the pod Failed.
func (j *jobRun) restartsExceeded() bool {
	if j.spec.Template.Spec.RestartPolicy != v1.RestartPolicyOnFailure {
		return false
	}
	var restarts int32
	for _, p := range j.active {
		if p.Status == nil {
			continue
		}
		for _, list := range [][]v1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
			for i := range list {
				restarts += list[i].RestartCount
			}
		}
	}
	return restarts >= max(*j.spec.BackoffLimit, 1)
}
