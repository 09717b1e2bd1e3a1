package feed

import (
	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Results of one pod in a Report: the state that it reached (ResultRunning to ResultGone), or
// why it did not reach its target state.
const (
	ResultRunning  = "running"
	ResultReady    = "ready"
	ResultDone     = "done"
	ResultGone     = "gone"
	ResultFailed   = "failed"
	ResultTimeout  = "timeout"
	ResultRejected = "rejected"
)

// Report is the result of runonce, which brings pods to a target state: running, ready, done
// or gone. Pods are sorted by key, and workloads by kind and key. The pods of a workload are not
// in Pods.
type Report struct {
	Pods      []PodReport
	Workloads []WorkloadReport
}

// WorkloadReport is the result of one workload.
type WorkloadReport struct {
	pod.ObjectKey
	Result          string // one of the results above
	Reason, Message string // why the workload is not in its target state
}

// PodReport is the result of one pod.
type PodReport struct {
	pod.Key
	UID, Phase      string
	Result          string // one of the results above
	Reason, Message string // why the pod is not in its target state, for example which step failed
	Status          v1.PodStatus
}
