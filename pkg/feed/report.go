package feed

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Results of one pod in a Report.
const (
	ResultRunning  = "running"
	ResultReady    = "ready"
	ResultDone     = "done"
	ResultGone     = "gone"
	ResultFailed   = "failed"
	ResultTimeout  = "timeout"
	ResultRejected = "rejected"
)

// Report is the result of a run with a target state, in the set's order.
type Report struct{ Pods []PodReport }

// PodReport is the result of one pod.
type PodReport struct {
	pod.Key
	UID, Phase      string
	Result          string // running, ready, done, gone, failed, timeout, rejected
	Reason, Message string // why the pod is no further; the step that fails, where one does
	Status          v1.PodStatus
}
