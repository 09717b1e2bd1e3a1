package ui

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// DescribeWorkload returns a workload as kubectl describe does, with its source and its
// overrides. pods are those of the workload. sets has the ReplicaSets of a Deployment, and may have
// other workloads.
func DescribeWorkload(w *Workload, pods []*v1.Pod, sets []Workload, h ObjectEvents, now time.Time) string {
	s := newSheet()
	o := w.Object
	s.row(0, "Name:", o.GetName())
	s.row(0, "Namespace:", o.GetNamespace())
	s.row(0, "Source:", w.Place())
	for i, over := range w.Overrides {
		name := "Overridden:"
		if i > 0 {
			name = ""
		}
		s.row(0, name, over.Text()+", since "+over.Since.UTC().Format(time.RFC3339))
	}
	s.row(0, "CreationTimestamp:", longTime(o.GetCreationTimestamp()))
	s.nonEmpty(0, "Selector:", w.Selector())
	s.list(0, "Labels:", fields(o.GetLabels(), "="))
	s.list(0, "Annotations:", annotations(o.GetAnnotations()))
	if owner := metav1.GetControllerOfNoCopy(o); owner != nil {
		s.row(0, "Controlled By:", owner.Kind+"/"+owner.Name)
	}
	switch o := o.(type) {
	case *appsv1.Deployment:
		s.deployment(o, sets)
	case *appsv1.ReplicaSet:
		s.row(0, "Replicas:", fmt.Sprintf("%d current / %d desired", o.Status.Replicas, ptr.Deref(o.Spec.Replicas, 1)))
		s.podsStatus(pods)
		s.template(&o.Spec.Template, "")
	case *appsv1.StatefulSet:
		s.statefulSet(o, pods)
	case *appsv1.DaemonSet:
		s.daemonSet(o, pods)
	case *batchv1.Job:
		s.job(o, now)
	case *batchv1.CronJob:
		s.cronJob(o)
	}
	s.failedVersions(w)
	s.events(h, now)
	return s.String()
}

// failedVersions writes the versions that were rolled back.
func (s *sheet) failedVersions(w *Workload) {
	var all [][]string
	for _, r := range w.History {
		if r.Failed != "" {
			all = append(all, []string{fmt.Sprintf("Revision %d:", r.Revision), r.Failed})
		}
		if r.Logs != "" {
			all = append(all, []string{"  Logs:", r.Logs})
		}
	}
	if len(all) == 0 {
		return
	}
	s.row(0, "Rolled Back:")
	for _, row := range all {
		s.row(1, row...)
	}
}

// podsStatus counts pods by phase.
func (s *sheet) podsStatus(pods []*v1.Pod) {
	n := map[v1.PodPhase]int{}
	for i := range pods {
		n[cmp.Or(pods[i].Status.Phase, v1.PodPending)]++
	}
	s.row(0, "Pods Status:", fmt.Sprintf("%d Running / %d Waiting / %d Succeeded / %d Failed", n[v1.PodRunning], n[v1.PodPending], n[v1.PodSucceeded], n[v1.PodFailed]))
}

func (s *sheet) deployment(d *appsv1.Deployment, sets []Workload) {
	st := &d.Status
	s.row(0, "Replicas:", fmt.Sprintf("%d desired | %d updated | %d total | %d available | %d unavailable",
		ptr.Deref(d.Spec.Replicas, 1), st.UpdatedReplicas, st.Replicas, st.AvailableReplicas, st.UnavailableReplicas))
	s.row(0, "StrategyType:", string(d.Spec.Strategy.Type))
	s.row(0, "MinReadySeconds:", fmt.Sprint(d.Spec.MinReadySeconds))
	if r := d.Spec.Strategy.RollingUpdate; r != nil && r.MaxUnavailable != nil && r.MaxSurge != nil {
		s.row(0, "RollingUpdateStrategy:", r.MaxUnavailable.String()+" max unavailable, "+r.MaxSurge.String()+" max surge")
	}
	s.template(&d.Spec.Template, "")
	if len(st.Conditions) > 0 {
		s.row(0, "Conditions:")
		s.row(1, "Type", "Status", "Reason")
		s.row(1, "----", "------", "------")
		for _, c := range slices.SortedFunc(slices.Values(st.Conditions), func(a, b appsv1.DeploymentCondition) int { return cmp.Compare(a.Type, b.Type) }) {
			s.row(1, string(c.Type), string(c.Status), c.Reason)
		}
	}
	revision := d.Annotations["deployment.kubernetes.io/revision"]
	var old []string
	newest := "<none>"
	for _, one := range sets {
		set, is := one.Object.(*appsv1.ReplicaSet)
		if !is || !metav1.IsControlledBy(set, d) {
			continue
		}
		text := fmt.Sprintf("%s (%d/%d replicas created)", set.Name, set.Status.Replicas, ptr.Deref(set.Spec.Replicas, 1))
		if set.Annotations["deployment.kubernetes.io/revision"] == revision {
			newest = text
		} else {
			old = append(old, text)
		}
	}
	s.row(0, "OldReplicaSets:", cmp.Or(strings.Join(old, ", "), "<none>"))
	s.row(0, "NewReplicaSet:", newest)
}

func (s *sheet) statefulSet(o *appsv1.StatefulSet, pods []*v1.Pod) {
	s.row(0, "Replicas:", fmt.Sprintf("%d desired | %d total", ptr.Deref(o.Spec.Replicas, 1), o.Status.Replicas))
	s.row(0, "Update Strategy:", string(o.Spec.UpdateStrategy.Type))
	if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && r.Partition != nil {
		s.row(1, "Partition:", fmt.Sprint(*r.Partition))
	}
	s.podsStatus(pods)
	s.template(&o.Spec.Template, "")
	if len(o.Spec.VolumeClaimTemplates) == 0 {
		s.row(0, "Volume Claims:", "<none>")
		return
	}
	s.row(0, "Volume Claims:")
	for i := range o.Spec.VolumeClaimTemplates {
		c := &o.Spec.VolumeClaimTemplates[i]
		capacity := "<default>"
		if q, ok := c.Spec.Resources.Requests[v1.ResourceStorage]; ok {
			capacity = q.String()
		}
		s.row(1, "Name:", c.Name)
		s.nonEmpty(1, "StorageClass:", ptr.Deref(c.Spec.StorageClassName, ""))
		s.row(1, "Capacity:", capacity)
	}
}

func (s *sheet) daemonSet(o *appsv1.DaemonSet, pods []*v1.Pod) {
	st := &o.Status
	s.list(0, "Node-Selector:", fields(o.Spec.Template.Spec.NodeSelector, "="))
	s.row(0, "Desired Number of Nodes Scheduled:", fmt.Sprint(st.DesiredNumberScheduled))
	s.row(0, "Current Number of Nodes Scheduled:", fmt.Sprint(st.CurrentNumberScheduled))
	s.row(0, "Number of Nodes Scheduled with Up-to-date Pods:", fmt.Sprint(st.UpdatedNumberScheduled))
	s.row(0, "Number of Nodes Scheduled with Available Pods:", fmt.Sprint(st.NumberAvailable))
	s.row(0, "Number of Nodes Misscheduled:", fmt.Sprint(st.NumberMisscheduled))
	s.podsStatus(pods)
	s.template(&o.Spec.Template, "")
}

func (s *sheet) job(o *batchv1.Job, now time.Time) {
	s.row(0, "Parallelism:", fmt.Sprint(ptr.Deref(o.Spec.Parallelism, 1)))
	if o.Spec.Completions != nil {
		s.row(0, "Completions:", fmt.Sprint(*o.Spec.Completions))
	} else {
		s.row(0, "Completions:", "<unset>")
	}
	s.nonEmpty(0, "Completion Mode:", string(ptr.Deref(o.Spec.CompletionMode, "")))
	s.row(0, "Suspend:", fmt.Sprint(ptr.Deref(o.Spec.Suspend, false)))
	s.row(0, "Backoff Limit:", fmt.Sprint(ptr.Deref(o.Spec.BackoffLimit, 6)))
	if t := o.Spec.TTLSecondsAfterFinished; t != nil {
		s.row(0, "TTL Seconds After Finished:", fmt.Sprint(*t))
	}
	st := &o.Status
	if st.StartTime != nil {
		s.row(0, "Start Time:", longTime(*st.StartTime))
	}
	if st.CompletionTime != nil {
		s.row(0, "Completed At:", longTime(*st.CompletionTime))
		s.nonEmpty(0, "Duration:", jobDuration(o, now))
	}
	if d := o.Spec.ActiveDeadlineSeconds; d != nil {
		s.row(0, "Active Deadline Seconds:", fmt.Sprintf("%ds", *d))
	}
	s.row(0, "Pods Statuses:", fmt.Sprintf("%d Active (%d Ready) / %d Succeeded / %d Failed", st.Active, ptr.Deref(st.Ready, 0), st.Succeeded, st.Failed))
	s.nonEmpty(0, "Completed Indexes:", st.CompletedIndexes)
	s.template(&o.Spec.Template, "")
}

func (s *sheet) cronJob(o *batchv1.CronJob) {
	s.row(0, "Schedule:", o.Spec.Schedule)
	s.nonEmpty(0, "Time Zone:", ptr.Deref(o.Spec.TimeZone, ""))
	s.row(0, "Concurrency Policy:", string(o.Spec.ConcurrencyPolicy))
	s.row(0, "Suspend:", trueFalse(ptr.Deref(o.Spec.Suspend, false)))
	s.row(0, "Successful Job History Limit:", fmt.Sprint(ptr.Deref(o.Spec.SuccessfulJobsHistoryLimit, 3)))
	s.row(0, "Failed Job History Limit:", fmt.Sprint(ptr.Deref(o.Spec.FailedJobsHistoryLimit, 1)))
	if d := o.Spec.StartingDeadlineSeconds; d != nil {
		s.row(0, "Starting Deadline Seconds:", fmt.Sprintf("%ds", *d))
	} else {
		s.row(0, "Starting Deadline Seconds:", "<unset>")
	}
	s.template(&o.Spec.JobTemplate.Spec.Template, "")
	last := "<unset>"
	if o.Status.LastScheduleTime != nil {
		last = longTime(*o.Status.LastScheduleTime)
	}
	s.row(0, "Last Schedule Time:", last)
	var active []string
	for _, j := range o.Status.Active {
		active = append(active, j.Name)
	}
	s.row(0, "Active Jobs:", cmp.Or(strings.Join(active, ", "), "<none>"))
}
