//go:build linux

package support

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hosts is the pod's /etc/hosts.
func (n *node) hosts() string {
	text, err := os.ReadFile(n.mount("/etc/hosts").GetHostPath())
	if err != nil {
		return err.Error()
	}
	return string(text)
}

func (n *node) says(file, line string) error {
	for l := range strings.Lines(file) {
		if strings.Join(strings.Fields(l), " ") == line {
			return nil
		}
	}
	return fmt.Errorf("no line %q in:\n%s", line, file)
}

func podProofs() []proof {
	return []proof{
		{
			name: "name", rows: "metadata metadata.name metadata.namespace metadata.uid metadata.labels metadata.annotations",
			meta: "name: p, namespace: shop, uid: u-7, labels: {a: b}, annotations: {c: d}",
			look: func(n *node) error {
				b := n.box()
				return errors.Join(is("name", b.GetMetadata().GetName(), "p-n1"), is("namespace", b.GetMetadata().GetNamespace(), "shop"), is("UID", b.GetMetadata().GetUid(), "u-7"),
					is("label", b.GetLabels()["a"], "b"), is("annotation", b.GetAnnotations()["c"], "d"))
			},
		},
		{
			name: "containers in order", rows: "spec spec.initContainers spec.containers",
			spec: "initContainers: [{name: first, image: 'app:1', command: [exit, '0']}]",
			look: func(n *node) error {
				starts := strings.Join(n.calls("StartContainer"), "\n")
				first, main := strings.Index(starts, "/first "), strings.Index(starts, "/main ")
				return holds(first >= 0 && main > first, "starts:\n%s", starts)
			},
		},
		{
			name: "pod restart policy", rows: "spec.restartPolicy", spec: "restartPolicy: Never", container: "command: [exit, '3']",
			look: func(n *node) error { n.pass(time.Minute); return is("phase", n.status().Phase, v1.PodFailed) },
		},
		{
			name: "grace", rows: "spec.terminationGracePeriodSeconds", spec: "terminationGracePeriodSeconds: 7", container: "command: [ignore, term]",
			look: func(n *node) error {
				n.stop()
				n.pass(time.Minute)
				return holds(len(n.calls("grace=7")) > 0, "stops: %v", n.calls("Stop"))
			},
		},
		{
			name: "deadline", rows: "spec.activeDeadlineSeconds", spec: "activeDeadlineSeconds: 20",
			look: func(n *node) error {
				n.pass(2 * time.Minute)
				return is("reason", n.status().Reason, "DeadlineExceeded")
			},
		},
		{
			name: "DNS policy", rows: "spec.dnsPolicy", spec: "dnsPolicy: Default",
			look: func(n *node) error { return is("servers", n.box().GetDnsConfig().GetServers(), []string{"192.0.2.53"}) },
		},
		{
			name: "DNS", rows: "spec.dnsConfig spec.dnsConfig.nameservers spec.dnsConfig.searches spec.dnsConfig.options spec.dnsConfig.options[].name spec.dnsConfig.options[].value",
			spec: "dnsPolicy: None, dnsConfig: {nameservers: [192.0.2.1], searches: [a.test], options: [{name: ndots, value: '3'}]}",
			look: func(n *node) error {
				d := n.box().GetDnsConfig()
				return errors.Join(is("servers", d.GetServers(), []string{"192.0.2.1"}), is("searches", d.GetSearches(), []string{"a.test"}), is("options", d.GetOptions(), []string{"ndots:3"}))
			},
		},
		{
			name: "no links to Services", rows: "spec.enableServiceLinks", spec: "enableServiceLinks: false",
			look: func(n *node) error {
				_, hasHost := n.env()["DB_SERVICE_HOST"]
				return holds(n.ctr() != nil && !hasHost, "environment %v", n.env())
			},
		},
		{
			name: "host name", rows: "spec.hostname spec.subdomain", spec: "hostname: web, subdomain: shop",
			look: func(n *node) error {
				return errors.Join(is("name", n.box().GetHostname(), "web"), n.says(n.hosts(), "10.88.0.3 web.shop.default.svc.cluster.test web"))
			},
		},
		{
			name: "full host name", rows: "spec.setHostnameAsFQDN", spec: "hostname: web, subdomain: shop, setHostnameAsFQDN: true",
			look: func(n *node) error { return is("name", n.box().GetHostname(), "web.shop.default.svc.cluster.test") },
		},
		{
			name: "host name as it is given", rows: "spec.hostnameOverride", spec: "hostnameOverride: web.example.test",
			look: func(n *node) error { return is("name", n.box().GetHostname(), "web.example.test") },
		},
		{
			name: "host aliases", rows: "spec.hostAliases spec.hostAliases[].ip spec.hostAliases[].hostnames", spec: "hostAliases: [{ip: 192.0.2.5, hostnames: [db, db.test]}]",
			look: func(n *node) error { return n.says(n.hosts(), "192.0.2.5 db db.test") },
		},
		{
			name: "namespaces of the node", rows: "spec.hostNetwork spec.hostPID spec.hostIPC", spec: "hostNetwork: true, hostPID: true, hostIPC: true",
			look: func(n *node) error {
				o := n.security().GetNamespaceOptions()
				const of = runtimeapi.NamespaceMode_NODE
				return errors.Join(is("network", o.GetNetwork(), of), is("processes", o.GetPid(), of), is("IPC", o.GetIpc(), of))
			},
		},
		{
			name: "processes shared", rows: "spec.shareProcessNamespace", spec: "shareProcessNamespace: true",
			look: func(n *node) error {
				return is("processes", n.security().GetNamespaceOptions().GetPid(), runtimeapi.NamespaceMode_POD)
			},
		},
		{
			name: "users of its own", rows: "spec.hostUsers", spec: "hostUsers: false",
			look: func(n *node) error {
				return is("users", n.security().GetNamespaceOptions().GetUsernsOptions().GetMode(), runtimeapi.NamespaceMode_POD)
			},
		},
		{
			name: "runtime class", rows: "spec.runtimeClassName", spec: "runtimeClassName: strong",
			look: func(n *node) error {
				_, handler := n.rt.SandboxConfig(n.key)
				return is("handler", handler, "kata")
			},
		},
		{
			name: "overhead", rows: "spec.overhead", spec: "overhead: {cpu: 500m}",
			look: func(n *node) error { return is("shares", n.box().GetLinux().GetOverhead().GetCpuShares(), 512) },
		},
		{
			name: "resources of the pod", rows: "spec.resources spec.resources.limits spec.resources.requests", spec: "resources: {limits: {memory: 64Mi, cpu: 1}, requests: {cpu: 500m}}",
			look: func(n *node) error {
				r := n.box().GetLinux().GetResources()
				return errors.Join(is("shares", r.GetCpuShares(), 512), is("memory", r.GetMemoryLimitInBytes(), 64<<20), is("container's memory", n.ctr().GetLinux().GetResources().GetMemoryLimitInBytes(), 64<<20))
			},
		},
		{
			name: "pull secrets", rows: "spec.imagePullSecrets spec.imagePullSecrets[].name", spec: "imagePullSecrets: [{name: reg}]",
			container: "image: reg.test/app:1, imagePullPolicy: Always",
			with:      `{apiVersion: v1, kind: Secret, type: kubernetes.io/dockerconfigjson, metadata: {name: reg}, stringData: {.dockerconfigjson: '{"auths":{"reg.test":{"username":"me","password":"pw"}}}'}}`,
			look: func(n *node) error {
				n.pass(time.Minute)
				n.mu.Lock()
				defer n.mu.Unlock()
				return holds(len(n.pulls) > 0 && n.pulls[0].GetAuth().GetUsername() == "me", "pulls: %v", n.pulls)
			},
		},
		{
			name: "readiness gates", rows: "spec.readinessGates spec.readinessGates[].conditionType", spec: "readinessGates: [{conditionType: example.test/gate}]",
			look: func(n *node) error {
				c := n.condition(v1.PodReady)
				return holds(c.Status == v1.ConditionFalse && strings.Contains(c.Message, `"example.test/gate"`), "condition %+v", c)
			},
		},
	}
}

// refused says that admission has refused the pod for this reason.
func (n *node) refused(reason string) error {
	return errors.Join(is("reason", n.status().Reason, reason), holds(n.box() == nil, "it runs"))
}

func (n *node) runs() error { return holds(n.state().State.Running != nil, "%+v", n.status()) }

func nodeProofs() (all []proof) {
	const (
		required = "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution"
		terms    = required + ".nodeSelectorTerms"
	)
	affinity := func(list, expression string) string {
		return "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{" + list + ": [" + expression + "]}]}}}"
	}
	for _, l := range []struct{ list, key, has string }{{"matchExpressions", "disk", "hdd"}, {"matchFields", "metadata.name", "n1"}} {
		at := terms + "[]." + l.list
		all = append(all,
			proof{
				name: "affinity by " + l.list, rows: "spec.affinity spec.affinity.nodeAffinity " + required + " " + terms + " " + at + "[].key " + at + "[].operator " + at + "[].values",
				spec: affinity(l.list, "{key: "+l.key+", operator: NotIn, values: ["+l.has+"]}"),
				look: func(n *node) error { return n.refused("NodeAffinity") },
			},
			proof{
				name: "affinity that holds by " + l.list, rows: at, spec: affinity(l.list, "{key: "+l.key+", operator: In, values: ["+l.has+"]}"),
				look: func(n *node) error { return n.runs() },
			},
		)
	}
	return append(all,
		proof{
			name: "node selector", rows: "spec.nodeSelector", spec: "nodeSelector: {disk: ssd}",
			look: func(n *node) error { return n.refused("NodeAffinity") },
		},
		proof{
			name: "node name", rows: "spec.nodeName", same: "spec.nodeName", spec: "nodeName: n1",
			look: func(n *node) error { return n.runs() },
		},
		proof{
			name: "system", rows: "spec.os spec.os.name", spec: "os: {name: windows}",
			look: func(n *node) error { return n.refused("PodOSNotSupported") },
		},
		proof{
			name: "no service account", rows: "spec.automountServiceAccountToken", same: "spec.automountServiceAccountToken", spec: "automountServiceAccountToken: false",
			look: func(n *node) error { return n.runs() },
		},
		proof{
			name: "tolerations", rows: "spec.tolerations spec.tolerations[].key spec.tolerations[].value spec.tolerations[].effect", same: "spec.tolerations[].key spec.tolerations[].effect", api: true,
			spec: "tolerations: [{key: hot, operator: Equal, value: very, effect: NoExecute}]",
			look: func(n *node) error { return n.runs() },
		},
		proof{
			name: "tolerations of any value", rows: "spec.tolerations[].operator", api: true, spec: "tolerations: [{key: hot, operator: Exists}]",
			look: func(n *node) error { return n.runs() },
		},
		proof{
			name: "priority class", rows: "spec.priorityClassName", spec: "priorityClassName: system-node-critical",
			look: func(n *node) error { return is("OOM score", n.ctr().GetLinux().GetResources().GetOomScoreAdj(), -997) },
		},
		proof{
			name: "priority", rows: "spec.priority", spec: "priority: 5", container: "ports: [{containerPort: 80, hostPort: 80}]",
			with: "{apiVersion: v1, kind: Pod, metadata: {name: rival}, spec: {priority: 3, containers: [{name: c, image: 'app:1', ports: [{containerPort: 80, hostPort: 80}]}]}}",
			look: func(n *node) error { return n.has("p-n1") },
		},
	)
}

// has says that this pod has a sandbox, of two.
func (n *node) has(name string) error {
	return holds(strings.Contains(n.rt.State(), "default/"+name+" sandbox"), "runtime:\n%s", n.rt.State())
}
