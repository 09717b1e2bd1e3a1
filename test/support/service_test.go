//go:build linux

package support

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/podspec"
	"github.com/nodectl/nodectl/pkg/service"
	"github.com/nodectl/nodectl/pkg/source"
)

// serviceDoc is a manifest of a Service that is valid.
func serviceDoc() map[string]any {
	return yamlOf("apiVersion: v1, kind: Service, metadata: {name: p}, spec: {selector: {app: p}, ports: [{port: 80}]}")
}

// parseService reads a manifest of a Service with these parts beside the required ones.
func parseService(t *testing.T, part map[string]any) (source.File, []pod.Problem) {
	t.Helper()
	text, err := json.Marshal(merged(serviceDoc(), part))
	if err != nil {
		t.Fatal(err)
	}
	return manifest.Parse(text, manifest.Options{Node: "n1", Source: "file", Location: "/m", File: "/m/s.yaml", Static: true})
}

// TestRejected_OfAService: a Service with a field that is rejected is rejected by the field's name and
// place, and without it is not.
func TestRejected_OfAService(t *testing.T) {
	t.Parallel()
	rows := 0
	for _, f := range podspec.ServiceFields() {
		if f.Support != podspec.Rejected {
			continue
		}
		rows++
		file, _ := parseService(t, writtenIn(t, reflect.TypeFor[v1.Service](), f.Path))
		at := slices.IndexFunc(file.Problems, func(p pod.Problem) bool { return p.Path == f.Path })
		switch {
		case len(file.Objects) > 0 || at < 0:
			t.Errorf("%s: %d objects, problems %v", f.Path, len(file.Objects), file.Problems)
		case file.Problems[at].Line != 1 || file.Problems[at].Column == 0:
			t.Errorf("%s: no place: %+v", f.Path, file.Problems[at])
		}
	}
	if file, notices := parseService(t, nil); len(file.Objects) != 1 || len(notices) > 0 || rows < 4 {
		t.Errorf("%d rows; without any: %v, notices %v", rows, file.Problems, notices)
	}
}

// TestIgnored_OfAService: a Service with an ignored field is read, with one notice for a field of its
// spec.
func TestIgnored_OfAService(t *testing.T) {
	t.Parallel()
	valid := map[string]string{
		"spec.healthCheckNodePort":   "spec: {type: LoadBalancer, externalTrafficPolicy: Local, healthCheckNodePort: 30100}",
		"spec.loadBalancerIP":        "spec: {type: LoadBalancer, loadBalancerIP: 192.0.2.7}",
		"spec.trafficDistribution":   "spec: {trafficDistribution: PreferClose}",
		"spec.ports[].appProtocol":   "spec: {ports: [{port: 80, appProtocol: http}]}",
		"metadata.ownerReferences":   ignored["metadata.ownerReferences"],
		"metadata.creationTimestamp": "metadata: {creationTimestamp: '2026-01-01T00:00:00Z'}",
	}
	for _, f := range podspec.ServiceFields() {
		if f.Support != podspec.Inert {
			continue
		}
		part := yamlOf(valid[f.Path])
		if valid[f.Path] == "" {
			part = writtenIn(t, reflect.TypeFor[v1.Service](), f.Path)
		}
		file, notices := parseService(t, part)
		var want, got []string
		if strings.HasPrefix(f.Path, "spec.") {
			want = []string{strings.ReplaceAll(f.Path, "[]", "[0]") + " is ignored: " + f.Note}
		}
		for _, n := range notices {
			got = append(got, n.Msg)
		}
		if len(file.Objects) != 1 || !slices.Equal(got, want) {
			t.Errorf("%s: problems %v, notices %q, want %q", f.Path, file.Problems, got, want)
		}
	}
}

// serviceCase shows the effect of fields of a Service: the Service with spec differs from the
// Service without.
type serviceCase struct{ name, rows, with, without string }

func serviceCases() []serviceCase {
	const balancer = "type: LoadBalancer"
	return []serviceCase{
		{"a port", "spec spec.ports spec.ports[].port", "ports: [{port: 81}]", ""},
		{"name of a port", "spec.ports[].name", "ports: [{port: 80, name: http}]", ""},
		{"protocol", "spec.ports[].protocol", "ports: [{port: 80, protocol: UDP}]", ""},
		{"target port", "spec.ports[].targetPort", "ports: [{port: 80, targetPort: web}]", ""},
		{"node port", "spec.ports[].nodePort", "type: NodePort, ports: [{port: 80, nodePort: 30123}]", "type: NodePort"},
		{"selector", "spec.selector", "selector: {app: p, tier: front}", ""},
		{"cluster IP", "spec.clusterIP", "clusterIP: 10.96.0.7", ""},
		{"headless", "spec.clusterIP", "clusterIP: None", ""},
		{"cluster IPs", "spec.clusterIPs", "clusterIP: 10.96.0.7, clusterIPs: [10.96.0.7]", ""},
		{"type", "spec.type", balancer, ""},
		{"external IPs", "spec.externalIPs", "externalIPs: [203.0.113.7]", ""},
		{"affinity", "spec.sessionAffinity", "sessionAffinity: ClientIP", ""},
		{"affinity for a time", "spec.sessionAffinityConfig spec.sessionAffinityConfig.clientIP spec.sessionAffinityConfig.clientIP.timeoutSeconds", "sessionAffinity: ClientIP, sessionAffinityConfig: {clientIP: {timeoutSeconds: 7}}", "sessionAffinity: ClientIP"},
		{"source ranges", "spec.loadBalancerSourceRanges", balancer + ", loadBalancerSourceRanges: [192.0.2.0/24]", balancer},
		{"external name", "spec.externalName", "type: ExternalName, externalName: b.example.com", "type: ExternalName, externalName: a.example.com"},
		{"not ready", "spec.publishNotReadyAddresses", "publishNotReadyAddresses: true", ""},
		{"families", "spec.ipFamilies", "ipFamilies: [IPv6]", ""},
		{"both families", "spec.ipFamilyPolicy", "ipFamilyPolicy: RequireDualStack", ""},
		{"class", "spec.loadBalancerClass", balancer + ", loadBalancerClass: a.com/b", balancer},
		{"no node ports", "spec.allocateLoadBalancerNodePorts", balancer + ", allocateLoadBalancerNodePorts: false", balancer},
		{"external policy", "spec.externalTrafficPolicy", balancer + ", externalTrafficPolicy: Local", balancer},
		{"internal policy", "spec.internalTrafficPolicy", "internalTrafficPolicy: Local", ""},
	}
}

// decided returns the state of a Service with these parts of its spec, as text.
func decided(t *testing.T, spec string) string {
	t.Helper()
	file, _ := parseService(t, yamlOf("spec: {"+spec+"}"))
	if len(file.Objects) != 1 {
		t.Fatalf("%s: %v", spec, file.Problems)
	}
	ready := func(name, addr string, ready bool, labels map[string]string) *service.Pod {
		labels["app"] = "p"
		return &service.Pod{
			Namespace: "default", Name: name, Labels: labels, Ready: ready, Addrs: []netip.Addr{netip.MustParseAddr(addr)},
			Ports: []service.EndpointPort{{Name: "web", Protocol: v1.ProtocolTCP, Port: 8080}},
		}
	}
	d := service.Decide(service.Input{
		Services: file.Objects, NodePorts: service.DefaultNodePorts(), Nodes: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Now: time.Unix(0, 0),
		CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00::/112")},
		Pods: []*service.Pod{
			ready("a", "10.88.0.2", true, map[string]string{}), ready("b", "10.88.0.3", true, map[string]string{"tier": "front"}), ready("c", "10.88.0.4", false, map[string]string{}),
		},
	})
	if len(d.Services) != 1 {
		t.Fatalf("%s: %+v", spec, d.Refused)
	}
	text, err := json.Marshal(struct {
		Service *v1.Service
		View    *service.View
		Rules   []service.Rule
	}{d.Services[0].Service, d.Services[0].View, d.Services[0].Rules})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestServices runs each case with the field and without it. The Services differ in their rules,
// their DNS records or the output of commands.
func TestServices(t *testing.T) {
	t.Parallel()
	for _, c := range serviceCases() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if with, without := decided(t, c.with), decided(t, c.without); with == without {
				t.Errorf("%s changes nothing: %s", c.with, with)
			}
		})
	}
}

// TestServices_KeepTheirMetadata: name, namespace, labels and annotations.
func TestServices_KeepTheirMetadata(t *testing.T) {
	t.Parallel()
	file, _ := parseService(t, yamlOf("metadata: {name: web, namespace: shop, labels: {a: b}, annotations: {c: d}}"))
	if len(file.Objects) != 1 {
		t.Fatal(file.Problems)
	}
	meta := metaOf(file.Objects[0])
	if got := fmt.Sprintf("%s %s %s %v %v", file.Objects[0].Key, meta.GetName(), meta.GetNamespace(), meta.GetLabels(), meta.GetAnnotations()); got != "shop/web web shop map[a:b] map[c:d]" {
		t.Error(got)
	}
}

// serviceProofs returns the names of the tests that show a field.
func serviceProofs(path string) []string {
	if strings.HasPrefix(path, "metadata") {
		return []string{"TestServices_KeepTheirMetadata"}
	}
	var out []string
	for _, c := range serviceCases() {
		if slices.Contains(strings.Fields(c.rows), path) {
			out = append(out, "TestServices/"+strings.ReplaceAll(c.name, " ", "_"))
		}
	}
	return out
}

// TestServices_EveryFieldIsShown: each supported field has a case.
func TestServices_EveryFieldIsShown(t *testing.T) {
	t.Parallel()
	for _, f := range podspec.ServiceFields() {
		if f.Support == podspec.Honoured && len(serviceProofs(f.Path)) == 0 {
			t.Errorf("%s: no case shows it", f.Path)
		}
	}
}

const servicesHead = `
## Services

Services (` + "`v1`" + `) of every source except an API server take effect on a node without a cluster: see [services](services.md). On a node of a cluster, which has a kubeconfig, nodectl rejects Services in manifests: the cluster's proxy serves Services. A case of ` + "`TestServices`" + ` compares a Service with the field and without it.

| field | support | shown by | note |
|---|---|---|---|
`

const otherKinds = `
## Other kinds

| kind | | why |
|---|---|---|
| ` + "`NetworkPolicy`" + ` | rejected | nodectl does not filter traffic between pods |
| ` + "`Ingress`, `Gateway`" + ` and routes | rejected | run a reverse proxy as a workload, with a Service of type LoadBalancer: see [reverse proxy](howto/reverse-proxy.md) |
| ` + "`Endpoints`, `EndpointSlice`" + ` | rejected | the endpoints of a Service are the pods that it selects |
| ` + "`PodDisruptionBudget`" + ` | ignored, with a notice | there is no other node to which the pods could move |
| ` + "`HorizontalPodAutoscaler`" + ` | ignored, with a notice | the workload keeps ` + "`spec.replicas`" + ` |

` + "`TestParse_KindsBesideServices_AreRejectedOrIgnoredByName`" + ` in ` + "`pkg/manifest`" + ` shows them.
`

// servicesText is the page's part about Services and the kinds beside them.
func servicesText() string {
	var b strings.Builder
	b.WriteString(servicesHead)
	for _, f := range podspec.ServiceFields() {
		proof := strings.Join(serviceProofs(f.Path), "; ")
		switch f.Support {
		case podspec.Rejected:
			proof = "TestRejected_OfAService"
		case podspec.Inert:
			proof = "TestIgnored_OfAService"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", f.Path, workloadSupport(f, false), proof, note(f))
	}
	b.WriteString(otherKinds)
	return b.String()
}
