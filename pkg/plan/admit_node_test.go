package plan_test

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/pkg/plan"
	"github.com/nodectl/nodectl/pkg/plan/plantest"
	"github.com/nodectl/nodectl/pkg/pod"
)

// sized is a pod in YAML's flow style: its spec and, after a bar, its metadata.
func sized(t *testing.T, name, source, text string) *pod.Spec {
	t.Helper()
	body, meta, _ := strings.Cut(text, "|")
	if !strings.Contains(body, "containers:") {
		body = strings.TrimSuffix("containers: [{name: c, image: i}], "+body, ", ")
	}
	s, err := plantest.Spec(fmt.Appendf(nil, "metadata: {name: %s, uid: uid-%s, %s}\nspec: {%s}", name, name, meta, body))
	if err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	s.Origin.Source = source
	return s
}

func amounts(pairs ...string) v1.ResourceList {
	list := v1.ResourceList{}
	for i := 0; i < len(pairs); i += 2 {
		list[v1.ResourceName(pairs[i])] = resource.MustParse(pairs[i+1])
	}
	return list
}

// fixedMessages are the kubelet's, word for word, where they do not depend on the node.
var fixedMessages = map[string]string{
	"PodOSSelectorNodeLabelDoesNotMatch": "Failed to admit pod as the `kubernetes.io/os` label doesn't match node label",
	"PodOSNotSupported":                  "Failed to admit pod as the OS field doesn't match node OS",
	"NodeAffinity":                       "Predicate NodeAffinity failed: node(s) didn't match Pod's node affinity/selector",
	"NodeName":                           "Predicate NodeName failed: node(s) didn't match the requested node name",
	"NodePorts":                          "Predicate NodePorts failed: node(s) didn't have free ports for the requested pod ports",
	"TaintToleration":                    "Predicate TaintToleration failed: node(s) had taints that the pod didn't tolerate",
	"AppArmor":                           "Cannot enforce AppArmor: AppArmor is not enabled on the host",
}

// refusalOf returns the decision of admission on one pod beside others.
func refusalOf(want *pod.Spec, admitted []*pod.Spec, node plan.Node) string {
	ok, refused := plan.Admit([]*pod.Spec{want}, admitted, node)
	if len(ok)+len(refused) != 1 {
		return fmt.Sprintf("%d admitted and %d refused of one pod", len(ok), len(refused))
	}
	if len(ok) == 1 {
		return ""
	}
	r := refused[0]
	if text, fixed := fixedMessages[r.Reason]; fixed && (r.Message != text || r.Detail == "") {
		return "message of " + r.Reason + ": " + r.Message
	} else if !fixed {
		return r.Reason + ": " + r.Message
	}
	return r.Reason + ": " + r.Detail
}

func asks(text string) string {
	return "containers: [{name: c, image: i, resources: {requests: {" + text + "}}}]"
}

// TestC_1_31_NodeRefuses compares the reason for a pod and a node with the kubelet's.
//
// Shows: C-1.31
func TestC_1_31_NodeRefuses(t *testing.T) {
	t.Parallel()
	node := func() plan.Node {
		return plan.Node{
			Name: "n1", OS: "linux", Kernel: "6.1.0-13-amd64",
			Labels:      map[string]string{v1.LabelOSStable: "linux", "disk": "hdd"},
			Taints:      []v1.Taint{{Key: "cold", Effect: v1.TaintEffectNoSchedule}, {Key: "hot", Value: "yes", Effect: v1.TaintEffectNoExecute}},
			Sysctls:     []string{"kernel.msg*", "net.core.somaxconn", "net/ipv4/conf/all/*"},
			Allocatable: amounts("cpu", "2", "memory", "1Gi", "ephemeral-storage", "10Gi", "hugepages-2Mi", "4Mi"),
			MaxPods:     3,
		}
	}
	const required = "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{%s}]}}}"
	for _, c := range []struct{ name, source, spec, want string }{
		{"no requirement", "file", "", ""},

		{"safe sysctl", "file", "securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}", ""},
		{"safe since 4.15", "file", "securityContext: {sysctls: [{name: net.ipv4.tcp_rmem, value: '1'}]}", ""},
		{"slashes", "file", "securityContext: {sysctls: [{name: net/ipv4/tcp_syncookies, value: '1'}]}", ""},
		{"unsafe sysctl", "file", "securityContext: {sysctls: [{name: kernel.shmmax, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "kernel.shmmax" not allowlisted`},
		{"the second one", "file", "securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}, {name: kernel.sem, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "kernel.sem" not allowlisted`},
		{"allowed by pattern", "file", "securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", ""},
		{"allowed by name", "file", "securityContext: {sysctls: [{name: net.core.somaxconn, value: '1'}]}", ""},
		{"a name is no pattern", "file", "securityContext: {sysctls: [{name: net.core.somaxconn2, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "net.core.somaxconn2" not allowlisted`},
		{"allowed in slashes", "file", "securityContext: {sysctls: [{name: net.ipv4.conf.all.rp_filter, value: '1'}]}", ""},
		{"net with host network", "file", "hostNetwork: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "net.ipv4.tcp_syncookies" not allowed with host Net enabled`},
		{"ipc with host network", "file", "hostNetwork: true, securityContext: {sysctls: [{name: kernel.shm_rmid_forced, value: '1'}]}", ""},
		{"ipc with hostIPC", "file", "hostIPC: true, securityContext: {sysctls: [{name: kernel.msgmax, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "kernel.msgmax" not allowed with host IPC enabled`},
		{"net with hostIPC", "file", "hostIPC: true, securityContext: {sysctls: [{name: net.ipv4.tcp_syncookies, value: '1'}]}", ""},

		{"label of this system", "file", "|labels: {kubernetes.io/os: linux}", ""},
		{"label of another system", "file", "|labels: {kubernetes.io/os: windows}", `PodOSSelectorNodeLabelDoesNotMatch: the pod's label kubernetes.io/os is "windows", and this node runs linux`},
		{"this system", "file", "os: {name: linux}", ""},
		{"another system", "file", "os: {name: windows}", `PodOSNotSupported: spec.os.name is "windows", and this node runs linux`},

		{"sysctls before the system", "file", "os: {name: windows}, securityContext: {sysctls: [{name: kernel.sem, value: '1'}]}", `SysctlForbidden: forbidden sysctl: "kernel.sem" not allowlisted`},
		{"the system before what is left", "file", "os: {name: windows}, " + asks("cpu: 3"), `PodOSNotSupported: spec.os.name is "windows", and this node runs linux`},

		{"all there is", "file", asks("cpu: 2, memory: 1Gi, ephemeral-storage: 10Gi, hugepages-2Mi: 4Mi"), ""},
		{"too many cores", "file", asks("cpu: 2001m"), "OutOfcpu: Node didn't have enough resource: cpu, requested: 2001, used: 0, capacity: 2000"},
		{"too much memory", "file", asks("memory: 1025Mi"), "OutOfmemory: Node didn't have enough resource: memory, requested: 1074790400, used: 0, capacity: 1073741824"},
		{"too much disk", "file", asks("ephemeral-storage: 11Gi"), "OutOfephemeral-storage: Node didn't have enough resource: ephemeral-storage, requested: 11811160064, used: 0, capacity: 10737418240"},
		{"too many huge pages", "file", asks("hugepages-2Mi: 6Mi"), "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, capacity: 4194304"},
		{"huge pages of a size that is not there", "file", asks("hugepages-1Gi: 1Gi"), "OutOfhugepages-1Gi: Node didn't have enough resource: hugepages-1Gi, requested: 1073741824, used: 0, capacity: 0"},
		{"C_1_31_4a a resource that is not listed", "file", asks("example.com/gpu: 4"), ""},
		{"C_1_31_4a the first of several", "file", asks("memory: 2Gi, cpu: 3, ephemeral-storage: 1Ti") + ", nodeSelector: {disk: ssd}", "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{"limits are not requests", "file", "containers: [{name: c, image: i, resources: {limits: {cpu: 8}, requests: {cpu: 1}}}]", ""},
		{"containers together", "file", "containers: [{name: a, image: i, resources: {requests: {cpu: 1500m}}}, {name: b, image: i, resources: {requests: {cpu: 600m}}}]", "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000"},
		{"init containers one by one", "file", asks("cpu: 2") + ", initContainers: [{name: a, image: i, resources: {requests: {cpu: 2}}}, {name: b, image: i, resources: {requests: {cpu: 2}}}]", ""},
		{"a large init container", "file", asks("cpu: 1") + ", initContainers: [{name: a, image: i, resources: {requests: {cpu: 3}}}]", "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},
		{"a sidecar beside the containers", "file", asks("cpu: 1500m") + ", initContainers: [{name: a, image: i, restartPolicy: Always, resources: {requests: {cpu: 1}}}]", "OutOfcpu: Node didn't have enough resource: cpu, requested: 2500, used: 0, capacity: 2000"},
		{"an init container beside the sidecar before it", "file", asks("cpu: 100m") + ", initContainers: [{name: a, image: i, restartPolicy: Always, resources: {requests: {cpu: 1}}}, {name: b, image: i, resources: {requests: {cpu: 1500m}}}]", "OutOfcpu: Node didn't have enough resource: cpu, requested: 2500, used: 0, capacity: 2000"},
		{"overhead", "file", asks("cpu: 1900m") + ", overhead: {cpu: 200m}", "OutOfcpu: Node didn't have enough resource: cpu, requested: 2100, used: 0, capacity: 2000"},
		{"pod-level huge pages", "file", "resources: {requests: {hugepages-2Mi: 6Mi}, limits: {hugepages-2Mi: 6Mi}}", "OutOfhugepages-2Mi: Node didn't have enough resource: hugepages-2Mi, requested: 6291456, used: 0, capacity: 4194304"},
		{"overhead beside pod-level requests", "file", "resources: {requests: {memory: 1000Mi}}, overhead: {memory: 25Mi}", "OutOfmemory: Node didn't have enough resource: memory, requested: 1074790400, used: 0, capacity: 1073741824"},
		{"pod-level requests", "file", "resources: {requests: {cpu: 3}}", "OutOfcpu: Node didn't have enough resource: cpu, requested: 3000, used: 0, capacity: 2000"},

		{"node selector", "file", "nodeSelector: {disk: hdd}", ""},
		{"another value", "file", "nodeSelector: {disk: ssd}", "NodeAffinity: the node selector asks for disk=ssd, and this node has disk=hdd"},
		{"no such label", "file", "nodeSelector: {disk: hdd, zone: a}", "NodeAffinity: the node selector asks for zone=a, and this node has no such label"},
		{"affinity", "file", fmt.Sprintf(required, "matchExpressions: [{key: disk, operator: In, values: [ssd, hdd]}, {key: zone, operator: DoesNotExist}]"), ""},
		{"affinity to another", "file", fmt.Sprintf(required, "matchExpressions: [{key: disk, operator: NotIn, values: [hdd]}]"), "NodeAffinity: the labels of this node do not match the pod's node affinity"},
		{"affinity to this name", "file", fmt.Sprintf(required, "matchFields: [{key: metadata.name, operator: In, values: [n1]}]"), ""},
		{"affinity to another name", "file", fmt.Sprintf(required, "matchFields: [{key: metadata.name, operator: In, values: [n2]}]"), "NodeAffinity: the labels of this node do not match the pod's node affinity"},
		{"an affinity with an unknown operator", "file", fmt.Sprintf(required, "matchExpressions: [{key: disk, operator: Near, values: [hdd]}]"), "NodeAffinity: the labels of this node do not match the pod's node affinity"},
		{"preferred is not required", "file", "affinity: {nodeAffinity: {preferredDuringSchedulingIgnoredDuringExecution: [{weight: 1, preference: {matchExpressions: [{key: disk, operator: In, values: [ssd]}]}}]}}", ""},

		{"for this node", "file", "nodeName: n1", ""},
		{"for another node", "file", "nodeName: n2", "NodeName: pod is for node n2, this is n1"},
		{"selector before name", "file", "nodeName: n2, nodeSelector: {disk: ssd}", "NodeAffinity: the node selector asks for disk=ssd, and this node has disk=hdd"},

		{"a static pod tolerates all", "http", "", ""},
		{"a server's pod does not", "api", "", "TaintToleration: the pod does not tolerate this node's taint hot=yes:NoExecute"},
		{"unless it says so", "api", "tolerations: [{key: hot, operator: Exists, effect: NoExecute}]", ""},
		{"or does for a while", "api", "tolerations: [{key: hot, value: 'yes', effect: NoExecute, tolerationSeconds: 3}]", ""},
		{"another effect", "api", "tolerations: [{key: hot, operator: Exists, effect: NoSchedule}]", "TaintToleration: the pod does not tolerate this node's taint hot=yes:NoExecute"},
		{"ports before taints", "api", "containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 80}]}]", "NodePorts: host port 80/TCP is taken by pod default/web"},
	} {
		t.Run(strings.ReplaceAll(c.name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			admitted := []*pod.Spec{sized(t, "web", "file", "containers: [{name: c, image: i, ports: [{containerPort: 80, hostPort: 80}]}]")}
			if got := refusalOf(sized(t, "p", c.source, c.spec), admitted, node()); got != c.want {
				t.Errorf("%q, want %q", got, c.want)
			}
		})
	}
}

// TestC_1_31_1_AdmittedPodsCount: the requests of admitted pods are in use. A pod that is judged
// earlier takes its share from later ones; a refused pod takes nothing.
//
// Shows: C-1.31.1
func TestC_1_31_1_AdmittedPodsCount(t *testing.T) {
	t.Parallel()
	node := plan.Node{Allocatable: amounts("cpu", "2")}
	admitted := []*pod.Spec{sized(t, "old", "file", asks("cpu: 1"))}
	large, first, second := sized(t, "a", "file", asks("cpu: 3")), sized(t, "b", "file", asks("cpu: 600m")), sized(t, "c", "file", asks("cpu: 500m"))
	ok, refused := plan.Admit([]*pod.Spec{second, large, first}, admitted, node)
	if len(ok) != 1 || ok[0] != first {
		t.Errorf("admitted %v, want b alone", ok)
	}
	var got []string
	for _, r := range refused {
		got = append(got, r.Spec.Name+" "+r.Reason+" "+r.Message)
	}
	want := "a OutOfcpu Node didn't have enough resource: cpu, requested: 3000, used: 1000, capacity: 2000; c OutOfcpu Node didn't have enough resource: cpu, requested: 500, used: 1600, capacity: 2000"
	if strings.Join(got, "; ") != want {
		t.Errorf("%q, want %q", got, want)
	}
	if _, refused := plan.Admit([]*pod.Spec{second}, []*pod.Spec{large, first}, node); len(refused) != 1 {
		t.Error("admitted pods that request more than the node has leave room for another")
	}
	if _, refused := plan.Admit([]*pod.Spec{sized(t, "d", "file", asks("cpu: 0"))}, []*pod.Spec{large, first}, node); len(refused) != 0 {
		t.Errorf("a pod that asks for none of it: %v", refused)
	}
	if quantity := admitted[0].Pod.Spec.Containers[0].Resources.Requests[v1.ResourceCPU]; quantity.String() != "1" {
		t.Errorf("the request of an admitted pod is %s now", &quantity)
	}
}

// TestC_1_31_5_AdmittedPodsAreNotJudgedAgain: an admitted pod stays admitted, however the node has
// changed (P8).
//
// Shows: C-1.31.5
func TestC_1_31_5_AdmittedPodsAreNotJudgedAgain(t *testing.T) {
	t.Parallel()
	admitted := []*pod.Spec{sized(t, "old", "api", "nodeName: n2, nodeSelector: {disk: ssd}, os: {name: windows}, "+asks("cpu: 9"))}
	ok, refused := plan.Admit([]*pod.Spec{sized(t, "new", "file", "")}, admitted, plan.Node{Name: "n1", OS: "linux", Allocatable: amounts("cpu", "2")})
	if len(ok) != 1 || len(refused) != 0 {
		t.Errorf("%d admitted, refused %v", len(ok), refused)
	}
}

// TestC_1_15_1_FinalForServersAlone: a controller replaces a Failed pod, but a manifest stays
// the same.
//
// Shows: C-1.15.1
func TestC_1_15_1_FinalForServersAlone(t *testing.T) {
	t.Parallel()
	for _, source := range []string{"api", "file", "http", "etcd", "stdin"} {
		_, refused := plan.Admit([]*pod.Spec{sized(t, "p", source, "nodeName: n2")}, nil, plan.Node{Name: "n1"})
		if len(refused) != 1 || refused[0].Final != (source == "api") {
			t.Errorf("%s: %+v", source, refused)
		}
	}
}

// TestSafeSysctlsOfAKernel compares the list with the kernels that made each sysctl a pod's
// own (contract, appendix F).
func TestSafeSysctlsOfAKernel(t *testing.T) {
	t.Parallel()
	all := map[string]string{ // by the release before which the sysctl is not safe
		"kernel.shm_rmid_forced": "", "net.ipv4.ip_local_port_range": "", "net.ipv4.tcp_syncookies": "",
		"net.ipv4.ping_group_range": "", "net.ipv4.ip_unprivileged_port_start": "",
		"net.ipv4.ip_local_reserved_ports": "3.16.0",
		"net.ipv4.tcp_keepalive_time":      "4.5.0-rc1", "net.ipv4.tcp_keepalive_intvl": "4.5.0", "net.ipv4.tcp_keepalive_probes": "4.5.0",
		"net.ipv4.tcp_fin_timeout": "4.6.0", "net.ipv4.tcp_notsent_lowat": "4.6.0",
		"net.ipv4.tcp_rmem": "4.15.0-1084-x", "net.ipv4.tcp_wmem": "4.15.18", "net.ipv4.tcp_slow_start_after_idle": "4.15.0",
	}
	for name, since := range all {
		p := sized(t, "p", "file", "securityContext: {sysctls: [{name: "+name+", value: '1'}]}")
		for kernel, safe := range map[string]bool{"": since == "", "unknown": since == "", "3.10.0-1160.el7": since == "", "6.18.44+": true} {
			if got := refusalOf(p, nil, plan.Node{Kernel: kernel}); (got == "") != safe {
				t.Errorf("%s on %q: %q", name, kernel, got)
			}
		}
		if since != "" {
			if got := refusalOf(p, nil, plan.Node{Kernel: since}); got != "" {
				t.Errorf("%s on %s: %q", name, since, got)
			}
		}
	}
}

// Under MemoryPressure alone only a BestEffort pod that does not tolerate it is refused. Under
// other pressure every pod is, except critical pods and, on a node of a cluster, static pods.
//
// Shows: C-1.31, C-1.35.8
func TestAdmit_Pressure(t *testing.T) {
	memory, disk := v1.NodeMemoryPressure, v1.NodeDiskPressure
	const tolerates = "tolerations: [{key: node.kubernetes.io/memory-pressure, operator: Exists, effect: NoSchedule}], containers: [{name: c, image: i}]"
	for _, row := range []struct {
		source, spec string
		cluster      bool
		under        []v1.NodeConditionType
		admitted     bool
	}{
		{"file", "", false, nil, true},
		{"file", "", false, []v1.NodeConditionType{memory}, false},
		{"file", "", true, []v1.NodeConditionType{memory}, true},
		{"api", "", true, []v1.NodeConditionType{memory}, false},
		{"api", tolerates, true, []v1.NodeConditionType{memory}, true},
		{"api", tolerates, true, []v1.NodeConditionType{disk, memory}, false},
		{"file", "containers: [{name: c, image: i, resources: {requests: {cpu: 1m}}}]", false, []v1.NodeConditionType{memory}, true},
		{"file", "containers: [{name: c, image: i, resources: {requests: {cpu: 1m}}}]", false, []v1.NodeConditionType{disk}, false},
		{"api", "priority: 2000000000, containers: [{name: c, image: i}]", true, []v1.NodeConditionType{disk}, true},
	} {
		spec := sized(t, "p", row.source, row.spec)
		ok, refused := plan.Admit([]*pod.Spec{spec}, nil, plan.Node{Pressure: row.under, InCluster: row.cluster})
		if (len(ok) == 1) != row.admitted {
			t.Errorf("%+v: %d admitted, %+v", row, len(ok), refused)
		}
		for _, r := range refused {
			if want := fmt.Sprintf("The node had condition: %v. ", row.under); r.Reason != "Evicted" || r.Message != want || r.Final != (row.source == "api") {
				t.Errorf("%+v: %s %q final=%t", row, r.Reason, r.Message, r.Final)
			}
		}
	}
}
