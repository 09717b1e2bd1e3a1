package kube

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/nodectl/nodectl/test/node"
)

// TestC_1_25_AddOns: a cluster's add-ons work on nodectl as on a kubelet: CoreDNS answers for
// services and pods, metrics-server reads the node; and kubectl shows everything of a pod.
//
// Shows: C-1.25
func TestC_1_25_AddOns(t *testing.T) {
	t.Parallel()
	shared(t).beside(t,
		part{"C_1_16_ClusterDNS", (*world).clusterDNS},
		part{"C_1_14_5_ServiceAccount", (*world).serviceAccount},
		part{"C_1_12_ReadinessGates", (*world).readinessGates},
		part{"C_1_12_Addresses", (*world).addresses},
		part{"C_1_19_Resize", (*world).resize},
		part{"C_1_40_6_Top", (*world).top},
	)
}

// burns uses all the CPU of its limit, and holds memory that it has touched.
const (
	burns = `apiVersion: v1
kind: Pod
metadata: {name: burns}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "while :; do :; done"], resources: {limits: {cpu: 100m, memory: 16Mi}}}]
`
	holds = `apiVersion: v1
kind: Pod
metadata: {name: holds}
spec:
  terminationGracePeriodSeconds: 0
  containers: [{name: main, image: "` + node.Stamp + `", args: [alloc, "50", forever]}]
`
)

// clusterDNS: names of services, of a StatefulSet's pods and of any pod, resolved in a pod
// with nodectl's resolv.conf.
func (w *world) clusterDNS() {
	w.apply(`apiVersion: v1
kind: Service
metadata: {name: named}
spec: {clusterIP: None, selector: {app: named}, ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: front}
spec: {clusterIP: 10.96.0.77, selector: {app: named}, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: named}
spec:
  serviceName: named
  replicas: 2
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: named}}
  template:
    metadata: {labels: {app: named}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: main, image: ` + busybox + `, command: [sh, -c, "hostname -f > /tmp/index.html; httpd -f -p 80 -h /tmp"]}]
`)
	w.apply(clientManifests)
	w.pod("asks", sleeps)
	w.awaitReady("client")
	w.awaitRollout("statefulset/named")
	w.awaitRollout("deployment/coredns", "-n", "kube-system")
	if out := w.kubectl("exec", "asks", "--", "cat", "/etc/resolv.conf"); !strings.Contains(out, "nameserver "+dnsAddress+"\n") ||
		!strings.Contains(out, "search "+w.namespace+".svc.cluster.local svc.cluster.local cluster.local") || !strings.Contains(out, "options ndots:5") {
		w.Errorf("resolv.conf is %q", out)
	}
	address := func(pod string) string {
		return w.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIP}")
	}
	own := address("asks")
	for name, want := range map[string]string{
		"kubernetes.default.svc.cluster.local":                                                      "10.96.0.1",
		"front." + w.namespace + ".svc.cluster.local":                                               "10.96.0.77",
		"kube-dns.kube-system.svc.cluster.local":                                                    dnsAddress,
		"named-0.named." + w.namespace + ".svc.cluster.local":                                       address("named-0"),
		"named-1.named." + w.namespace + ".svc.cluster.local":                                       address("named-1"),
		strings.ReplaceAll(own, ".", "-") + "." + w.namespace + ".pod.cluster.local":                own,
		strings.ReplaceAll(address("named-1"), ".", "-") + "." + w.namespace + ".pod.cluster.local": address("named-1"),
	} {
		w.await(func() error {
			out, err := w.try("exec", "asks", "--", "nslookup", "-type=a", name)
			if err == nil && !strings.Contains(out, "Name:\t"+name+"\nAddress: "+want+"\n") {
				err = fmt.Errorf("%s, want %s: %q", name, want, out)
			}
			return err
		})
	}
	w.await(func() error {
		out, err := w.try("exec", "asks", "--", "nslookup", "-type=a", "missing."+w.namespace+".svc.cluster.local")
		if err == nil {
			w.Fatalf("an unknown name: %q", out)
		}
		if !strings.Contains(out+err.Error(), "NXDOMAIN") {
			return fmt.Errorf("an unknown name: %w %q", err, out)
		}
		return nil
	})
	// Through the search list, and the servers behind the names.
	for server, want := range map[string]string{
		"http://named-1.named":                                "named-1.named." + w.namespace + ".svc.cluster.local\n",
		"http://named-0.named." + w.namespace:                 "named-0.named." + w.namespace + ".svc.cluster.local\n",
		"http://front." + w.namespace + ".svc.cluster.local.": "",
		"http://front": "",
	} {
		w.await(func() error {
			out, err := w.inside("get", "--raw", "/", "--server="+server)
			if err == nil && (!strings.HasSuffix(out, want) || !strings.HasPrefix(out, "named-")) {
				err = fmt.Errorf("%s says %q", server, out)
			}
			return err
		})
	}
}

// inside runs kubectl in the pod client.
func (w *world) inside(args ...string) (string, error) {
	w.Helper()
	return w.try(append([]string{"exec", "client", "--", "/bin/kubectl"}, args...)...)
}

// serviceAccount: a pod connects to the API server by its name, trusts only its account's CA,
// and is authenticated as its token says.
func (w *world) serviceAccount() {
	w.apply(clientManifests)
	w.awaitReady("client")
	w.await(func() error {
		out, err := w.inside("auth", "whoami", "-o", "jsonpath={.status.userInfo.username} {.status.userInfo.extra['authentication\\.kubernetes\\.io/pod-name'][0]} {.status.userInfo.extra['authentication\\.kubernetes\\.io/node-name'][0]}")
		if err == nil && out != "system:serviceaccount:"+w.namespace+":default client "+w.name {
			err = fmt.Errorf("the pod is %q", out)
		}
		return err
	})
	w.await(func() error {
		out, err := w.inside("get", "secrets")
		if err == nil {
			w.Fatalf("secrets without a role: %q", out)
		}
		if !strings.Contains(err.Error(), "Forbidden") {
			return fmt.Errorf("secrets without a role: %w", err)
		}
		return nil
	})
}

// top: kubectl top shows metrics-server's reading of the node.
func (w *world) top() {
	w.apply(burns + "---\n" + holds)
	w.awaitReady("burns", "holds")
	w.awaitRollout("deployment/metrics-server", "-n", "kube-system")
	w.awaitOutput("True", "get", "apiservice", "v1beta1.metrics.k8s.io", "-o", `jsonpath={.status.conditions[?(@.type=="Available")].status}`)
	row := func(args ...string) ([]string, error) {
		out, err := w.try(slices.Concat([]string{"top"}, args, []string{"--no-headers"})...)
		if err != nil {
			return nil, err
		}
		f := strings.Fields(out)
		if len(f) < 3 {
			return nil, fmt.Errorf("%q", out)
		}
		return f, nil
	}
	millis := func(s string) int64 { q := resource.MustParse(s); return q.MilliValue() }
	mebi := func(s string) int64 { q := resource.MustParse(s); return q.Value() >> 20 }
	w.await(func() error {
		f, err := row("pod", "burns")
		if err != nil {
			return err
		}
		if is := millis(f[1]); is == 0 {
			return fmt.Errorf("the pod that burns CPU: %v", f)
		}
		return nil
	})
	w.await(func() error {
		f, err := row("pod", "holds")
		if err == nil && (mebi(f[2]) < 50 || mebi(f[2]) > 62) {
			err = fmt.Errorf("the pod that holds 50Mi: %v", f)
		}
		return err
	})
	w.await(func() error {
		f, err := row("pod", "burns", "--containers")
		if err == nil && (len(f) < 4 || f[1] != "main" || mebi(f[3]) > 16) {
			err = fmt.Errorf("by containers: %v", f)
		}
		return err
	})
	w.await(func() error {
		f, err := row("node", w.name)
		if err != nil {
			return err
		}
		if len(f) != 5 || f[0] != w.name || millis(f[1]) == 0 || mebi(f[3]) < 200 || strings.Trim(f[4], "0123456789") != "%" {
			return fmt.Errorf("the node: %v", f)
		}
		return nil
	})
	// The same metrics from the node itself, without metrics-server.
	raw := w.kubectl("get", "--raw", "/api/v1/nodes/"+w.name+"/proxy/metrics/resource")
	for _, name := range []string{"node_cpu_usage_seconds_total", "pod_memory_working_set_bytes", "container_cpu_usage_seconds_total", "container_start_time_seconds"} {
		if !bytes.Contains([]byte(raw), []byte("\n"+name)) {
			w.Errorf("/metrics/resource has no %s", name)
		}
	}
}
