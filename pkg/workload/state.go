package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State has the facts of a workload that Next needs from earlier calls, also after a restart of the
// agent. It is stored as JSON: a field keeps its name and meaning in later versions.
type State struct {
	// Revisions are the versions of the pod template, sorted by number. New pods are made from the
	// last one.
	Revisions []Revision `json:"revisions,omitempty"`
	// Deployment is nil for other kinds.
	Deployment *DeploymentState `json:"deployment,omitempty"`
	// StatefulSet is nil for other kinds.
	StatefulSet *StatefulSetState `json:"statefulSet,omitempty"`
	// Job is nil for other kinds.
	Job *JobState `json:"job,omitempty"`
	// CronJob is nil for other kinds.
	CronJob *CronJobState `json:"cronJob,omitempty"`
	// Created is when the workload was first seen.
	Created *metav1.Time `json:"created,omitempty"`
	// Override has the fields that differ from the source; nil if none does.
	Override *Override `json:"override,omitempty"`
	// Trial is nil if the newest revision is not rolled back on failure.
	Trial *Trial `json:"trial,omitempty"`
	// Release is the newest rollout of the workload's release in which the workload changed, or nil.
	Release *ReleaseState `json:"release,omitempty"`
}

// Revision is one version of a pod template.
type Revision struct {
	// Number is 1 for the first revision. A new revision, and a revision to which the workload
	// returns, get the highest number, as in the annotation deployment.kubernetes.io/revision.
	Number int64 `json:"number"`
	// First is the first number of the revision: it orders revisions by age.
	First int64 `json:"first"`
	// Hash is the value of the label pod-template-hash (Deployment) or controller-revision-hash
	// (StatefulSet, DaemonSet). It is computed once, in Kubernetes' way: a later version of nodectl
	// with other defaults then replaces no pod.
	Hash string `json:"hash"`
	// Template is the pod template of the source, without defaults. After a loss of the state, it
	// has no containers for a revision of which only pods are known: no new pod is made from it.
	Template v1.PodTemplateSpec `json:"template"`
	// Since is when the revision became the newest one.
	Since metav1.Time `json:"since"`
	// Replicas is the size of the revision's ReplicaSet; 0 if the workload is not a Deployment.
	Replicas int32 `json:"replicas,omitempty"`
	// Cause is the value of the annotation kubernetes.io/change-cause when the revision became the
	// newest.
	Cause string `json:"cause,omitempty"`
	// Good means that all pods of the revision were available once, and that it passed its trial.
	Good bool `json:"good,omitempty"`
	// Failed is the reason for which the revision was rolled back, or "". The revision is not tried
	// again until the template of the source changes, or a user requests it.
	Failed string `json:"failed,omitempty"`
}

// DeploymentState is the state of a Deployment beside its revisions.
type DeploymentState struct {
	// Desired is the number of replicas at the last decision, and Most is that number plus the
	// surge. A change of replicas during a rollout scales all ReplicaSets in proportion to them.
	Desired int32 `json:"desired"`
	Most    int32 `json:"most"`
	// Ready and Available are the counts of pods at the last decision, while a rollout is in
	// progress. A higher count is progress.
	Ready     int32 `json:"ready,omitempty"`
	Available int32 `json:"available,omitempty"`
	// Complete is the number of the newest revision whose rollout has completed; 0 for none.
	Complete int64 `json:"complete,omitempty"`
	// Conditions are the conditions of the status. The deadline (progressDeadlineSeconds) counts
	// from the last update time of Progressing.
	Conditions []appsv1.DeploymentCondition `json:"conditions,omitempty"`
}

// StatefulSetState is the state of a StatefulSet beside its revisions.
type StatefulSetState struct {
	// Current is the hash of the revision that all pods had after the last complete update.
	Current string `json:"current,omitempty"`
	// Claims are the claim templates with which the pods were made. An edit of the StatefulSet may
	// have changed them since.
	Claims []v1.PersistentVolumeClaim `json:"claims,omitempty"`
}

// JobState is the state of a Job.
type JobState struct {
	// Status has the start and completion times, the counts of finished pods and the conditions.
	// Pods that left the set stay counted. Status has no count of active pods.
	Status batchv1.JobStatus `json:"status"`
	// Spec is the spec of the source when the Job began; nil before that. The Job takes its
	// immutable fields from here. Spec is nil in a CronJobRun, whose Template never changes.
	Spec *batchv1.JobSpec `json:"spec,omitempty"`
	// Edited is the hash of the immutable fields in the newest edit that an event has reported.
	Edited string `json:"edited,omitempty"`
	// Attempts counts the names given to pods. Indexes has these counts for an indexed Job.
	Attempts int32           `json:"attempts,omitempty"`
	Indexes  map[int32]Index `json:"indexes,omitempty"`
	// Counted are the UIDs of the finished pods that Status counts, in the order in which it
	// counted them, while the workload has them.
	Counted []string `json:"counted,omitempty"`
	// Removed are the UIDs of pods that left the set, while the workload still has them. Their
	// results do not count, even after a restart of the agent.
	Removed []string `json:"removed,omitempty"`
	// Failures is the number of pods that failed since the newest success. LastFailure is the time
	// of the newest failure. The back-off depends on both.
	Failures    int32        `json:"failures,omitempty"`
	LastFailure *metav1.Time `json:"lastFailure,omitempty"`
}

// Index has the attempts of one completion index of an indexed Job, until the index has succeeded
// or failed. After that, the Job's Status lists the index in CompletedIndexes or FailedIndexes.
type Index struct {
	Attempts int32 `json:"attempts,omitempty"`
	// Failures is the number of failures that count. Ignored is the number that a podFailurePolicy
	// ignores.
	Failures    int32        `json:"failures,omitempty"`
	Ignored     int32        `json:"ignored,omitempty"`
	LastFailure *metav1.Time `json:"lastFailure,omitempty"`
}

// CronJobState is the state of a CronJob.
type CronJobState struct {
	// LastSchedule and LastSuccess are nil before the first one.
	LastSchedule *metav1.Time `json:"lastSchedule,omitempty"`
	LastSuccess  *metav1.Time `json:"lastSuccess,omitempty"`
	// Since is when the CronJob was first seen. Scheduled times before it do not count as missed.
	Since metav1.Time `json:"since"`
	// Reported is the newest scheduled time about which reportOnce added an event.
	Reported *metav1.Time `json:"reported,omitempty"`
	// Jobs are the active Jobs, and the finished ones that the history limits keep, oldest first.
	Jobs []CronJobRun `json:"jobs,omitempty"`
}

// CronJobRun is one Job of a CronJob.
type CronJobRun struct {
	Name      string          `json:"name"`
	Scheduled metav1.Time     `json:"scheduled"`
	Template  batchv1.JobSpec `json:"template"` // of the source when the Job began
	State     JobState        `json:"state"`
	// Manual means that a user created the Job with a command.
	Manual bool `json:"manual,omitempty"`
}
