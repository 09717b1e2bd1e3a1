package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubelet "k8s.io/kubelet/config/v1beta1"

	"github.com/nodectl/nodectl/pkg/pod"
)

var update = flag.Bool("update", false, "rewrite docs/kubelet-config.md")

// field is one field of the type: its path, and the kinds that can hold it.
type field struct {
	path  string
	kinds []fieldKind
	zero  bool // it cannot distinguish zero from "not set"
}

// typeFields walks a struct of the configuration. A field with a row of the kind
// whole ends the walk.
func typeFields(t *testing.T, above string, typ reflect.Type, rows map[string]kubeletRow) (all []field) {
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" && f.Anonymous {
			if f.Type != reflect.TypeFor[metav1.TypeMeta]() { // apiVersion and kind
				all = append(all, typeFields(t, above, f.Type, rows)...)
			}
			continue
		}
		path := above + name
		if rows[path].kind == ofAny {
			all = append(all, field{path: path, kinds: []fieldKind{ofAny}})
			continue
		}
		typ, pointer := f.Type, f.Type.Kind() == reflect.Pointer
		if pointer {
			typ = typ.Elem()
		}
		kinds, zero := kindsOf(typ)
		switch {
		case kinds != nil:
			all = append(all, field{path, kinds, zero && !pointer})
		case typ.Kind() == reflect.Struct:
			all = append(all, typeFields(t, path+".", typ, rows)...)
		default:
			t.Errorf("%s: no kind holds %s", path, typ)
		}
	}
	return all
}

func kindsOf(typ reflect.Type) (kinds []fieldKind, zero bool) {
	switch typ {
	case reflect.TypeFor[metav1.Duration]():
		return []fieldKind{ofDuration}, true
	case reflect.TypeFor[[]v1.Taint]():
		return []fieldKind{ofTaints}, false
	case reflect.TypeFor[[]kubelet.ShutdownGracePeriodByPodPriority]():
		return []fieldKind{ofPriorities}, false
	case reflect.TypeFor[[]kubelet.MemoryReservation]():
		return []fieldKind{ofReservations}, false
	case reflect.TypeFor[map[string]string]():
		return []fieldKind{ofStringMap}, false
	case reflect.TypeFor[map[string]bool]():
		return []fieldKind{ofBoolMap}, false
	case reflect.TypeFor[map[string][]string]():
		return []fieldKind{ofListMap}, false
	}
	if typ.Name() == "VModuleConfiguration" {
		return []fieldKind{ofModules}, false
	}
	switch typ.Kind() {
	case reflect.String:
		return []fieldKind{ofString, ofPath}, true
	case reflect.Bool:
		return []fieldKind{ofBool}, true
	case reflect.Int32, reflect.Int64, reflect.Uint32:
		return []fieldKind{ofNumber}, true
	case reflect.Float64:
		return []fieldKind{ofFraction}, true
	case reflect.Slice:
		switch typ.Elem().Kind() {
		case reflect.String:
			return []fieldKind{ofStrings}, false
		case reflect.Int32:
			return []fieldKind{ofNumbers}, false
		}
	}
	return nil, false
}

// TestC_1_44_3_EveryFieldHasARow: the type and the table have the same fields.
//
// Shows: C-1.44.3
func TestC_1_44_3_EveryFieldHasARow(t *testing.T) {
	t.Parallel()
	rows := kubeletRows()
	if len(rows) != len(kubeletTable()) {
		t.Fatal("a field has two rows")
	}
	seen := map[string]bool{}
	for _, f := range typeFields(t, "", reflect.TypeFor[kubelet.KubeletConfiguration](), rows) {
		row, ok := rows[f.path]
		seen[f.path] = true
		switch {
		case !ok:
			t.Errorf("%s has no row", f.path)
		case !slices.Contains(f.kinds, row.kind):
			t.Errorf("%s: kind %v, want one of %v", f.path, row.kind, f.kinds)
		case f.zero != row.zero && row.kind != ofBool: // an explicit false counts as set
			t.Errorf("%s: zero means \"not set\": %v, want %v", f.path, row.zero, f.zero)
		}
	}
	for path := range rows {
		if !seen[path] {
			t.Errorf("%s is not a field of the type", path)
		}
	}
	if len(seen) < 100 {
		t.Errorf("only %d fields", len(seen))
	}
}

// TestEveryRowSetsASetting: the setting of each row is a field of Config.
func TestEveryRowSetsASetting(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	typ := reflect.TypeFor[Config]()
	for i := range typ.NumField() {
		known[typ.Field(i).Tag.Get("mapstructure")] = true
	}
	for _, row := range kubeletTable() {
		if row.setting != "" && !known[row.setting] {
			t.Errorf("%s sets %q, which is not a setting", row.path, row.setting)
		}
		for gate, off := range row.off {
			if !known[off.setting] {
				t.Errorf("the gate %s sets %q, which is not a setting", gate, off.setting)
			}
		}
		for gate, setting := range row.gates {
			if !known[setting] {
				t.Errorf("the gate %s sets %q, which is not a setting", gate, setting)
			}
		}
		if (row.setting == "" && row.gates == nil) != (row.outcome != honoured || row.any) {
			t.Errorf("%s is %s and sets %q", row.path, row.outcome, row.setting)
		}
		if row.outcome != honoured && row.note == "" {
			t.Errorf("%s is %s without a reason", row.path, row.outcome)
		}
		if row.outcome == refused && row.refuse == nil {
			t.Errorf("%s is refused without a check", row.path)
		}
	}
}

// TestKubeletConfigIsWrittenDown: docs/kubelet-config.md has the table.
//
// Shows: C-1.44
func TestKubeletConfigIsWrittenDown(t *testing.T) {
	t.Parallel()
	const file = "../../docs/kubelet-config.md"
	var b bytes.Buffer
	b.WriteString(kubeletConfigHead)
	for _, row := range kubeletTable() {
		outcome := string(row.outcome)
		if row.outcome == honoured && row.setting != "" {
			outcome = "`" + row.setting + "`"
		}
		note := row.note
		if row.outcome == warned && len(row.matching) > 0 && row.matching[0] != "" {
			note += fmt.Sprintf("; no warning for `%s`", strings.Join(row.matching, "`, `"))
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", row.path, outcome, note)
	}
	b.WriteString(gatesHead)
	for _, row := range gateTable() {
		outcome := string(row.outcome)
		if row.outcome != honoured {
			outcome = fmt.Sprintf("`%t` is %s", !row.on, outcome)
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", row.name, outcome, row.note)
	}
	if *update {
		if err := os.WriteFile(file, b.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(b.String(), string(have)); diff != "" {
		t.Errorf("%s is not the table; go test ./pkg/config -update writes it\n%s", file, diff)
	}
}

const kubeletConfigHead = `# KubeletConfiguration, field by field

` + "`nodectl serve --kubelet-config FILE`" + ` reads a ` + "`KubeletConfiguration`" + ` of
` + "`kubelet.config.k8s.io/v1beta1`" + `, and ` + "`--config FILE`" + ` also does so if the file is of
that kind. ` + "`--config-dir DIR`" + ` names a directory of drop-ins, ` + "`*.conf`" + `. nodectl
merges them over the file in the byte order of their names. A list replaces the earlier list,
maps are merged key by key, and null resets a field.

A setting comes from the first of these that has it: a flag, a ` + "`NODECTL_*`" + `
variable, nodectl's own file, the KubeletConfiguration with its drop-ins, the
default. nodectl's own file overrides the KubeletConfiguration because it is only for this
node: a cluster's tools write the same KubeletConfiguration to every node.
` + "`nodectl config view --show-origin`" + ` shows the origin of each value, with file and
line.

nodectl ignores an unknown field, and names it in a warning with its line. A value of
the wrong type is an error. A relative path is relative to the directory of the file
that contains it.

The outcome of a field is one of these:

- the name of a nodectl setting: the field sets that setting;
- *honoured*: the field takes effect without a nodectl setting; the note has the reason;
- *ignored, with a warning*: nodectl does not support the field yet. When ` + "`serve`" + `
  starts, one warning names all such fields whose value differs from nodectl's behavior;
- *refused*: nodectl does not start with certain values, because it is not safe to ignore
  them.

nodectl uses its own default for a field that is not set; ` + "`nodectl config view`" + ` prints
it.

## The kubelet's command line

` + "`nodectl serve`" + ` and ` + "`nodectl config view`" + ` also take the kubelet's flags. Some of them
set a nodectl setting with another name
(` + "`--hostname-override`, `--container-runtime-endpoint`, `--pod-manifest-path`,\n`--manifest-url`, `--pod-max-pids`" + `). A flag for a field below sets that field, and
overrides every file. nodectl ignores every other flag of the kubelet, and names it in the
warning. A flag that was removed from the kubelet (` + "`--network-plugin`" + `) is an error, as is
any unknown flag.

If you start the binary under the name ` + "`kubelet`" + `, it runs ` + "`nodectl serve`" + ` with these
differences, so that kubeadm's unit file can start it:

- certificates are in /var/lib/kubelet/pki, where the kubelet's kubeconfig expects the
  client certificate. So each of nodectl and the kubelet uses the certificates that the
  other has rotated;
- /healthz is on 127.0.0.1:10248, because kubeadm waits for it;
- its OOM score is the kubelet's default, -999;
- ` + "`--version`" + ` prints the Kubernetes version of the API that nodectl implements.

The root directory stays /var/lib/nodectl. nodectl refuses /var/lib/kubelet as
` + "`--root-dir`" + ` if it contains the pods of another agent. It reads the seccomp profiles
that pods name from seccomp/ below the root directory.
packaging/kubelet.service.d/20-nodectl.conf replaces the kubelet with nodectl on a
node that kubeadm set up.

## Fields

| Field | Outcome | Note |
|---|---|---|
`

const gatesHead = `
## Feature gates

` + "`featureGates`" + ` and ` + "`--feature-gates`" + ` set the gates of the kubelet. A feature that a gate turns off
is in the setting ` + "`disabled-features`" + `. nodectl ignores a gate that this table does not name, with
a warning.

| Gate | Outcome | Note |
|---|---|---|
`

const head = "apiVersion: kubelet.config.k8s.io/v1beta1\nkind: KubeletConfiguration\n"

func readKubelet(t *testing.T, given []Given, texts ...string) Layer {
	t.Helper()
	var docs []Document
	for i, text := range texts {
		docs = append(docs, Document{File: fmt.Sprintf("/etc/k/%d.conf", i), Data: []byte(head + text)})
	}
	l, err := ReadKubelet(docs, given)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestC_1_44_1_WhatFieldsBecome: each form of a value gives the value of its setting.
//
// Shows: C-1.44.1
func TestC_1_44_1_WhatFieldsBecome(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		text string
		want map[string]any
	}{
		{"maxPods: 12\nclusterDomain: x.y", map[string]any{"max-pods": "12", "cluster-domain": "x.y"}},
		{"syncFrequency: 0s\nmaxPods: 0\naddress: ''\nkubeAPIBurst: 0", map[string]any{}},
		{"podPidsLimit: 0\nkubeAPIQPS: 0\neventRecordQPS: 0\nresolvConf: ''", map[string]any{"pod-pids-limit": "0", "kube-api-qps": "0", "event-qps": "0", "resolv-conf": ""}},
		{"rotateCertificates: false\nserverTLSBootstrap: true", map[string]any{"rotate-certificates": "false", "rotate-server-certificates": "true"}},
		{"nodeLeaseDurationSeconds: 20", map[string]any{"node-lease-duration": "20s"}},
		{"syncFrequency: 90s", map[string]any{"sync-frequency": "1m30s"}},
		{"staticPodPath: m", map[string]any{"filename": []string{"/etc/k/m"}}},
		{"staticPodURL: http://h/\nstaticPodPath: /m", map[string]any{"filename": []string{"/m", "http://h/"}}},
		{"staticPodURLHeader: {B: [x, y], A: [z]}", map[string]any{"manifest-url-header": []string{"A: z", "B: x", "B: y"}}},
		{"systemReserved: {memory: 1Gi, cpu: 500m}", map[string]any{"system-reserved": []string{"cpu=500m", "memory=1Gi"}}},
		{"shutdownGracePeriod: 30s\nshutdownGracePeriodCriticalPods: 10s", map[string]any{"shutdown-grace-period": "30s", "shutdown-grace-period-critical-pods": "10s"}},
		{"shutdownGracePeriodByPodPriority: [{priority: 1000, shutdownGracePeriodSeconds: 20}, {priority: 0, shutdownGracePeriodSeconds: 5}]", map[string]any{"shutdown-grace-period-by-pod-priority": []string{"1000=20s", "0=5s"}}},
		{"registerWithTaints: [{key: a, value: b, effect: NoSchedule}, {key: c, effect: NoExecute}]", map[string]any{"register-with-taints": []string{"a=b:NoSchedule", "c=:NoExecute"}}},
		{"evictionHard: {memory.available: 5%}", map[string]any{"eviction-hard": []string{"memory.available<5%"}}},
		{"evictionSoft: {memory.available: 1Gi}\nevictionSoftGracePeriod: {memory.available: 1m30s}\nevictionMinimumReclaim: {imagefs.available: 2Gi}\nevictionMaxPodGracePeriod: 60\nkernelMemcgNotification: false",
			map[string]any{
				"eviction-soft": []string{"memory.available<1Gi"}, "eviction-soft-grace-period": []string{"memory.available=1m30s"},
				"eviction-minimum-reclaim": []string{"imagefs.available=2Gi"}, "eviction-max-pod-grace-period": "60", "kernel-memcg-notification": "false",
			}},
		{"evictionHard: {}", map[string]any{"eviction-hard": []string{}}},
		{"evictionHard: {memory.available: 5%, nodefs.available: 1Gi, nodefs.inodesFree: 1%, imagefs.inodesFree: 1%}\nmergeDefaultEvictionSettings: true",
			map[string]any{"eviction-hard": []string{"imagefs.inodesFree<1%", "memory.available<5%", "nodefs.available<1Gi", "nodefs.inodesFree<1%", "imagefs.available<15%"}}},
		{"enableServer: false\nport: 10", map[string]any{"port": "0"}},
		{"enableServer: true", map[string]any{}},
		{"port: 10", map[string]any{"port": "10"}},
		{"serializeImagePulls: true", map[string]any{"max-parallel-image-pulls": "1"}},
		{"serializeImagePulls: false", map[string]any{"max-parallel-image-pulls": "1024"}},
		{"serializeImagePulls: false\nmaxParallelImagePulls: 4", map[string]any{"max-parallel-image-pulls": "4"}},
		{"registryPullQPS: 0\nregistryBurst: 0", map[string]any{"registry-qps": "0"}},
		{"nodeStatusMaxImages: -1\nruntimeRequestTimeout: 15m\nimageServiceEndpoint: unix:///i", map[string]any{"node-status-max-images": "-1", "runtime-request-timeout": "15m0s", "image-service-endpoint": "unix:///i"}},
		{"imagePullCredentialsVerificationPolicy: NeverVerifyAllowlistedImages\npreloadedImagesVerificationAllowlist: [r.io/*]", map[string]any{
			"image-pull-credentials-verification-policy": "NeverVerifyAllowlistedImages", "preloaded-images-verification-allowlist": []string{"r.io/*"}}},
		{"oomScoreAdj: -999\nmaxOpenFiles: 2000\nvolumeStatsAggPeriod: -1s", map[string]any{"oom-score-adj": "-999", "max-open-files": "2000", "volume-stats-agg-period": "-1s"}},
		{"containerLogMaxWorkers: 2\ncontainerLogMonitorInterval: 3s\nuserNamespaces: {idsPerPod: 131072}", map[string]any{
			"container-log-max-workers": "2", "container-log-monitor-interval": "3s", "user-namespaces-ids-per-pod": "131072"}},
		{"configMapAndSecretChangeDetectionStrategy: Get\nshowHiddenMetricsForVersion: '1.35'", map[string]any{}},
		{"logging: {format: json}", map[string]any{"logging-format": "json"}},
		{"logging: {format: json, options: {text: {splitStream: true}, json: {infoBufferSize: 1Mi}}}", map[string]any{"logging-format": "json"}},
		{"logging: {options: {text: {splitStream: true}, json: {splitStream: false}}}", map[string]any{"log-split-stream": "true"}},
		{"logging: {format: json, options: {text: {splitStream: false}, json: {splitStream: true}}}", map[string]any{"logging-format": "json", "log-split-stream": "true"}},
		{"enableProfilingHandler: false\nenableSystemLogHandler: true\nenableSystemLogQuery: true\nenableDebugFlagsHandler: true\nenableContentionProfiling: true", map[string]any{"enable-profiling-handler": "false", "enable-system-log-handler": "true", "enable-system-log-query": "true", "enable-debug-flags-handler": "true", "contention-profiling": "true"}},
		{"logging: {verbosity: 3}", map[string]any{}},
		{"logging: {verbosity: 4}", map[string]any{"log-level": "debug"}},
		{"crashLoopBackOff: {maxContainerRestartPeriod: 10s}", map[string]any{"max-container-restart-period": "10s"}},
		{"authentication: &a {x509: {clientCAFile: pki/ca.crt}}", map[string]any{"client-ca-file": "/etc/k/pki/ca.crt"}},
		{"authentication: {webhook: {cacheTTL: 10s}}\nauthorization: {webhook: {cacheAuthorizedTTL: 4m59s, cacheUnauthorizedTTL: 1s}}", map[string]any{
			"authentication-token-webhook-cache-ttl": "10s", "authorization-webhook-cache-authorized-ttl": "4m59s", "authorization-webhook-cache-unauthorized-ttl": "1s"}},
		{"authentication: {webhook: {cacheTTL: 0s}}", map[string]any{}}, // the type's word for "not set"
		{"cpuCFSQuota: false\ncpuCFSQuotaPeriod: 5ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: true}", map[string]any{"cpu-cfs-quota": "false", "cpu-cfs-quota-period": "5ms"}},
		{"cpuCFSQuotaPeriod: 100ms\nfeatureGates: {CustomCPUCFSQuotaPeriod: false}", map[string]any{"cpu-cfs-quota-period": "100ms"}},
		{"memorySwap: {swapBehavior: LimitedSwap}\nfeatureGates: {NodeSwap: true}", map[string]any{"memory-swap-behavior": "LimitedSwap"}},
		{"featureGates: {MemoryQoS: true}\nmemoryThrottlingFactor: 0.8\nmemoryReservationPolicy: TieredReservation", map[string]any{
			"memory-qos": "true", "memory-throttling-factor": "0.8", "memory-reservation-policy": "TieredReservation"}},
		{"featureGates: {KubeletEnsureSecretPulledImages: false}", map[string]any{"image-pull-credentials-verification-policy": "NeverVerify"}},
		{"featureGates: {KubeletEnsureSecretPulledImages: true}\nimagePullCredentialsVerificationPolicy: AlwaysVerify", map[string]any{"image-pull-credentials-verification-policy": "AlwaysVerify"}},
		{"featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriod: 0s\nshutdownGracePeriodByPodPriority: [{priority: 0, shutdownGracePeriodSeconds: 5}]", map[string]any{}},
		{"featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\nshutdownGracePeriod: 30s", map[string]any{"shutdown-grace-period": "30s"}},
		{"featureGates: {KubeletSeparateDiskGC: true, ImageMaximumGCAge: true, PodsAPI: false, QOSReserved: false}", map[string]any{}},
		{"featureGates: {PodLevelResources: false, NodeDeclaredFeatures: false, InPlacePodVerticalScalingInitContainers: true}", map[string]any{"disabled-features": []string{"NodeDeclaredFeatures", "PodLevelResources"}}},
		{"featureGates: {QOSReserved: true}\ncgroupsPerQOS: true", map[string]any{}},
		{"featureGates: {KubeletCrashLoopBackOffMax: false}\nqosReserved: {memory: 50%}", map[string]any{}},
		{"logging: {vmodule: [{filePattern: engine*, verbosity: 5}, {filePattern: a, verbosity: 1}]}", map[string]any{"vmodule": []string{"engine*=5", "a=1"}}},
		{"logging: {vmodule: []}", map[string]any{"vmodule": []string{}}},
		{"featureGates: {CSIVolumeHealth: true, MemoryQoS: false}", map[string]any{"volume-health": "true", "memory-qos": "false"}},
		{"enforceNodeAllocatable: [pods, kube-reserved]\nkubeReservedCgroup: /kube", map[string]any{"enforce-node-allocatable": []string{"pods", "kube-reserved"}, "kube-reserved-cgroup": "/kube"}},
		{"cpuManagerPolicy: static\ncpuManagerPolicyOptions: {full-pcpus-only: 'true'}\nreservedSystemCPUs: 0-1", map[string]any{
			"cpu-manager-policy": "static", "cpu-manager-policy-options": []string{"full-pcpus-only=true"}, "reserved-cpus": "0-1"}},
		{"memoryManagerPolicy: Static\nreservedMemory: [{numaNode: 0, limits: {memory: 1Gi, hugepages-2Mi: 2Mi}}, {numaNode: 1, limits: {memory: 2Gi}}]", map[string]any{
			"memory-manager-policy": "Static", "reserved-memory": []string{"0:hugepages-2Mi=2Mi,memory=1Gi", "1:memory=2Gi"}}},
		{"topologyManagerPolicy: restricted\ntopologyManagerScope: pod\ntopologyManagerPolicyOptions: {prefer-closest-numa-nodes: 'true'}", map[string]any{
			"topology-manager-policy": "restricted", "topology-manager-scope": "pod", "topology-manager-policy-options": []string{"prefer-closest-numa-nodes=true"}}},
		{"cpuManagerPolicyOptions: {align-by-socket: 'true'}\nfeatureGates: {CPUManagerPolicyAlphaOptions: true}\ncpuManagerReconcilePeriod: 5s", map[string]any{
			"cpu-manager-policy-options": []string{"align-by-socket=true"}}},
		{"enforceNodeAllocatable: []", map[string]any{"enforce-node-allocatable": []string{}}},
		{"failSwapOn: yes", map[string]any{"fail-swap-on": "true"}},
	} {
		l := readKubelet(t, nil, c.text)
		if diff := cmp.Diff(c.want, l.Values); diff != "" {
			t.Errorf("%s: %s", c.text, diff)
		}
		if len(l.Ignored)+len(l.Unknown) > 0 {
			t.Errorf("%s: %v, %v", c.text, l.Ignored, l.Unknown)
		}
	}
}

// TestC_1_44_1_DropInsAreMerged: maps are merged key by key, lists are replaced, null
// resets, and each value has the place of the winning one.
//
// Shows: C-1.44.1
func TestC_1_44_1_DropInsAreMerged(t *testing.T) {
	t.Parallel()
	l := readKubelet(t, nil,
		"systemReserved: {cpu: '1', memory: 1Gi}\nclusterDNS: [10.0.0.1, 10.0.0.2]\nmaxPods: 5\nfeatureGates: {A: true, B: true}\nport: 3\nauthentication: {x509: {clientCAFile: /a}}",
		"systemReserved: {memory: null, pid: '7'}\nclusterDNS: [10.0.0.3]\nmaxPods: null\nfeatureGates: {B: false}\nport: 0\nauthentication: {webhook: {enabled: true}}")
	want := map[string]any{"system-reserved": []string{"cpu=1", "pid=7"}, "cluster-dns": []string{"10.0.0.3"}, "client-ca-file": "/a"}
	if diff := cmp.Diff(want, l.Values); diff != "" {
		t.Error(diff)
	}
	if got := l.Places["cluster-dns"]; got != "/etc/k/1.conf:4" {
		t.Errorf("cluster-dns is at %s", got)
	}
	if got := l.Places["client-ca-file"]; got != "/etc/k/0.conf:8" {
		t.Errorf("client-ca-file is at %s", got)
	}
	if diff := cmp.Diff([]string{"featureGates A, B (/etc/k/1.conf:6)"}, l.Ignored); diff != "" {
		t.Error(diff)
	}
}

// TestAFlagIsAboveTheFiles: a flag's value wins, and its place is the flag.
func TestAFlagIsAboveTheFiles(t *testing.T) {
	t.Parallel()
	l := readKubelet(t, []Given{{"serializeImagePulls", "true", "--serialize-image-pulls"}, {"featureGates", "A=true,B=false", "--feature-gates"}, {"evictionHard", "memory.available=1Gi", "--x"}},
		"maxParallelImagePulls: 4\nserializeImagePulls: false")
	if l.Values["max-parallel-image-pulls"] != "1" || l.Places["max-parallel-image-pulls"] != "--serialize-image-pulls" {
		t.Errorf("%v %v", l.Values, l.Places)
	}
	if _, err := ReadKubelet(nil, []Given{{"maxPods", "many", "--m"}}); err == nil || err.Error() != "--m is not a whole number" {
		t.Error(err)
	}
}

// TestWhatWeakensIsRefused: each row with refused values refuses them, with the place.
//
// Shows: D1
func TestWhatWeakensIsRefused(t *testing.T) {
	t.Parallel()
	refusals := map[string]string{
		"readOnlyPort": "readOnlyPort: 10255", "tlsCurvePreferences": "tlsCurvePreferences: [29]", "tlsMinVersion": "tlsMinVersion: VersionTLS10",
		"authentication.webhook.enabled": "authentication: {webhook: {enabled: false}}", "authentication.anonymous.enabled": "authentication: {anonymous: {enabled: true}}",
		"authorization.mode": "authorization: {mode: AlwaysAllow}",
		"cgroupsPerQOS":      "cgroupsPerQOS: false",
		"runOnce":            "runOnce: true", "featureGates": "featureGates: {ProcMountType: false}",
	}
	for _, row := range kubeletTable() {
		text, ok := refusals[row.path]
		if (row.refuse != nil) != ok {
			t.Errorf("%s: refuses values: %v, the test has one: %v", row.path, row.refuse != nil, ok)
		}
		if !ok {
			continue
		}
		_, err := ReadKubelet([]Document{{"/k", []byte(head + text)}}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "/k:3: "+row.path+": ") {
			t.Errorf("%s: %v", text, err)
		}
	}
	if _, err := ReadKubelet([]Document{{"/k", []byte(head + "featureGates: {CustomCPUCFSQuotaPeriod: false}\ncpuCFSQuotaPeriod: 5ms")}}, nil); err == nil ||
		err.Error() != "/k:4: cpuCFSQuotaPeriod: needs the feature gate CustomCPUCFSQuotaPeriod" {
		t.Error(err)
	}
	for text, want := range map[string]string{
		"featureGates: {GracefulNodeShutdown: false}\nshutdownGracePeriod: 5s":                                               "/k:4: shutdownGracePeriod: needs the feature gate GracefulNodeShutdown",
		"featureGates: {GracefulNodeShutdownBasedOnPodPriority: false}\nshutdownGracePeriodByPodPriority: [{priority: 1}]":   "/k:4: shutdownGracePeriodByPodPriority: needs the feature gate GracefulNodeShutdownBasedOnPodPriority",
		"featureGates: {KubeletEnsureSecretPulledImages: false}\nimagePullCredentialsVerificationPolicy: AlwaysVerify":       "/k:4: imagePullCredentialsVerificationPolicy: needs the feature gate KubeletEnsureSecretPulledImages",
		"featureGates: {KubeletEnsureSecretPulledImages: false}\npreloadedImagesVerificationAllowlist: [a]":                  "/k:4: preloadedImagesVerificationAllowlist: needs the feature gate KubeletEnsureSecretPulledImages",
		"featureGates: {KubeletCrashLoopBackOffMax: false}\ncrashLoopBackOff: {maxContainerRestartPeriod: 10s}":              "/k:4: crashLoopBackOff.maxContainerRestartPeriod: needs the feature gate KubeletCrashLoopBackOffMax",
		"featureGates: {QOSReserved: true}\nqosReserved: {memory: 50%}":                                                      "/k:4: qosReserved: nodectl cannot reserve memory for a QoS class",
		"cpuManagerPolicyOptions: {align-by-socket: 'true'}":                                                                 "/k:3: cpuManagerPolicyOptions: align-by-socket needs the feature gate CPUManagerPolicyAlphaOptions",
		"cpuManagerPolicyOptions: {distribute-cpus-across-numa: 'true'}\nfeatureGates: {CPUManagerPolicyBetaOptions: false}": "/k:3: cpuManagerPolicyOptions: distribute-cpus-across-numa needs the feature gate CPUManagerPolicyBetaOptions",
	} {
		if _, err := ReadKubelet([]Document{{"/k", []byte(head + text)}}, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v", text, err)
		}
	}
	l := readKubelet(t, nil, "readOnlyPort: 0\nauthorization: {mode: Webhook}\ntlsMinVersion: VersionTLS12\nrunOnce: false")
	if diff := cmp.Diff(map[string]any{"tls-min-version": "VersionTLS12"}, l.Values); diff != "" || len(l.Ignored) > 0 {
		t.Error(diff, l.Ignored)
	}
}

// TestWhatDoesNothingIsNamed: every unsupported row is named for a value that differs from
// nodectl's behaviour, and for no other.
func TestWhatDoesNothingIsNamed(t *testing.T) {
	t.Parallel()
	asks := map[fieldKind]string{ofString: "odd", ofPath: "/odd", ofBool: "", ofNumber: "12345", ofFraction: "0.7", ofDuration: "7h", ofStrings: "[odd]", ofStringMap: "{a: b}", ofAny: "[odd]"}
	for _, row := range kubeletTable() {
		if row.outcome != warned || row.warning != nil {
			continue
		}
		value := asks[row.kind]
		if row.kind == ofBool {
			value = map[bool]string{true: "false", false: "true"}[slices.Contains(row.matching, "true")]
		}
		parts := strings.Split(row.path, ".")
		text := parts[len(parts)-1] + ": "
		open, shut := "", ""
		for _, p := range parts[:len(parts)-1] {
			open, shut = open+p+": {", shut+"}"
		}
		if l := readKubelet(t, nil, open+text+value+shut); len(l.Ignored) != 1 || !strings.HasPrefix(l.Ignored[0], row.path+" (/etc/k/0.conf:3)") {
			t.Errorf("%s: %v", row.path, l.Ignored)
		}
		for _, fine := range row.matching {
			if row.kind == ofStrings {
				fine = "[" + fine + "]"
			}
			if l := readKubelet(t, nil, open+text+fine+shut); len(l.Ignored) > 0 {
				t.Errorf("%s: %s: %v", row.path, fine, l.Ignored)
			}
		}
	}
}

// TestGates_EitherValue_HasTheOutcomeOfItsRow: it has its effect, or a warning names it, or nodectl
// does not start.
func TestGates_EitherValue_HasTheOutcomeOfItsRow(t *testing.T) {
	t.Parallel()
	var names []string
	for _, row := range gateTable() {
		names = append(names, row.name)
		for _, on := range []bool{true, false} {
			text := fmt.Sprintf("featureGates: {%s: %t}", row.name, on)
			l, err := ReadKubelet([]Document{{"/k", []byte(head + text)}}, nil)
			wrong := ""
			if on != row.on && row.outcome == refused {
				wrong = "/k:3: featureGates: " + row.name + " cannot be disabled"
			}
			if wrong != "" || err != nil {
				if err == nil || err.Error() != wrong {
					t.Errorf("%s: error %v, want %q", text, err, wrong)
				}
				continue
			}
			var ignored []string
			if on != row.on && row.outcome == warned {
				ignored = []string{"featureGates " + row.name + " (/k:3)"}
			}
			if !slices.Equal(l.Ignored, ignored) {
				t.Errorf("%s: ignored %q, want %q", text, l.Ignored, ignored)
			}
			if off, _ := l.Values["disabled-features"].([]string); slices.Contains(off, row.name) != (!on && slices.Contains(pod.Features(), row.name)) {
				t.Errorf("%s disables %q", text, off)
			}
		}
	}
	for _, name := range pod.Features() {
		if !slices.Contains(names, name) {
			t.Errorf("the gate %s has no row", name)
		}
	}
	if slices.Sort(names); len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("a gate has two rows: %q", names)
	}
}

// TestWrongTypesNameTheirPlace: errors about types have the place, and never the value.
func TestWrongTypesNameTheirPlace(t *testing.T) {
	t.Parallel()
	for text, says := range map[string]string{
		"maxPods: hunter2": "maxPods is not a whole number", "port: '10250'": "port is not a whole number", "clusterDNS: hunter2": "clusterDNS takes a list",
		"clusterDNS: [1]": "item 1 is not a string", "systemReserved: hunter2": "takes names with values", "systemReserved: {cpu: 1.5}": "cpu: is not a string",
		"featureGates: {A: hunter2}": "A: is neither true nor false", "syncFrequency: 5": "is not a duration", "syncFrequency: hunter2": "is not a duration",
		"rotateCertificates: 'true'": "is neither true nor false", "clusterDomain: [x]": "takes one value", "authentication: hunter2": "takes fields, not a value",
		"registerWithTaints: [hunter2]": "is not a taint", "memoryThrottlingFactor: hunter2": "is not a number", "clusterDomain: 12": "is not a string",
		"staticPodURLHeader: {A: hunter2}": "A: takes a list", "logging: {vmodule: [hunter2]}": "item 1 is not a filePattern with verbosity",
		"logging: {vmodule: [{filePattern: 'hunter2=1'}]}": "item 1 is not a filePattern with verbosity",
	} {
		_, err := ReadKubelet([]Document{{"/k", []byte(head + text)}}, nil)
		if err == nil || !strings.HasPrefix(err.Error(), "/k:3: ") || !strings.Contains(err.Error(), says) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, text := range []string{"", "[]", "a: b", "kind: KubeletConfiguration", "kind: Pod\napiVersion: kubelet.config.k8s.io/v1beta1", "a: ["} {
		if _, err := ReadKubelet([]Document{{"/k", []byte(text)}}, nil); err == nil || !strings.HasPrefix(err.Error(), "/k: ") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestIsKubelet(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]bool{head: true, `{"kind": "KubeletConfiguration"}`: true, "kind: Config": false, "": false, "a: [": false, "- kind": false} {
		if IsKubelet([]byte(text)) != want {
			t.Errorf("%q", text)
		}
	}
}
