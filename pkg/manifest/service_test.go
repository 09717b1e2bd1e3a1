package manifest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

const webService = "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  selector: {app: web}\n  ports: [{port: 80}]\n"

// TestService_Valid_HasTheDefaultsOfTheAPI: and its own name, without the node's.
func TestService_Valid_HasTheDefaultsOfTheAPI(t *testing.T) {
	t.Parallel()
	f, warnings := Parse([]byte(webService), options("a.yaml"))
	if len(f.Problems)+len(warnings) > 0 || len(f.Objects) != 1 || f.Incomplete {
		t.Fatalf("%+v %+v", f.Problems, warnings)
	}
	o := f.Objects[0]
	s := o.Object.(*v1.Service)
	if o.Kind != pod.KindService || o.Key != (pod.Key{Namespace: "default", Name: "web"}) || o.Hash == "" || s.Spec.Type != v1.ServiceTypeClusterIP ||
		s.Spec.SessionAffinity != v1.ServiceAffinityNone || s.Spec.Ports[0].Protocol != v1.ProtocolTCP || s.Spec.Ports[0].TargetPort.IntValue() != 80 {
		t.Errorf("%+v", s)
	}
}

// TestService_Mistakes_AreRejectedByFieldAndLine: by the API's own validation.
func TestService_Mistakes_AreRejectedByFieldAndLine(t *testing.T) {
	t.Parallel()
	many := make([]string, 40)
	for i := range many {
		many[i] = fmt.Sprintf("203.0.113.%d", i)
	}
	for name, c := range map[string]struct{ spec, path string }{
		"no ports":          {"selector: {a: b}", "spec.ports"},
		"a port twice":      {"ports: [{name: a, port: 80}, {name: b, port: 80}]", "spec.ports[1]"},
		"unnamed ports":     {"ports: [{port: 80}, {port: 81}]", "spec.ports[0].name"},
		"an unknown type":   {"type: Public, ports: [{port: 80}]", "spec.type"},
		"a node port":       {"ports: [{port: 80, nodePort: 30000}]", "spec.ports[0].nodePort"},
		"a bad cluster IP":  {"clusterIP: 10.96.0.300, ports: [{port: 80}]", "spec.clusterIP"},
		"loopback outside":  {"externalIPs: [127.0.0.1], ports: [{port: 80}]", "spec.externalIPs[0]"},
		"a bad affinity":    {"sessionAffinity: Cookie, ports: [{port: 80}]", "spec.sessionAffinity"},
		"no external name":  {"type: ExternalName", "spec.externalName"},
		"an unknown field":  {"ports: [{port: 80, targetport: 8080}]", "spec.ports[0].targetport"},
		"too many rules":    {"externalIPs: [" + strings.Join(many, ", ") + "], ports: [" + manyPorts(30) + "]", "spec.ports"},
		"finalizers of one": {"ports: [{port: 80}]}\nmetadata: {name: web, finalizers: [a.com/b]", "metadata.finalizers"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			text := "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {" + c.spec + "}\n"
			if strings.Contains(c.spec, "metadata:") {
				text = strings.Replace(text, "metadata: {name: web}\n", "", 1)
			}
			f, _ := Parse([]byte(text), options("a.yaml"))
			at := slices.IndexFunc(f.Problems, func(p pod.Problem) bool { return p.Path == c.path })
			if len(f.Objects) > 0 || at < 0 || f.Problems[at].Line == 0 {
				t.Errorf("%d objects, problems %+v", len(f.Objects), f.Problems)
			}
		})
	}
}

func manyPorts(n int) string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("{name: p%d, port: %d}", i, i+1)
	}
	return strings.Join(all, ", ")
}

// TestService_OnANodeOfACluster_IsRejected: the cluster's proxy serves it.
func TestService_OnANodeOfACluster_IsRejected(t *testing.T) {
	t.Parallel()
	o := options("a.yaml")
	o.Member = true
	f, _ := Parse([]byte(webService), o)
	if len(f.Objects) > 0 || len(f.Problems) != 1 || !strings.Contains(f.Problems[0].Msg, `"Service" does not run from a manifest on a node of a cluster`) {
		t.Errorf("%+v", f.Problems)
	}
}

// TestParse_KindsBesideServices_AreRejectedOrIgnoredByName: with the reason.
func TestParse_KindsBesideServices_AreRejectedOrIgnoredByName(t *testing.T) {
	t.Parallel()
	object := func(version, kind string) string {
		return "apiVersion: " + version + "\nkind: " + kind + "\nmetadata: {name: web}\nspec: {minReplicas: 1}\n"
	}
	for kind, version := range map[string]string{
		"NetworkPolicy": "networking.k8s.io/v1", "Ingress": "networking.k8s.io/v1", "IngressClass": "networking.k8s.io/v1",
		"Gateway": "gateway.networking.k8s.io/v1", "HTTPRoute": "gateway.networking.k8s.io/v1", "EndpointSlice": "discovery.k8s.io/v1",
	} {
		f, _ := Parse([]byte(webService+"---\n"+object(version, kind)), options("a.yaml"))
		if len(f.Problems) != 1 || f.Problems[0].Msg != fmt.Sprintf("kind %q is not supported", kind) || f.Problems[0].Hint == "" || strings.HasPrefix(f.Problems[0].Hint, kindsHint) || len(f.Objects) != 1 {
			t.Errorf("%s: %+v", kind, f.Problems)
		}
	}
	for kind, version := range map[string]string{"PodDisruptionBudget": "policy/v1", "HorizontalPodAutoscaler": "autoscaling/v2"} {
		f, warnings := Parse([]byte(webService+"---\n"+object(version, kind)), options("a.yaml"))
		if len(f.Problems) > 0 || len(f.Objects) != 1 || f.Incomplete || len(warnings) != 1 || !strings.HasPrefix(warnings[0].Msg, kind+" is ignored: ") || warnings[0].Line != 9 {
			t.Errorf("%s: %+v %+v", kind, f.Problems, warnings)
		}
		if f, _ := Parse([]byte(object("example.com/v1", kind)), options("a.yaml")); len(f.Problems) == 0 {
			t.Errorf("%s of another group is ignored", kind)
		}
	}
}
