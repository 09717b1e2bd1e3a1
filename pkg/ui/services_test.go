package ui

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

func shownService(name string, kind v1.ServiceType, edit func(*v1.Service)) v1.Service {
	s := v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, CreationTimestamp: metav1.NewTime(time.Unix(0, 0))}}
	s.Spec = v1.ServiceSpec{Type: kind, ClusterIP: "10.96.0.7", Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Port: 80, Protocol: v1.ProtocolTCP, TargetPort: intstr.FromString("http")}}}
	if edit != nil {
		edit(&s)
	}
	return s
}

// TestServiceGrid_Types_HaveTheColumnsOfKubectl: addresses and ports of each type.
func TestServiceGrid_Types_HaveTheColumnsOfKubectl(t *testing.T) {
	t.Parallel()
	ingress := func(ips ...string) func(*v1.Service) {
		return func(s *v1.Service) {
			for _, ip := range ips {
				s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: ip})
			}
		}
	}
	all := []v1.Service{
		shownService("a", v1.ServiceTypeClusterIP, nil),
		shownService("b", v1.ServiceTypeNodePort, func(s *v1.Service) { s.Spec.Ports[0].NodePort, s.Spec.ExternalIPs = 30080, []string{"203.0.113.7"} }),
		shownService("c", v1.ServiceTypeLoadBalancer, ingress("192.0.2.1")),
		shownService("d", v1.ServiceTypeLoadBalancer, ingress("192.0.2.1", "192.0.2.2")),
		shownService("e", v1.ServiceTypeLoadBalancer, nil),
		shownService("f", v1.ServiceTypeExternalName, func(s *v1.Service) { s.Spec.ExternalName, s.Spec.ClusterIP, s.Spec.Ports = "example.com", "", nil }),
		shownService("g", v1.ServiceTypeClusterIP, func(s *v1.Service) {
			s.Spec.ClusterIP = v1.ClusterIPNone
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Port: 53, Protocol: v1.ProtocolUDP})
		}),
	}
	want := []string{
		"shop|a|ClusterIP|10.96.0.7|<none>|80/TCP|2m",
		"shop|b|NodePort|10.96.0.7|203.0.113.7|80:30080/TCP|2m",
		"shop|c|LoadBalancer|10.96.0.7|192.0.2.1|80/TCP|2m",
		"shop|d|LoadBalancer|10.96.0.7|192.0.2.1,192...|80/TCP|2m",
		"shop|e|LoadBalancer|10.96.0.7|<pending>|80/TCP|2m",
		"shop|f|ExternalName|<none>|example.com|<none>|2m",
		"shop|g|ClusterIP|None|<none>|80/TCP,53/UDP|2m",
	}
	g := ServiceGrid(all, Columns{}, time.Unix(120, 0))
	for i, row := range g.rows {
		var cells []string
		for _, c := range row {
			cells = append(cells, c.text)
		}
		if got := strings.Join(cells, "|"); got != want[i] {
			t.Errorf("got %s, want %s", got, want[i])
		}
	}
	if wide := ServiceGrid(all[:1], Columns{Wide: true}, time.Unix(120, 0)); wide.rows[0][7].text != "app=a" {
		t.Errorf("wide: %+v", wide.rows)
	}
}

// TestDescribeService_Endpoints_AreThoseThatAreReady: three of them, and how many more.
func TestDescribeService_Endpoints_AreThoseThatAreReady(t *testing.T) {
	t.Parallel()
	it := ServiceItem{Service: shownService("web", v1.ServiceTypeNodePort, func(s *v1.Service) { s.Spec.Ports[0].Name, s.Spec.Ports[0].NodePort = "http", 30080 }), Problems: []string{"spec.x: taken"}}
	for _, addr := range []string{"10.88.0.2", "10.88.0.3", "10.88.0.4", "10.88.0.5", "10.88.0.6"} {
		it.Endpoints = append(it.Endpoints, ServiceEndpoint{Port: "http", Address: addr, Target: 8080, Pod: "p", Ready: addr != "10.88.0.3"})
	}
	text := DescribeService(it, ObjectEvents{Requested: true, Available: true}, time.Unix(120, 0))
	for _, want := range []string{
		"Selector:", "app=web", "10.88.0.2:8080,10.88.0.4:8080,10.88.0.5:8080 + 1 more...", "30080/TCP", "http/TCP", "spec.x: taken", "Events:",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}
