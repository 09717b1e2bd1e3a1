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

Deployments, ReplicaSets, StatefulSets and DaemonSets (` + "`apps/v1`" + `), Jobs and CronJobs (` + "`batch/v1`" + `) run from every source that is no API server. They make pods as Kubernetes' controllers do for one node. On a node of a cluster, which has a kubeconfig, workloads in manifests are rejected: its controllers run them.

The words are those of the tables above. **Shown by** names the test of ` + "`test/support`" + ` for the field. A case of ` + "`TestWorkloads`" + ` runs the workload with the field and without it, and what happens has to differ.

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
