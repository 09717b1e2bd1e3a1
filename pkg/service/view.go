package service

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// View is the state of one Service, as readers such as a DNS server and the commands show it. It is
// immutable, and an unchanged View keeps its pointer.
type View struct {
	Namespace, Name string
	// ExternalName is the name that a Service of the type ExternalName stands for; "" for others.
	ExternalName string
	// ClusterIPs are the cluster IPs, at most one of each family. A headless Service, and one of the
	// type ExternalName, has none.
	ClusterIPs []netip.Addr
	// Headless says that clusterIP is None: the name of the Service stands for its endpoints.
	Headless bool
	// PublishNotReady says that endpoints count as ready, also if their pods are not.
	PublishNotReady bool
	Ports           []Port
	// Endpoints are sorted by address. They include those that are not ready.
	Endpoints []Endpoint
}

// Port is one port of a Service.
type Port struct {
	Name     string // "" if the Service has one port without a name
	Protocol v1.Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// Endpoint is one address of one pod that a Service selects.
type Endpoint struct {
	Addr netip.Addr
	// Hostname is the host name of the pod if its subdomain is the name of the Service; "" if not.
	Hostname string
	// Namespace and Pod name the pod.
	Namespace, Pod string
	// Ready says that the pod is ready and does not terminate, or that the Service publishes
	// endpoints that are not ready. Serving says that the pod is ready, also while it terminates.
	Ready, Serving, Terminating bool
	// Ports are the ports of the endpoint in the order of the ports of the Service. A port whose
	// target the pod does not have is missing.
	Ports []EndpointPort
}

// EndpointPort is one port of an endpoint. Name is that of the port of the Service.
type EndpointPort struct {
	Name     string
	Protocol v1.Protocol
	Port     uint16
}

// Published reports whether a name of a headless Service stands for the endpoint, as in the cluster's
// DNS: endpoints that are not ready have no addresses there.
func (e *Endpoint) Published() bool { return e.Ready }
