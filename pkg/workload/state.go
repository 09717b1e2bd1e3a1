package workload

import (
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State is what a workload keeps between calls of Next and across restarts of the agent. It is
// stored as JSON: a field keeps its name and meaning in later versions.
type State struct {
	// Revisions are the versions of the pod template, oldest first. The last one is the newest
	// that the source asked for; it is the current one unless a rollback says otherwise.
	Revisions []Revision `json:"revisions,omitempty"`
	// Deployment is nil for other kinds.
	Deployment *DeploymentState `json:"deployment,omitempty"`
	// StatefulSet is nil for other kinds.
	StatefulSet *StatefulSetState `json:"statefulSet,omitempty"`
	// Job is nil for other kinds.
	Job *JobState `json:"job,omitempty"`
	// CronJob is nil for other kinds.
	CronJob *CronJobState `json:"cronJob,omitempty"`
}

// Revision is one version of a pod template.
type Revision struct {
	// Number is 1 for the first revision; it rises, and a return to an older template gives it
	// the highest number again, as the deployment.kubernetes.io/revision annotation does.
	Number int64 `json:"number"`
	// Hash is the value of the label pod-template-hash (Deployment) or controller-revision-hash
	// (StatefulSet, DaemonSet). It is computed once, as Kubernetes computes it, so that a
	// later version with other defaults replaces no pod.
	Hash string `json:"hash"`
	// Template is the pod template as its source wrote it, without defaults.
	Template v1.PodTemplateSpec `json:"template"`
	// Since is when the revision became the newest one.
	Since metav1.Time `json:"since"`
}

// DeploymentState is the state of a Deployment beside its revisions.
type DeploymentState struct {
	// Progressed is when the rollout last made progress (progressDeadlineSeconds).
	Progressed metav1.Time `json:"progressed"`
	// Complete is the number of the newest revision whose rollout has completed; 0 for none.
	Complete int64 `json:"complete,omitempty"`
}

// StatefulSetState is the state of a StatefulSet beside its revisions.
type StatefulSetState struct {
	// Current is the hash of the revision that all pods had after the last complete update.
	Current string `json:"current,omitempty"`
}

// JobState is the state of a Job.
type JobState struct {
	// Status has the start and completion times, the counts and the conditions: pods that left
	// the set stay counted.
	Status batchv1.JobStatus `json:"status"`
	// Attempts is how many pods were made; for an indexed Job, Indexes has them by index.
	Attempts int32           `json:"attempts,omitempty"`
	Indexes  map[int32]Index `json:"indexes,omitempty"`
	// Counted are the UIDs of finished pods that Status counts while they are in the set.
	Counted []string `json:"counted,omitempty"`
}

// Index is what an indexed Job keeps of one completion index.
type Index struct {
	Attempts int32 `json:"attempts,omitempty"`
	Failures int32 `json:"failures,omitempty"`
	Done     bool  `json:"done,omitempty"`
	Failed   bool  `json:"failed,omitempty"`
}

// CronJobState is the state of a CronJob.
type CronJobState struct {
	// LastSchedule and LastSuccess are nil before the first one.
	LastSchedule *metav1.Time `json:"lastSchedule,omitempty"`
	LastSuccess  *metav1.Time `json:"lastSuccess,omitempty"`
	// Since is when the CronJob was first seen: no start before it is missed.
	Since metav1.Time `json:"since"`
	// Jobs are the Jobs that run, and those that the history limits keep, oldest first.
	Jobs []CronJobRun `json:"jobs,omitempty"`
}

// CronJobRun is one Job of a CronJob.
type CronJobRun struct {
	Name      string          `json:"name"`
	Scheduled metav1.Time     `json:"scheduled"`
	Template  batchv1.JobSpec `json:"template"` // as its source wrote it at that time
	State     JobState        `json:"state"`
}
