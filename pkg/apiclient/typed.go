package apiclient

import (
	"sync"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/rest"
)

// The clients below are those of client-go/kubernetes/typed, which import the types of
// every API group and register them when a program starts: 9 MB and half of the time that
// nodectl takes to start (docs/decisions/0031).

// groups returns a scheme of the API groups that a node uses. It is made when the first
// client is.
var groups = sync.OnceValue(func() *runtime.Scheme {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		v1.AddToScheme, coordinationv1.AddToScheme, certificatesv1.AddToScheme, authenticationv1.AddToScheme, authorizationv1.AddToScheme,
	} {
		utilruntime.Must(add(s))
	}
	metav1.AddToGroupVersion(s, schema.GroupVersion{Version: "v1"}) // Status, of every group
	return s
})

// ForGroup returns a copy of c for the requests of one API group: its path, and how objects
// are encoded.
func ForGroup(c *rest.Config, group schema.GroupVersion) *rest.Config {
	c = rest.CopyConfig(c)
	c.GroupVersion, c.APIPath = &group, "/apis"
	if group.Group == "" {
		c.APIPath = "/api"
	}
	c.NegotiatedSerializer = rest.CodecFactoryForGeneratedClient(groups(), serializer.NewCodecFactory(groups())).WithoutConversion()
	return c
}

// object is a pointer to an API object.
type object[T any] interface {
	*T
	runtime.Object
	metav1.Object
}

// list is a pointer to a list of API objects.
type list[L any] interface {
	*L
	runtime.Object
}

func newClient[T any, P object[T]](c *rest.Config, group schema.GroupVersion, resource string) (*gentype.Client[P], error) {
	client, err := rest.RESTClientFor(ForGroup(c, group))
	if err != nil {
		return nil, err
	}
	return gentype.NewClient(resource, client, runtime.NewParameterCodec(groups()), "", func() P { return new(T) }, gentype.PrefersProtobuf[P]()), nil
}

func newClientWithList[T, L any, P object[T], Q list[L]](c *rest.Config, group schema.GroupVersion, resource, namespace string) (*gentype.ClientWithList[P, Q], error) {
	client, err := rest.RESTClientFor(ForGroup(c, group))
	if err != nil {
		return nil, err
	}
	return gentype.NewClientWithList(resource, client, runtime.NewParameterCodec(groups()), namespace,
		func() P { return new(T) }, func() Q { return new(L) }, gentype.PrefersProtobuf[P]()), nil
}

// The clients of the resources that a node uses.
type (
	Nodes                      = gentype.ClientWithList[*v1.Node, *v1.NodeList]
	Leases                     = gentype.ClientWithList[*coordinationv1.Lease, *coordinationv1.LeaseList]
	CertificateSigningRequests = gentype.ClientWithList[*certificatesv1.CertificateSigningRequest, *certificatesv1.CertificateSigningRequestList]
	TokenReviews               = gentype.Client[*authenticationv1.TokenReview]
	SubjectAccessReviews       = gentype.Client[*authorizationv1.SubjectAccessReview]
)

// NewNodes returns a client of nodes.
func NewNodes(c *rest.Config) (*Nodes, error) {
	return newClientWithList[v1.Node, v1.NodeList](c, v1.SchemeGroupVersion, "nodes", "")
}

// NewLeases returns a client of a namespace's leases.
func NewLeases(c *rest.Config, namespace string) (*Leases, error) {
	return newClientWithList[coordinationv1.Lease, coordinationv1.LeaseList](c, coordinationv1.SchemeGroupVersion, "leases", namespace)
}

// NewCertificateSigningRequests returns a client of certificate signing requests.
func NewCertificateSigningRequests(c *rest.Config) (*CertificateSigningRequests, error) {
	return newClientWithList[certificatesv1.CertificateSigningRequest, certificatesv1.CertificateSigningRequestList](
		c, certificatesv1.SchemeGroupVersion, "certificatesigningrequests", "")
}

// NewTokenReviews returns a client that asks whose a token is.
func NewTokenReviews(c *rest.Config) (*TokenReviews, error) {
	return newClient[authenticationv1.TokenReview](c, authenticationv1.SchemeGroupVersion, "tokenreviews")
}

// NewSubjectAccessReviews returns a client that asks who may do what.
func NewSubjectAccessReviews(c *rest.Config) (*SubjectAccessReviews, error) {
	return newClient[authorizationv1.SubjectAccessReview](c, authorizationv1.SchemeGroupVersion, "subjectaccessreviews")
}
