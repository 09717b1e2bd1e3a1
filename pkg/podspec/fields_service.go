package podspec

import (
	"reflect"
	"sync"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// ServiceFields returns the table of Services: one row for every field of their metadata and spec,
// down to a Rejected or Inert row or a plain value. Field.Restart has no meaning in it. The result is
// the caller's.
func ServiceFields() []Field { return serviceRows() }

// UnsupportedService is Unsupported for a Service.
func UnsupportedService(s *v1.Service) []pod.Problem {
	var out []pod.Problem
	serviceTree().unsupported(reflect.ValueOf(s).Elem(), nil, &out)
	return out
}

// IgnoredService is Ignored for the spec of a Service.
func IgnoredService(s *v1.Service) []pod.Problem {
	var out []pod.Problem
	spec := serviceTree().kid("spec")
	spec.ignored(spec.of(reflect.ValueOf(s).Elem()), nil, &out)
	return out
}

// serviceTree is the table of Services laid over the API type. It is built once, at first use, and
// never written to afterwards.
var serviceTree = sync.OnceValue(func() *fieldNode { return newFieldTree(reflect.TypeFor[v1.Service](), serviceRows(), nil) })

func serviceRows() []Field {
	const (
		oneNode  = "on one node all endpoints are local"
		balancer = "this node is the load balancer, and gives the Service its own addresses"
	)
	rows := replaced(metadataRows(),
		Field{Path: "metadata.name", Note: "the node's name is not appended"},
		refuse("metadata.generateName", "a Service in a manifest needs a fixed name", "write metadata.name"),
		inert("metadata.uid", "derived from node, kind, namespace and name"),
		refuse("metadata.deletionTimestamp", "a manifest cannot describe a Service that is being deleted", "remove the field; to delete the Service, remove its manifest"),
		refuse("metadata.deletionGracePeriodSeconds", "a manifest cannot describe a Service that is being deleted", "remove the field"),
	)
	rows = append(rows, below("spec", []Field{
		honour("", RestartNone),
		{Path: ".ports", Note: "required, unless the Service is headless or an ExternalName"},
		{Path: ".ports[].name", Note: "required if there are several ports"},
		{Path: ".ports[].protocol", Note: "TCP, UDP or SCTP"},
		inert(".ports[].appProtocol", "nodectl balances connections, and does not read their content"),
		honour(".ports[].port", RestartNone),
		{Path: ".ports[].targetPort", Note: "a number, or the name of a container's port; if it is not set: port"},
		{Path: ".ports[].nodePort", Note: "in 30000-32767; if it is not set: a free one. 127.0.0.1 is served, too"},
		{Path: ".selector", Note: "selects pods of the namespace. A Service without a selector has no endpoints"},
		{Path: ".clusterIP", Note: "None, or a free address of --service-cidr; if it is not set: a free one"},
		{Path: ".clusterIPs", Note: "as clusterIP, one for each family"},
		{Path: ".type", Note: "ClusterIP, NodePort, LoadBalancer or ExternalName; the status of a LoadBalancer gets the addresses of the node"},
		honour(".externalIPs", RestartNone),
		{Path: ".sessionAffinity", Note: "None, or ClientIP"},
		inert(".loadBalancerIP", balancer),
		honour(".loadBalancerSourceRanges", RestartNone),
		honour(".externalName", RestartNone),
		{Path: ".externalTrafficPolicy", Note: "Cluster, or Local: " + oneNode + ", and both keep the address of the client"},
		inert(".healthCheckNodePort", oneNode+", and no other load balancer checks them"),
		honour(".publishNotReadyAddresses", RestartNone),
		honour(".sessionAffinityConfig", RestartNone),
		honour(".sessionAffinityConfig.clientIP", RestartNone),
		honour(".sessionAffinityConfig.clientIP.timeoutSeconds", RestartNone),
		{Path: ".ipFamilies", Note: "families that --service-cidr has"},
		{Path: ".ipFamilyPolicy", Note: "RequireDualStack needs a --service-cidr of both families"},
		{Path: ".loadBalancerClass", Note: "selects another load balancer: the status of the Service gets no addresses"},
		honour(".allocateLoadBalancerNodePorts", RestartNone),
		{Path: ".internalTrafficPolicy", Note: "Cluster, or Local: " + oneNode},
		inert(".trafficDistribution", oneNode),
	})...)
	return append(rows, inert("status", "nodectl reads no status from a manifest"))
}
