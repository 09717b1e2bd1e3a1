package service

import (
	"net/netip"

	v1 "k8s.io/api/core/v1"
)

// View is the state of one Service for readers such as the DNS server and the commands. It is
// immutable, and an unchanged View keeps its pointer.
type View struct {
	Namespace, Name string
	// ExternalName is the target name of a Service of the type ExternalName, else "".
	ExternalName string
	// ClusterIPs are the cluster IPs, at most one of each family. A headless Service and a Service
	// of the type ExternalName have none.
	ClusterIPs []netip.Addr
	// Headless means that clusterIP is None: the DNS name of the Service resolves to its endpoints.
	Headless bool
	// PublishNotReady means that endpoints count as ready even if their pods are not.
	PublishNotReady bool
	Ports           []Port
	// Endpoints are all endpoints, also those that are not ready, sorted by address.
	Endpoints []Endpoint
}

// Port is one port of a Service.
type Port struct {
	Name     string // "" if the Service has one port without a name
	Protocol v1.Protocol
	Port     uint16
	NodePort uint16 // 0: none
}

// Endpoint is one address of a pod that a Service selects.
type Endpoint struct {
	Addr netip.Addr
	// Hostname is the host name of the pod if its subdomain is the name of the Service; else "".
	Hostname string
	// Namespace and Pod name the pod.
	Namespace, Pod string
	// Ready means that the pod is ready and not terminating, or that the Service has
	// publishNotReadyAddresses. Serving means that the pod is ready, even if it terminates.
	Ready, Serving, Terminating bool
	// Ports are the ports of the endpoint, in the order of the Service's ports. A port is missing
	// if the pod lacks its target port.
	Ports []EndpointPort
}

// EndpointPort is one port of an endpoint. Name is the name of the Service's port.
type EndpointPort struct {
	Name     string
	Protocol v1.Protocol
	Port     uint16
}

// Published reports whether the DNS name of a headless Service resolves to the endpoint. As in a
// cluster, endpoints that are not ready have no DNS records.
func (e *Endpoint) Published() bool { return e.Ready }
