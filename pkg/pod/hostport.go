package pod

import (
	"cmp"

	v1 "k8s.io/api/core/v1"
)

// HostPorts lists the host ports of a pod's regular containers and sidecars; on the host network
// these are all their ports. It lists at most MaxPorts: a pod that is being deleted, or that an
// older agent recorded, may have more.
func HostPorts(p *v1.Pod) []v1.ContainerPort {
	var list []v1.ContainerPort
	collect := func(c *v1.Container) {
		for _, port := range c.Ports {
			if port.HostPort == 0 && p.Spec.HostNetwork {
				port.HostPort = port.ContainerPort
			}
			if port.HostPort > 0 && len(list) < MaxPorts {
				port.Protocol = cmp.Or(port.Protocol, v1.ProtocolTCP)
				list = append(list, port)
			}
		}
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; Restartable(c) {
			collect(c)
		}
	}
	for i := range p.Spec.Containers {
		collect(&p.Spec.Containers[i])
	}
	return list
}

// IsEveryAddress reports whether the hostIP of a port means all addresses of the node.
func IsEveryAddress(ip string) bool { return ip == "" || ip == "0.0.0.0" || ip == "::" }

// PortConflict returns a host port of a that b has too, so that they cannot run at the same time.
func PortConflict(a, b *v1.Pod) (port v1.ContainerPort, conflict bool) {
	ports := HostPorts(a)
	if len(ports) == 0 {
		return port, false
	}
	for _, q := range HostPorts(b) {
		for _, p := range ports {
			if p.HostPort == q.HostPort && p.Protocol == q.Protocol && (p.HostIP == q.HostIP || IsEveryAddress(p.HostIP) || IsEveryAddress(q.HostIP)) {
				return p, true
			}
		}
	}
	return port, false
}
