package apiserver

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"

	"github.com/nodectl/nodectl/pkg/pod"
)

// merge returns the status of have with the node's fields from r. Other fields stay as the server
// has them (C-1.27.8). refused means that r has another phase than the terminal phase of have
// (C-1.26.15).
func merge(have *v1.Pod, r *pod.StatusReport) (want v1.PodStatus, refused bool) {
	server, reported := &have.Status, r.Pod.Status
	want = *server
	want.Phase, want.Reason, want.Message = reported.Phase, reported.Reason, reported.Message
	want.HostIP, want.HostIPs, want.PodIP, want.PodIPs = reported.HostIP, reported.HostIPs, reported.PodIP, reported.PodIPs
	want.StartTime, want.QOSClass = reported.StartTime, reported.QOSClass
	want.InitContainerStatuses = reported.InitContainerStatuses
	want.ContainerStatuses = reported.ContainerStatuses
	want.EphemeralContainerStatuses = reported.EphemeralContainerStatuses
	want.AllocatedResources, want.Resources = reported.AllocatedResources, reported.Resources
	want.ObservedGeneration = max(reported.ObservedGeneration, server.ObservedGeneration)
	mirror := isMirror(have)
	if !mirror {
		if server.StartTime != nil {
			want.StartTime = server.StartTime // C-1.26.23
		}
		if server.QOSClass != "" {
			want.QOSClass = server.QOSClass // it never changes
		}
	}
	refused = settlePhase(&want, server, &reported, ends(have, r))
	want.Conditions = conditions(&want, server, reported.Conditions, reported.ObservedGeneration)
	if mirror {
		keepGenerations(&want, server)
	}
	return want, refused
}

// keepGenerations keeps the observed generations of a mirror as the server has them: 0 for a new
// mirror, because a static pod has no generation. A server does not let a status update clear one
// that an older agent has written (preserveOldObservedGeneration in pkg/registry/core/pod/strategy.go
// of Kubernetes 1.36).
func keepGenerations(want, server *v1.PodStatus) {
	want.ObservedGeneration = server.ObservedGeneration
	for i := range want.Conditions {
		c := &want.Conditions[i]
		c.ObservedGeneration = generationOf(server.Conditions, c.Type)
	}
}

// generationOf returns the observed generation of a condition, 0 if there is no such condition.
func generationOf(list []v1.PodCondition, t v1.PodConditionType) int64 {
	for i := range list {
		if list[i].Type == t {
			return list[i].ObservedGeneration
		}
	}
	return 0
}

// settlePhase limits the reported phase to the transitions that the API allows.
func settlePhase(want, server, reported *v1.PodStatus, over bool) (refused bool) {
	switch {
	case pod.IsPhaseTerminal(server.Phase) && want.Phase != server.Phase:
		want.Phase, want.Reason, want.Message = server.Phase, server.Reason, server.Message
		return true
	case pod.IsPhaseTerminal(want.Phase) && !pod.IsPhaseTerminal(server.Phase) && !over && runs(reported):
		want.Phase, want.Reason, want.Message = server.Phase, server.Reason, server.Message
		if want.Phase == "" {
			want.Phase = v1.PodRunning
		}
	case !pod.IsPhaseTerminal(want.Phase) && over:
		want.Phase = v1.PodFailed // C-1.27.10
	}
	return false
}

// runs reports whether a container of the pod runs.
func runs(s *v1.PodStatus) bool {
	for _, list := range [][]v1.ContainerStatus{s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses} {
		for i := range list {
			if list[i].State.Running != nil {
				return true
			}
		}
	}
	return false
}

// conditions returns this node's conditions as reported and all others as the server
// has them.
func conditions(want, server *v1.PodStatus, reported []v1.PodCondition, generation int64) []v1.PodCondition {
	var all []v1.PodCondition
	ending := pod.IsPhaseTerminal(want.Phase) && !pod.IsPhaseTerminal(server.Phase)
	for _, c := range reported {
		switch {
		case pod.ConditionByKubelet(c.Type):
			c.ObservedGeneration = max(c.ObservedGeneration, generation)
			if pod.IsPhaseTerminal(want.Phase) && (c.Type == v1.PodReady || c.Type == v1.ContainersReady) && c.Status != v1.ConditionFalse {
				c.Status, c.Reason, c.Message = v1.ConditionFalse, "PodFailed", ""
				if want.Phase == v1.PodSucceeded {
					c.Reason = "PodCompleted"
				}
			}
			all = append(all, c)
		case pod.ConditionSharedByKubelet(c.Type) && ending && !hasCondition(server.Conditions, c.Type):
			all = append(all, c) // shared: it is sent with the terminal phase, not before
		}
	}
	for _, c := range server.Conditions {
		if !pod.ConditionByKubelet(c.Type) {
			all = append(all, c)
		}
	}
	return all
}

func hasCondition(list []v1.PodCondition, t v1.PodConditionType) bool {
	return slices.ContainsFunc(list, func(c v1.PodCondition) bool { return c.Type == t })
}

// difference returns the strategic merge patch from have's status to want; nil if they are equal
// (C-1.27.4). The patch has the UID, so that it never applies to another pod of this name.
func difference(have *v1.Pod, want *v1.PodStatus) ([]byte, error) {
	if equality.Semantic.DeepEqual(&have.Status, want) {
		return nil, nil
	}
	if same, err := equalEncoded(&have.Status, want); err != nil || same {
		return nil, err
	}
	was, err := json.Marshal(&have.Status)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	is, err := json.Marshal(want)
	if err != nil {
		return nil, fmt.Errorf("encode status: %w", err)
	}
	diff, err := strategicpatch.CreateTwoWayMergePatch(was, is, v1.PodStatus{})
	if err != nil || string(diff) == "{}" {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"metadata": map[string]types.UID{"uid": have.UID},
		"status":   json.RawMessage(diff),
	})
}

// equalEncoded reports whether two statuses are equal in their JSON form, where times are whole
// seconds. The order of conditions has no meaning.
func equalEncoded(a, b *v1.PodStatus) (bool, error) {
	var text [2][]byte
	for i, s := range [...]*v1.PodStatus{a, b} {
		plain := *s
		plain.Conditions = slices.Clone(s.Conditions)
		slices.SortStableFunc(plain.Conditions, func(a, b v1.PodCondition) int { return cmp.Compare(a.Type, b.Type) })
		data, err := json.Marshal(&plain)
		if err != nil {
			return false, fmt.Errorf("encode status: %w", err)
		}
		text[i] = data
	}
	return bytes.Equal(text[0], text[1]), nil
}

// The steps of shrink; each includes the ones before.
const (
	shortMessages = 1 + iota
	noMessages
	noDetails
	maxShrink = noDetails
)

// shrink shortens a status that is too large for the server: the greater the step, the more.
func shrink(s *v1.PodStatus, step int) {
	if step == 0 {
		return
	}
	cut := func(text *string) {
		if limit := 256; step == shortMessages && len(*text) > limit {
			*text = (*text)[:limit]
		} else if step > shortMessages {
			*text = ""
		}
	}
	short := func(list []v1.ContainerStatus) []v1.ContainerStatus {
		list = slices.Clone(list)
		for i := range list {
			c := list[i].DeepCopy()
			for _, state := range []*v1.ContainerState{&c.State, &c.LastTerminationState} {
				if state.Waiting != nil {
					cut(&state.Waiting.Message)
				}
				if state.Terminated != nil {
					cut(&state.Terminated.Message)
				}
			}
			if step >= noDetails {
				c.LastTerminationState = v1.ContainerState{}
				c.AllocatedResources, c.Resources, c.VolumeMounts, c.User, c.AllocatedResourcesStatus = nil, nil, nil, nil, nil
			}
			list[i] = *c
		}
		return list
	}
	s.InitContainerStatuses = short(s.InitContainerStatuses)
	s.ContainerStatuses = short(s.ContainerStatuses)
	s.EphemeralContainerStatuses = short(s.EphemeralContainerStatuses)
	cut(&s.Message)
	s.Conditions = slices.Clone(s.Conditions)
	for i := range s.Conditions {
		if pod.ConditionByKubelet(s.Conditions[i].Type) {
			cut(&s.Conditions[i].Message)
		}
	}
}

// How long a change waits to be sent together with later ones.
const (
	detailsWait = time.Second
	sandboxWait = 5 * time.Second // for a pod whose containers have not changed yet
)

// urgency returns how long the change from before to now may wait for the next one, and whether it
// goes before others. Users and controllers wait for changes of the phase and of readiness, and for
// exits, restarts and errors: these are sent at once.
func urgency(before, now *v1.PodStatus) (wait time.Duration, urgent bool) {
	if before.StartTime == nil && before.Phase != v1.PodRunning && now.Phase == v1.PodPending {
		return 0, false // the pod was admitted
	}
	if before.Phase != now.Phase || before.Reason != now.Reason || status(before, v1.PodReady) != status(now, v1.PodReady) ||
		status(before, v1.PodResizePending) != status(now, v1.PodResizePending) || status(before, v1.PodResizeInProgress) != status(now, v1.PodResizeInProgress) {
		return 0, true
	}
	starts := now.Phase == v1.PodPending
	wait = detailsWait
	if starts {
		wait = sandboxWait
	}
	lists := func(s *v1.PodStatus) []v1.ContainerStatus {
		return slices.Concat(s.InitContainerStatuses, s.ContainerStatuses, s.EphemeralContainerStatuses)
	}
	was := make(map[string]v1.ContainerStatus)
	for _, c := range lists(before) {
		was[c.Name] = c
	}
	for _, c := range lists(now) {
		b := was[c.Name]
		changed := kindOf(b.State) != kindOf(c.State) || b.Ready != c.Ready
		switch {
		case b.RestartCount != c.RestartCount, problemOf(c.State) != "" && problemOf(b.State) != problemOf(c.State):
			return 0, true
		case changed && !starts:
			return 0, true
		case changed:
			wait = detailsWait
		}
	}
	return wait, false
}

func kindOf(s v1.ContainerState) string {
	switch {
	case s.Running != nil:
		return "running"
	case s.Terminated != nil:
		return "terminated"
	}
	return "waiting"
}

// problemOf returns the reason why a container does not run; "" during a normal start.
func problemOf(s v1.ContainerState) string {
	switch {
	case s.Waiting != nil && s.Waiting.Reason != "ContainerCreating" && s.Waiting.Reason != "PodInitializing":
		return s.Waiting.Reason
	case s.Terminated != nil && s.Terminated.ExitCode != 0:
		return s.Terminated.Reason
	}
	return ""
}

func status(s *v1.PodStatus, t v1.PodConditionType) v1.ConditionStatus {
	for i := range s.Conditions {
		if s.Conditions[i].Type == t {
			return s.Conditions[i].Status
		}
	}
	return ""
}

// seconds returns t as the API has it, in whole seconds.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
