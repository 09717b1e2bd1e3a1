package policy

import (
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// aService returns a Service of a source of the kind http.
func aService(edit func(*v1.ServiceSpec)) *pod.Object {
	s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	s.Spec = v1.ServiceSpec{Type: v1.ServiceTypeClusterIP, Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP}}}
	if edit != nil {
		edit(&s.Spec)
	}
	return &pod.Object{Kind: pod.KindService, Key: pod.Key{Namespace: "shop", Name: "web"}, Object: s, Origin: pod.Origin{Source: "http", Location: "https://a/b", File: "https://a/b", Line: 2}}
}

func withNodePort(n int32) func(*v1.ServiceSpec) {
	return func(s *v1.ServiceSpec) { s.Type, s.Ports[0].NodePort = v1.ServiceTypeNodePort, n }
}

// TestJudgeObject_Service_PortsAndAddressesOfTheNodeNeedARule: node ports, external IPs and load
// balancers, without a list, with one, and under a level that forbids host ports.
//
// Shows: D1
func TestJudgeObject_Service_PortsAndAddressesOfTheNodeNeedARule(t *testing.T) {
	t.Parallel()
	external := func(s *v1.ServiceSpec) { s.ExternalIPs = []string{"203.0.113.9"} }
	balancer := func(s *v1.ServiceSpec) { s.Type, s.Ports[0].NodePort = v1.ServiceTypeLoadBalancer, 30080 }
	for name, c := range map[string]struct {
		rule string
		edit func(*v1.ServiceSpec)
		want []string // paths
	}{
		"cluster IP, restricted":     {"podSecurity: {level: restricted}", nil, nil},
		"node port, open":            {"uids: derived", withNodePort(0), nil},
		"node port, restricted":      {"podSecurity: {level: restricted}", withNodePort(30080), []string{"spec.ports[0].nodePort"}},
		"node port, exempt":          {"podSecurity: {level: restricted, exempt: {namespaces: [shop]}}", withNodePort(30080), nil},
		"node port, listed":          {"podSecurity: {level: restricted}, nodePorts: ['30080']", withNodePort(30080), nil},
		"node port, in a range":      {"nodePorts: ['30000-30100']", withNodePort(30080), nil},
		"node port, outside":         {"nodePorts: ['30000-30079']", withNodePort(30080), []string{"spec.ports[0].nodePort"}},
		"node port, chosen":          {"nodePorts: ['30000-30100']", withNodePort(0), []string{"spec.ports[0].nodePort"}},
		"external, open":             {"uids: derived", external, nil},
		"external, baseline":         {"podSecurity: {level: baseline}", external, []string{"spec.ports[0].port", "spec.externalIPs[0]"}},
		"external, listed":           {"podSecurity: {level: baseline}, externalIPs: [203.0.113.0/24], nodePorts: ['80']", external, nil},
		"external, port not listed":  {"externalIPs: [203.0.113.0/24], nodePorts: ['443']", external, []string{"spec.ports[0].port"}},
		"external, no ports":         {"podSecurity: {level: baseline}, externalIPs: [203.0.113.0/24]", external, []string{"spec.ports[0].port"}},
		"external, none":             {"externalIPs: []", external, []string{"spec.externalIPs[0]"}},
		"balancer, open":             {"uids: derived", balancer, nil},
		"balancer, baseline":         {"podSecurity: {level: baseline}, nodePorts: ['30080']", balancer, []string{"spec.ports[0].port", "spec.type"}},
		"balancer, allowed":          {"podSecurity: {level: baseline}, nodePorts: ['30080', '80'], loadBalancers: true", balancer, nil},
		"balancer, port not listed":  {"nodePorts: ['30080'], loadBalancers: true", balancer, []string{"spec.ports[0].port"}},
		"balancer, forbidden":        {"loadBalancers: false", balancer, []string{"spec.type"}},
		"namespace that is not ours": {"namespaces: [other]", nil, []string{"metadata.namespace"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, problems := Parse([]byte("{apiVersion: nodectl.dev/v1alpha1, kind: SourcePolicy, rules: [{name: r, sources: [{kind: http}], "+c.rule+"}]}"), "p.yaml", noGuess)
			if len(problems) > 0 {
				t.Fatal(problems)
			}
			var got []string
			for _, bad := range p.CheckObject(aService(c.edit), "https://a/b") {
				got = append(got, bad.Path)
				if bad.Line != 2 || !strings.Contains(bad.Msg, `rule "r"`) {
					t.Errorf("%+v", bad)
				}
			}
			if !slices.Equal(got, c.want) {
				t.Errorf("got %q, want %q", got, c.want)
			}
		})
	}
}

func noGuess(string, []string) string { return "" }

// TestParse_ServiceKeys_AreChecked: a range that is none is a mistake of the policy.
func TestParse_ServiceKeys_AreChecked(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{"nodePorts: ['0']", "nodePorts: ['2-1']", "nodePorts: ['a']", "nodePorts: ['70000']", "externalIPs: [example.com]", "loadBalancers: 'yes'"} {
		_, problems := Parse([]byte("{apiVersion: nodectl.dev/v1alpha1, kind: SourcePolicy, default: {"+bad+"}}"), "p.yaml", noGuess)
		if len(problems) != 1 {
			t.Errorf("%s: %+v", bad, problems)
		}
	}
}
