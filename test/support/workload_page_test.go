//go:build linux

package support

import (
	"fmt"
	"strings"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

const workloadsHead = `
## Workloads

Deployments, ReplicaSets, StatefulSets and DaemonSets (` + "`apps/v1`" + `), Jobs and CronJobs (` + "`batch/v1`" + `) run from every source except an API server. They make pods as Kubernetes' controllers do for one node. On a node of a cluster, which has a kubeconfig, nodectl rejects workloads in manifests: the cluster's controllers run them.

The tables use the words of the tables above. **Shown by** names the test of ` + "`test/support`" + ` for the field. A case of ` + "`TestWorkloads`" + ` runs the workload with the field and without it: the decisions or the pods have to differ.

These differences do not belong to a single field:

- A Job keeps its newest 100 finished pods, and Kubernetes keeps all of them. Each has a directory and logs on the node. Older results still count.
- Kubernetes rejects an edit of the pod template or the completions of a Job that has begun. nodectl keeps the values from the start of the Job, and an event ` + "`EditNotApplied`" + ` reports the edit. To run the edited Job, remove it from its source and add it again.
- An update of a StatefulSet replaces a pod in place: the new pod is admitted before the old one stops.
- A pod of a Deployment, ReplicaSet, StatefulSet or DaemonSet that Failed or was evicted starts again under its name. Kubernetes deletes it and makes another one.
- At a scale-down the annotation ` + "`controller.kubernetes.io/pod-deletion-cost`" + ` decides as in Kubernetes. If pods are otherwise equal, nodectl removes the younger one; Kubernetes chooses among pods of a similar age by their UIDs.
- A workload with the annotation ` + "`nodectl.dev/rollback: on-failure`" + ` returns to an earlier version when its newest one fails; ` + "`nodectl.dev/rollback-trial`" + ` and ` + "`nodectl.dev/rollback-deadline`" + ` set the times. Kubernetes keeps the failed version. See [lifecycle.md](lifecycle.md#rollback).
- Workloads with the annotation ` + "`nodectl.dev/release: NAME`" + ` return together ([lifecycle.md](lifecycle.md#releases)). A ReplicaSet, Job or CronJob with it is rejected: it has no version to return to.
- ` + "`scale`" + ` and ` + "`rollout`" + ` do not change the manifest: the new value is an [override](verbs.md#workloads), and ends when the manifest has another value for its field.
- nodectl never removes the data of a claim. ` + "`nodectl delete volume`" + ` does.

### Metadata of a workload

`

const templateHead = `
### Pod template

The pod template of a workload has the fields of a Pod in the tables above, with these differences:

`

const cronJobSays = "`spec.jobTemplate.spec` has the fields of the spec of a Job.\n\n"

// workloadsText is the page's part about workloads.
func workloadsText() string {
	var b strings.Builder
	table := func(kind string, rows []podspec.Field, template bool, has func(path string) bool) {
		b.WriteString("| field | support | shown by | note |\n|---|---|---|---|\n")
		for _, f := range rows {
			if has(f.Path) {
				fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Path, workloadSupport(f, template), workloadProof(kind, f), note(f))
			}
		}
	}
	b.WriteString(workloadsHead)
	table("", podspec.WorkloadFields(pod.KindDeployment), false, sharedRow)
	b.WriteString(templateHead)
	table("", podspec.TemplateFields(), true, func(string) bool { return true })
	for _, kind := range pod.WorkloadKinds() {
		fmt.Fprintf(&b, "\n### %s\n\n", kind)
		if kind == pod.KindCronJob {
			b.WriteString(cronJobSays)
		}
		table(kind, podspec.WorkloadFields(kind), false, func(path string) bool {
			return !sharedRow(path) && path != "spec" && !strings.HasPrefix(path, "spec.jobTemplate.spec.")
		})
	}
	return b.String()
}

// sharedRow reports whether all kinds share the row of a path.
func sharedRow(path string) bool {
	return path == "status" || path == "metadata" || strings.HasPrefix(path, "metadata.")
}

func workloadSupport(f podspec.Field, template bool) string {
	switch {
	case f.Support == podspec.Rejected:
		return "rejected"
	case f.Support == podspec.Inert && (template || strings.HasPrefix(f.Path, "spec.")):
		return "ignored, with a notice"
	case f.Support == podspec.Inert:
		return "ignored"
	case f.Check != nil:
		return "supported for some values"
	}
	return "supported"
}

func workloadProof(kind string, f podspec.Field) string {
	switch {
	case f.Support == podspec.Rejected || f.Check != nil:
		return "TestRejected_OfAWorkload"
	case f.Support == podspec.Inert:
		return "TestIgnored_OfAWorkload"
	}
	return strings.Join(workloadCases(kind, f.Path), "; ")
}
