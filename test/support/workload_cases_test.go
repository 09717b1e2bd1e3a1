//go:build linux

package support

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
)

// workloadCase shows fields of a workload's spec.
type workloadCase struct {
	name, of string // the kinds that have the fields
	rows     string // the fields, from the spec
	base     string // part of the spec in both runs
	spec     string // part of the spec that shows the fields
	without  string // the part of the spec that the other run has in its place

	image string        // of a Job; of others it changes in the run
	takes time.Duration // how long the pods of a CronJob's Jobs run
	jump  time.Duration // the clock goes forward
	kind  string
}

func (c *workloadCase) kinds() []string { return strings.Fields(c.of) }

const (
	apps    = "Deployment ReplicaSet StatefulSet DaemonSet"
	scaled  = "Deployment ReplicaSet StatefulSet"
	history = "Deployment StatefulSet DaemonSet"
)

func workloadsCases() []workloadCase {
	return slices.Concat(appsCases(), jobCases(), cronCases())
}

func appsCases() []workloadCase {
	return []workloadCase{
		{name: "replicas", of: scaled, rows: "replicas", spec: "replicas: 2"},
		{name: "ready for a while", of: apps, rows: "minReadySeconds", spec: "minReadySeconds: 7"},
		{name: "template", of: apps, rows: "template", spec: "template: {spec: {containers: [{image: mine}]}}"},
		{name: "history", of: history, rows: "revisionHistoryLimit", spec: "revisionHistoryLimit: 0"},
		{name: "recreate", of: "Deployment", rows: "strategy strategy.type", base: "replicas: 3", spec: "strategy: {type: Recreate}"},
		{name: "surge", of: "Deployment", rows: "strategy.rollingUpdate strategy.rollingUpdate.maxSurge", base: "replicas: 3", spec: "strategy: {rollingUpdate: {maxSurge: 3}}"},
		{name: "unavailable", of: "Deployment", rows: "strategy.rollingUpdate.maxUnavailable", base: "replicas: 3", spec: "strategy: {rollingUpdate: {maxUnavailable: 2}}"},
		{name: "paused", of: "Deployment", rows: "paused", spec: "paused: true"},
		{name: "deadline", of: "Deployment", rows: "progressDeadlineSeconds", spec: "progressDeadlineSeconds: 20"},
		{name: "subdomain", of: "StatefulSet", rows: "serviceName", spec: "serviceName: db"},
		{name: "all at once", of: "StatefulSet", rows: "podManagementPolicy", base: "replicas: 3", spec: "podManagementPolicy: Parallel"},
		{name: "on delete", of: "StatefulSet DaemonSet", rows: "updateStrategy updateStrategy.type", spec: "updateStrategy: {type: OnDelete}"},
		{name: "partition", of: "StatefulSet", rows: "updateStrategy.rollingUpdate updateStrategy.rollingUpdate.partition", base: "replicas: 3", spec: "updateStrategy: {rollingUpdate: {partition: 2}}"},
		{name: "several at once", of: "StatefulSet", rows: "updateStrategy.rollingUpdate.maxUnavailable", base: "replicas: 3", spec: "updateStrategy: {rollingUpdate: {maxUnavailable: 2}}"},
		{name: "first ordinal", of: "StatefulSet", rows: "ordinals ordinals.start", spec: "ordinals: {start: 5}"},
		{
			name: "claims", of: "StatefulSet",
			rows: "volumeClaimTemplates volumeClaimTemplates[].metadata volumeClaimTemplates[].metadata.name volumeClaimTemplates[].spec volumeClaimTemplates[].spec.accessModes volumeClaimTemplates[].spec.resources volumeClaimTemplates[].spec.resources.requests",
			spec: "volumeClaimTemplates: [{metadata: {name: other}, spec: {accessModes: [ReadWriteMany], resources: {requests: {storage: 2Gi}}}}]",
		},
		{
			name: "labels of claims", of: "StatefulSet", rows: "volumeClaimTemplates[].metadata.labels volumeClaimTemplates[].metadata.annotations",
			spec: "volumeClaimTemplates: [{metadata: {labels: {a: b}, annotations: {c: d}}}]",
		},
		{name: "limits of claims", of: "StatefulSet", rows: "volumeClaimTemplates[].spec.resources.limits", spec: "volumeClaimTemplates: [{spec: {resources: {limits: {storage: 3Gi}}}}]"},
		{
			name: "surge", of: "DaemonSet", rows: "updateStrategy.rollingUpdate updateStrategy.rollingUpdate.maxSurge updateStrategy.rollingUpdate.maxUnavailable",
			spec: "updateStrategy: {rollingUpdate: {maxSurge: 1, maxUnavailable: 0}}",
		},
	}
}

func jobCases() []workloadCase {
	const indexed = "completionMode: Indexed, completions: 3, parallelism: 3"
	return []workloadCase{
		{name: "template", of: "Job", rows: "template", spec: "template: {spec: {containers: [{image: mine}]}}"},
		{name: "parallelism", of: "Job", rows: "parallelism", base: "completions: 4", spec: "parallelism: 2"},
		{name: "completions", of: "Job", rows: "completions", spec: "completions: 3"},
		{name: "deadline", of: "Job", rows: "activeDeadlineSeconds", spec: "activeDeadlineSeconds: 3"},
		{name: "back-off", of: "Job", rows: "backoffLimit", image: "bad", spec: "backoffLimit: 0"},
		{name: "time to live", of: "Job", rows: "ttlSecondsAfterFinished", spec: "ttlSecondsAfterFinished: 5"},
		{name: "indexes", of: "Job", rows: "completionMode", base: "completions: 2", spec: "completionMode: Indexed"},
		{name: "suspended", of: "Job", rows: "suspend", spec: "suspend: true"},
		{name: "back-off of an index", of: "Job", rows: "backoffLimitPerIndex", image: "bad", base: indexed, spec: "backoffLimitPerIndex: 0"},
		{name: "failed indexes", of: "Job", rows: "maxFailedIndexes", image: "bad", base: indexed + ", backoffLimitPerIndex: 1", spec: "maxFailedIndexes: 0"},
		{
			name: "failure by exit code", of: "Job", image: "bad",
			rows: "podFailurePolicy podFailurePolicy.rules podFailurePolicy.rules[].action podFailurePolicy.rules[].onExitCodes podFailurePolicy.rules[].onExitCodes.operator podFailurePolicy.rules[].onExitCodes.values",
			spec: "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [3]}}]}",
		},
		{
			name: "exit code of a container", of: "Job", image: "bad", rows: "podFailurePolicy.rules[].onExitCodes.containerName",
			base:    "template: {spec: {containers: [{name: main, image: bad}, {name: side, image: side}]}}",
			spec:    "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {containerName: side, operator: In, values: [3]}}]}",
			without: "podFailurePolicy: {rules: [{action: FailJob, onExitCodes: {operator: In, values: [3]}}]}",
		},
		{
			name: "failure by condition", of: "Job", image: "bad",
			rows: "podFailurePolicy.rules[].onPodConditions podFailurePolicy.rules[].onPodConditions[].type",
			spec: "podFailurePolicy: {rules: [{action: FailJob, onPodConditions: [{type: Broken}]}]}",
		},
		{
			name: "status of a condition", of: "Job", image: "bad", rows: "podFailurePolicy.rules[].onPodConditions[].status",
			spec:    "podFailurePolicy: {rules: [{action: FailJob, onPodConditions: [{type: Broken, status: 'False'}]}]}",
			without: "podFailurePolicy: {rules: [{action: FailJob, onPodConditions: [{type: Broken}]}]}",
		},
		{
			name: "success by index", of: "Job", rows: "successPolicy successPolicy.rules successPolicy.rules[].succeededIndexes",
			base: "completionMode: Indexed, completions: 3", spec: "successPolicy: {rules: [{succeededIndexes: '0'}]}",
		},
		{
			name: "success by count", of: "Job", rows: "successPolicy.rules[].succeededCount",
			base: "completionMode: Indexed, completions: 3", spec: "successPolicy: {rules: [{succeededCount: 1}]}",
		},
	}
}

func cronCases() []workloadCase {
	const short, long = 4 * time.Second, 90 * time.Second
	return []workloadCase{
		{name: "schedule", of: "CronJob", rows: "schedule jobTemplate jobTemplate.spec", takes: short, spec: "schedule: '*/2 * * * *'"},
		{name: "time zone", of: "CronJob", rows: "timeZone", takes: short, base: "schedule: '0 12 * * *'", spec: "timeZone: America/New_York", without: "timeZone: Etc/UTC"},
		{name: "start deadline", of: "CronJob", rows: "startingDeadlineSeconds", takes: short, base: "schedule: '7 12 * * *', timeZone: Etc/UTC", jump: 20 * time.Minute, spec: "startingDeadlineSeconds: 60"},
		{name: "forbid", of: "CronJob", rows: "concurrencyPolicy", takes: long, spec: "concurrencyPolicy: Forbid"},
		{name: "replace", of: "CronJob", rows: "concurrencyPolicy", takes: long, spec: "concurrencyPolicy: Replace"},
		{name: "suspended", of: "CronJob", rows: "suspend", takes: short, spec: "suspend: true"},
		{name: "history of successes", of: "CronJob", rows: "successfulJobsHistoryLimit", takes: short, spec: "successfulJobsHistoryLimit: 0"},
		{name: "history of failures", of: "CronJob", rows: "failedJobsHistoryLimit", takes: short, image: "bad", base: "jobTemplate: {spec: {backoffLimit: 0}}", spec: "failedJobsHistoryLimit: 3"},
	}
}

// elsewhere are fields that other tests show.
func elsewhere(kind, path string) string {
	switch {
	case path == "spec" || path == "spec.persistentVolumeClaimRetentionPolicy":
		return "" // their fields are shown
	case strings.HasPrefix(path, "metadata"):
		return "TestWorkloads_KeepTheirMetadata"
	case path == "spec.podReplacementPolicy":
		return "pkg/workload.TestJob_PodReplacementPolicyFailed_TerminatingPodHasItsPlace"
	case strings.HasPrefix(path, "spec.selector"), path == "spec.manualSelector":
		return "TestRejected_SelectorOfAWorkload"
	}
	return ""
}

// workloadCases returns the names of the cases and tests that show a field of a kind.
func workloadCases(kind, path string) []string {
	var out []string
	for _, c := range workloadsCases() {
		rest, is := strings.CutPrefix(path, "spec.")
		if is && slices.Contains(c.kinds(), kind) && slices.Contains(strings.Fields(c.rows), rest) {
			out = append(out, c.name)
		}
	}
	if other := elsewhere(kind, path); other != "" {
		out = append(out, other)
	}
	return out
}

// TestWorkloads_EveryFieldIsShown: each supported field of each kind has a case or a test.
func TestWorkloads_EveryFieldIsShown(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		known := map[string]bool{}
		for _, f := range podspec.WorkloadFields(kind) {
			known[f.Path] = true
			ofJob := kind == pod.KindCronJob && strings.HasPrefix(f.Path, "spec.jobTemplate.spec.")
			if f.Support != podspec.Honoured || f.Check != nil || ofJob || f.Path == "spec" || f.Path == "spec.persistentVolumeClaimRetentionPolicy" {
				continue
			}
			if len(workloadCases(kind, f.Path)) == 0 {
				t.Errorf("%s: nothing shows %s", kind, f.Path)
			}
		}
		for _, c := range workloadsCases() {
			for _, row := range strings.Fields(c.rows) {
				if slices.Contains(c.kinds(), kind) && !known["spec."+row] {
					t.Errorf("%s: %s: the table has no %s", kind, c.name, row)
				}
			}
		}
	}
}

// TestWorkloads_KeepTheirMetadata: the name, the namespace, labels and annotations of a workload
// are those of its author.
func TestWorkloads_KeepTheirMetadata(t *testing.T) {
	t.Parallel()
	for _, kind := range pod.WorkloadKinds() {
		file, _ := parseWorkload(t, kind, yamlOf("metadata: {name: web, namespace: shop, labels: {a: b}, annotations: {c: d}}"))
		if len(file.Objects) != 1 {
			t.Errorf("%s: %v", kind, file.Problems)
			continue
		}
		o := file.Objects[0]
		meta := metaOf(o)
		if o.Key != (pod.Key{Namespace: "shop", Name: "web"}) || meta.GetLabels()["a"] != "b" || meta.GetAnnotations()["c"] != "d" || meta.GetNamespace() != "shop" {
			t.Errorf("%s: %s, %v", kind, o.Key, meta)
		}
	}
}
