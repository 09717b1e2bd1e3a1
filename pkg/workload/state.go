package workload

import (
	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State carries facts of a workload between calls of Next and across restarts of the agent. It is
// stored as JSON: a field keeps its name and meaning in later versions.
type State struct {
	// Revisions are the versions of the pod template, by their numbers. The last one is the
	// newest that pods were made from, or are to be made from.
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
	// Release is the newest rollout of the release of the workload that changed it; nil for none.
	Release *ReleaseState `json:"release,omitempty"`
}

// Revision is one version of a pod template.
type Revision struct {
	// Number is 1 for the first revision; it rises, and a return to an older template gives it
	// the highest number again, as the deployment.kubernetes.io/revision annotation does.
	Number int64 `json:"number"`
	// First is the first number of the revision: it orders revisions by age.
	First int64 `json:"first"`
	// Hash is the value of the label pod-template-hash (Deployment) or controller-revision-hash
	// (StatefulSet, DaemonSet). It is computed once, as Kubernetes computes it, so that a
	// later version with other defaults replaces no pod.
	Hash string `json:"hash"`
	// Template is the pod template as its source wrote it, without defaults. It has no
	// containers if only pods of the revision are known, because an earlier state was lost: no
	// new pod is made from it.
	Template v1.PodTemplateSpec `json:"template"`
	// Since is when the revision became the newest one.
	Since metav1.Time `json:"since"`
	// Replicas is how many pods the ReplicaSet of the revision has to have; 0 for other kinds
	// than a Deployment.
	Replicas int32 `json:"replicas,omitempty"`
	// Cause is the annotation kubernetes.io/change-cause of the workload at that time.
	Cause string `json:"cause,omitempty"`
	// Good says that all pods of the revision were available once, and that it passed its trial.
	Good bool `json:"good,omitempty"`
	// Failed is why the revision was rolled back, "" if it was not. It is not tried again until
	// the template of the source changes, or a person asks for it.
	Failed string `json:"failed,omitempty"`
}

// DeploymentState is the state of a Deployment beside its revisions.
type DeploymentState struct {
	// Desired is the number of replicas at the last decision, and Most the number with the
	// surge: a change of replicas during a rollout scales all ReplicaSets in proportion.
	Desired int32 `json:"desired"`
	Most    int32 `json:"most"`
	// Ready and Available are the counts of pods at the last decision, while a rollout is in
	// progress: more of them are progress.
	Ready     int32 `json:"ready,omitempty"`
	Available int32 `json:"available,omitempty"`
	// Complete is the number of the newest revision whose rollout has completed; 0 for none.
	Complete int64 `json:"complete,omitempty"`
	// Conditions are those of the status. The last update of the condition Progressing is when
	// the rollout last made progress (progressDeadlineSeconds).
	Conditions []appsv1.DeploymentCondition `json:"conditions,omitempty"`
}

// StatefulSetState is the state of a StatefulSet beside its revisions.
type StatefulSetState struct {
	// Current is the hash of the revision that all pods had after the last complete update.
	Current string `json:"current,omitempty"`
	// Claims are the claim templates of the pods: the set itself may have others by now.
	Claims []v1.PersistentVolumeClaim `json:"claims,omitempty"`
}

// JobState is the state of a Job.
type JobState struct {
	// Status has the start and completion times, the counts of finished pods and the conditions:
	// pods that left the set stay counted. It has no count of pods that run.
	Status batchv1.JobStatus `json:"status"`
	// Spec is the spec as its source wrote it when the Job began, nil before that. The fields that
	// Kubernetes does not let an edit change stay as they are here. It is nil in a CronJobRun,
	// whose Template never changes.
	Spec *batchv1.JobSpec `json:"spec,omitempty"`
	// Edited is the hash of the newest edit of these fields that an event has reported.
	Edited string `json:"edited,omitempty"`
	// Attempts is how many names were given to pods; Indexes has them by index.
	Attempts int32           `json:"attempts,omitempty"`
	Indexes  map[int32]Index `json:"indexes,omitempty"`
	// Counted are the UIDs of finished pods that Status counts, in that order, while the
	// workload has them.
	Counted []string `json:"counted,omitempty"`
	// Removed are the UIDs of pods that left the set, while the workload still has them: their
	// results do not count any more, also after a restart of the agent.
	Removed []string `json:"removed,omitempty"`
	// Failures is how many pods failed since the newest success, and LastFailure when the newest
	// of them did: the back-off depends on them.
	Failures    int32        `json:"failures,omitempty"`
	LastFailure *metav1.Time `json:"lastFailure,omitempty"`
}

// Index has the attempts of one completion index of an indexed Job until the index has succeeded
// or failed: then the Job's Status names it in CompletedIndexes or FailedIndexes.
type Index struct {
	Attempts int32 `json:"attempts,omitempty"`
	// Failures are those that count, Ignored those that a podFailurePolicy ignores.
	Failures    int32        `json:"failures,omitempty"`
	Ignored     int32        `json:"ignored,omitempty"`
	LastFailure *metav1.Time `json:"lastFailure,omitempty"`
}

// CronJobState is the state of a CronJob.
type CronJobState struct {
	// LastSchedule and LastSuccess are nil before the first one.
	LastSchedule *metav1.Time `json:"lastSchedule,omitempty"`
	LastSuccess  *metav1.Time `json:"lastSuccess,omitempty"`
	// Since is when the CronJob was first seen: no start before it is missed.
	Since metav1.Time `json:"since"`
	// Reported is the newest scheduled time of which an event has said that its Job did not
	// start, or started late.
	Reported *metav1.Time `json:"reported,omitempty"`
	// Jobs are the Jobs that run, and those that the history limits keep, oldest first.
	Jobs []CronJobRun `json:"jobs,omitempty"`
}

// CronJobRun is one Job of a CronJob.
type CronJobRun struct {
	Name      string          `json:"name"`
	Scheduled metav1.Time     `json:"scheduled"`
	Template  batchv1.JobSpec `json:"template"` // as its source wrote it at that time
	State     JobState        `json:"state"`
	// Manual says that a person started it.
	Manual bool `json:"manual,omitempty"`
}
