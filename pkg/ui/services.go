package ui

import (
	"cmp"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
)

// ServiceList is the agent's answer to get services.
type ServiceList struct {
	Document
	Items []ServiceItem `json:"items"`
}

// ServiceItem is one Service with its endpoints. Problems are the reasons why the agent does not
// serve it, or serves only a part of it.
type ServiceItem struct {
	Service   v1.Service        `json:"service"`
	Endpoints []ServiceEndpoint `json:"endpoints"`
	Problems  []string          `json:"problems,omitempty"`
}

// ServiceEndpoint is one endpoint of a port of a Service.
type ServiceEndpoint struct {
	Port    string `json:"port"` // the name of the Service's port
	Address string `json:"address"`
	Target  int32  `json:"target"`
	Pod     string `json:"pod"`
	Ready   bool   `json:"ready"`
}

// ServiceGrid returns Services as kubectl's table.
func ServiceGrid(services []v1.Service, c Columns, now time.Time) Grid {
	header := []string{"NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORT(S)", "AGE"}
	if c.Wide {
		header = append(header, "SELECTOR")
	}
	g := grid(c, header...)
	for i := range services {
		s := &services[i]
		row := []cell{
			{text: s.Namespace}, {text: s.Name}, {text: string(s.Spec.Type)}, {text: s.Spec.ClusterIP}, {text: externalIPs(s, c.Wide)},
			{text: servicePorts(s.Spec.Ports)}, {text: ageOf(s.CreationTimestamp.Time, now)},
		}
		if c.Wide {
			row = append(row, cell{text: pairs(s.Spec.Selector)})
		}
		g.add(c, s.Labels, row...)
	}
	return g
}

// ServiceNames returns Services as kubectl's -o name.
func ServiceNames(services []v1.Service) string {
	var b strings.Builder
	for i := range services {
		b.WriteString("service/" + Clean(services[i].Name) + "\n")
	}
	return b.String()
}

// widestIngress is how many characters of a load balancer's addresses kubectl shows without -o wide.
const widestIngress = 16

// externalIPs returns the column EXTERNAL-IP of kubectl.
func externalIPs(s *v1.Service, wide bool) string {
	all := slices.Clone(s.Spec.ExternalIPs)
	switch s.Spec.Type {
	case v1.ServiceTypeExternalName:
		return s.Spec.ExternalName
	case v1.ServiceTypeLoadBalancer:
		ingress := strings.Join(ingressOf(s), ",")
		if !wide && len(ingress) > widestIngress {
			ingress = ingress[:widestIngress-3] + "..."
		}
		if ingress == "" && len(all) == 0 {
			return "<pending>"
		}
		if ingress != "" {
			all = append(all, ingress)
		}
	}
	return strings.Join(all, ",")
}

func ingressOf(s *v1.Service) (out []string) {
	for _, in := range s.Status.LoadBalancer.Ingress {
		out = append(out, cmp.Or(in.IP, in.Hostname))
	}
	return out
}

// servicePorts returns the column PORT(S) of kubectl.
func servicePorts(ports []v1.ServicePort) string {
	out := make([]string, len(ports))
	for i, p := range ports {
		out[i] = fmt.Sprintf("%d/%s", p.Port, p.Protocol)
		if p.NodePort > 0 {
			out[i] = fmt.Sprintf("%d:%d/%s", p.Port, p.NodePort, p.Protocol)
		}
	}
	return strings.Join(out, ",")
}

// DescribeService returns a Service as kubectl describe does.
func DescribeService(it ServiceItem, h ObjectEvents, now time.Time) string {
	s, sh := &it.Service, newSheet()
	sh.row(0, "Name:", s.Name)
	sh.row(0, "Namespace:", s.Namespace)
	sh.list(0, "Labels:", fields(s.Labels, "="))
	sh.list(0, "Annotations:", annotations(s.Annotations))
	sh.list(0, "Selector:", someText(strings.Join(fields(s.Spec.Selector, "="), ",")))
	sh.row(0, "Type:", string(s.Spec.Type))
	if s.Spec.IPFamilyPolicy != nil {
		sh.row(0, "IP Family Policy:", string(*s.Spec.IPFamilyPolicy))
	}
	var families []string
	for _, f := range s.Spec.IPFamilies {
		families = append(families, string(f))
	}
	sh.list(0, "IP Families:", someText(strings.Join(families, ",")))
	sh.row(0, "IP:", s.Spec.ClusterIP)
	sh.list(0, "IPs:", someText(strings.Join(s.Spec.ClusterIPs, ",")))
	sh.nonEmpty(0, "External IPs:", strings.Join(s.Spec.ExternalIPs, ","))
	sh.nonEmpty(0, "External Name:", s.Spec.ExternalName)
	sh.nonEmpty(0, "LoadBalancer Ingress:", strings.Join(ingressOf(s), ", "))
	for i := range s.Spec.Ports {
		sh.servicePort(&s.Spec.Ports[i], it.Endpoints)
	}
	sh.row(0, "Session Affinity:", string(s.Spec.SessionAffinity))
	sh.nonEmpty(0, "External Traffic Policy:", string(s.Spec.ExternalTrafficPolicy))
	if s.Spec.InternalTrafficPolicy != nil {
		sh.row(0, "Internal Traffic Policy:", string(*s.Spec.InternalTrafficPolicy))
	}
	sh.nonEmpty(0, "LoadBalancer Source Ranges:", strings.Join(s.Spec.LoadBalancerSourceRanges, ","))
	if len(it.Problems) > 0 {
		sh.list(0, "Problems:", it.Problems)
	}
	sh.events(h, now)
	return sh.String()
}

// someText returns a list with text, or an empty list for "".
func someText(text string) []string {
	if text == "" {
		return nil
	}
	return []string{text}
}

// servicePort writes a port with its ready endpoints.
func (s *sheet) servicePort(p *v1.ServicePort, endpoints []ServiceEndpoint) {
	s.row(0, "Port:", cmp.Or(p.Name, "<unset>"), fmt.Sprintf("%d/%s", p.Port, p.Protocol))
	s.row(0, "TargetPort:", fmt.Sprintf("%s/%s", p.TargetPort.String(), p.Protocol))
	if p.NodePort > 0 {
		s.row(0, "NodePort:", cmp.Or(p.Name, "<unset>"), fmt.Sprintf("%d/%s", p.NodePort, p.Protocol))
	}
	var ready []string
	for _, e := range endpoints {
		if e.Port == p.Name && e.Ready {
			ready = append(ready, net.JoinHostPort(e.Address, strconv.Itoa(int(e.Target))))
		}
	}
	const most = 3 // as kubectl
	text := strings.Join(ready[:min(len(ready), most)], ",")
	if more := len(ready) - most; more > 0 {
		text += fmt.Sprintf(" + %d more...", more)
	}
	s.row(0, "Endpoints:", text)
}
