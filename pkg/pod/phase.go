package pod

import v1 "k8s.io/api/core/v1"

// IsPhaseTerminal reports whether a phase is final: no container of such an instance
// runs again.
func IsPhaseTerminal(p v1.PodPhase) bool { return p == v1.PodSucceeded || p == v1.PodFailed }

// EndedAtServer reports whether the pod's API server knows that it has ended: nothing of
// it runs again here, whatever the runtime shows (C-1.16.6, C-1.26.15).
func (s *Spec) EndedAtServer() bool { return s.Origin.FromAPI() && IsPhaseTerminal(s.Pod.Status.Phase) }
