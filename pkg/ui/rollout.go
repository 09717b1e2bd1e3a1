package ui

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// RolloutStatus returns the progress of the rollout of a Deployment, StatefulSet or DaemonSet, in
// kubectl's words, and whether it is done. It is not done while the status counts a pod that the
// agent has not observed yet. It returns an error if the rollout has failed, or if the strategy has
// no rollout.
func RolloutStatus(w *Workload) (text string, done bool, err error) {
	if text, done, err = rolloutStatus(w); done && !w.IsObserved() {
		kind := map[string]string{pod.KindStatefulSet: "statefulset", pod.KindDaemonSet: "daemon set"}[w.Kind]
		text = fmt.Sprintf("Waiting for %s %q rollout to finish: %d pods have not been observed since the agent started...", cmp.Or(kind, "deployment"), w.Object.GetName(), w.Unreported)
		return text, false, nil
	}
	return text, done, err
}

func rolloutStatus(w *Workload) (text string, done bool, err error) {
	switch o := w.Object.(type) {
	case *appsv1.Deployment:
		return deploymentRollout(o)
	case *appsv1.StatefulSet:
		return setRollout(o)
	case *appsv1.DaemonSet:
		return daemonRollout(o)
	}
	return "", false, fmt.Errorf("no status viewer has been implemented for %s", w.Kind)
}

func deploymentRollout(d *appsv1.Deployment) (string, bool, error) {
	s, want := &d.Status, ptr.Deref(d.Spec.Replicas, 1)
	for _, c := range s.Conditions {
		if c.Type == appsv1.DeploymentProgressing && c.Reason == "ProgressDeadlineExceeded" {
			return "", false, fmt.Errorf("deployment %q exceeded its progress deadline", d.Name)
		}
	}
	wait := fmt.Sprintf("Waiting for deployment %q rollout to finish: ", d.Name)
	switch {
	case s.UpdatedReplicas < want:
		return fmt.Sprintf("%s%d out of %d new replicas have been updated...", wait, s.UpdatedReplicas, want), false, nil
	case s.Replicas > s.UpdatedReplicas:
		return fmt.Sprintf("%s%d old replicas are pending termination...", wait, s.Replicas-s.UpdatedReplicas), false, nil
	case s.AvailableReplicas < s.UpdatedReplicas:
		return fmt.Sprintf("%s%d of %d updated replicas are available...", wait, s.AvailableReplicas, s.UpdatedReplicas), false, nil
	}
	return fmt.Sprintf("deployment %q successfully rolled out", d.Name), true, nil
}

func setRollout(o *appsv1.StatefulSet) (string, bool, error) {
	s, want := &o.Status, ptr.Deref(o.Spec.Replicas, 1)
	if o.Spec.UpdateStrategy.Type == appsv1.OnDeleteStatefulSetStrategyType {
		return "", false, errors.New("rollout status is only available for RollingUpdate strategy type")
	}
	if s.ReadyReplicas < want {
		return fmt.Sprintf("Waiting for %d pods to be ready...", want-s.ReadyReplicas), false, nil
	}
	if r := o.Spec.UpdateStrategy.RollingUpdate; r != nil && ptr.Deref(r.Partition, 0) > 0 {
		if news := want - *r.Partition; s.UpdatedReplicas < news {
			return fmt.Sprintf("Waiting for partitioned roll out to finish: %d out of %d new pods have been updated...", s.UpdatedReplicas, news), false, nil
		}
		return fmt.Sprintf("partitioned roll out complete: %d new pods have been updated...", s.UpdatedReplicas), true, nil
	}
	if s.UpdateRevision != s.CurrentRevision {
		return fmt.Sprintf("waiting for statefulset rolling update to complete %d pods at revision %s...", s.UpdatedReplicas, s.UpdateRevision), false, nil
	}
	return fmt.Sprintf("statefulset rolling update complete %d pods at revision %s...", s.CurrentReplicas, s.CurrentRevision), true, nil
}

func daemonRollout(o *appsv1.DaemonSet) (string, bool, error) {
	s := &o.Status
	wait := fmt.Sprintf("Waiting for daemon set %q rollout to finish: ", o.Name)
	switch {
	case o.Spec.UpdateStrategy.Type == appsv1.OnDeleteDaemonSetStrategyType:
		return "", false, errors.New("rollout status is only available for RollingUpdate strategy type")
	case s.UpdatedNumberScheduled < s.DesiredNumberScheduled:
		return fmt.Sprintf("%s%d out of %d new pods have been updated...", wait, s.UpdatedNumberScheduled, s.DesiredNumberScheduled), false, nil
	case s.NumberAvailable < s.DesiredNumberScheduled:
		return fmt.Sprintf("%s%d of %d updated pods are available...", wait, s.NumberAvailable, s.DesiredNumberScheduled), false, nil
	}
	return fmt.Sprintf("daemon set %q successfully rolled out", o.Name), true, nil
}

// RolloutHistory returns kubectl's table of `rollout history`. The column CHANGE-CAUSE also shows why
// a version was rolled back.
func RolloutHistory(w *Workload) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s \n", w.Ref())
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "REVISION\tCHANGE-CAUSE")
	for _, r := range w.History {
		fmt.Fprintf(t, "%d\t%s\n", r.Revision, Clean(r.cause()))
	}
	_ = t.Flush() // into memory
	return b.String() + "\n"
}

func (r *WorkloadRevision) cause() string {
	if r.Failed == "" {
		return cmp.Or(r.Cause, "<none>")
	}
	text := "rolled back: " + r.Failed
	if r.Cause != "" {
		text = r.Cause + "; " + text
	}
	return text
}

// RolloutRevision returns the details of one version, as `rollout history --revision` shows them.
func RolloutRevision(w *Workload, number int64) (string, error) {
	i := slices.IndexFunc(w.History, func(r WorkloadRevision) bool { return r.Revision == number })
	if i < 0 {
		return "", fmt.Errorf("unable to find the specified revision: %d", number)
	}
	r := &w.History[i]
	s := newSheet()
	fmt.Fprintf(s.w, "%s with revision #%d\n", w.Ref(), number)
	if r.Failed != "" {
		s.row(0, "Rolled Back:", r.Failed)
	}
	if r.Logs != "" {
		s.row(0, "Logs:", r.Logs)
	}
	s.template(&r.Template, r.Cause)
	return s.String(), nil
}

// template writes a pod template.
func (s *sheet) template(t *v1.PodTemplateSpec, cause string) {
	s.row(0, "Pod Template:")
	s.indent++
	defer func() { s.indent-- }()
	s.list(0, "Labels:", fields(t.Labels, "="))
	notes := annotations(t.Annotations)
	if cause != "" {
		notes = append(notes, "kubernetes.io/change-cause: "+cause)
	}
	if len(notes) > 0 {
		s.list(0, "Annotations:", notes)
	}
	s.nonEmpty(0, "Service Account:", t.Spec.ServiceAccountName)
	s.containers("Init Containers:", t.Spec.InitContainers, nil)
	s.containers("Containers:", t.Spec.Containers, nil)
	s.volumes(t.Spec.Volumes)
	s.list(0, "Node-Selectors:", fields(t.Spec.NodeSelector, "="))
	var tolerations []string
	for _, one := range t.Spec.Tolerations {
		tolerations = append(tolerations, toleration(one))
	}
	slices.Sort(tolerations)
	s.list(0, "Tolerations:", tolerations)
}
