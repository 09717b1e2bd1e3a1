package apiclient

import (
	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
)

// Object is one API object.
type Object interface {
	metav1.Object
	runtime.Object
	Unmarshal(data []byte) error
}

// objectList is one page of objects of a kind.
type objectList interface {
	metav1.ListInterface
	Unmarshal(data []byte) error
}

// kind says how objects of one kind are decoded.
type kind struct {
	name  string
	empty func() Object
	list  func() (into objectList, objects func() []Object)
}

func podKind() kind {
	return kind{"Pod", func() Object { return &v1.Pod{} }, func() (objectList, func() []Object) {
		l := &v1.PodList{}
		return l, func() []Object { return pointers(l.Items) }
	}}
}

func configMapKind() kind {
	return kind{"ConfigMap", func() Object { return &v1.ConfigMap{} }, func() (objectList, func() []Object) {
		l := &v1.ConfigMapList{}
		return l, func() []Object { return pointers(l.Items) }
	}}
}

func secretKind() kind {
	return kind{"Secret", func() Object { return &v1.Secret{} }, func() (objectList, func() []Object) {
		l := &v1.SecretList{}
		return l, func() []Object { return pointers(l.Items) }
	}}
}

func serviceKind() kind {
	return kind{"Service", func() Object { return &v1.Service{} }, func() (objectList, func() []Object) {
		l := &v1.ServiceList{}
		return l, func() []Object { return pointers(l.Items) }
	}}
}

// pointers returns the items of a list one by one.
func pointers[T any, P interface {
	*T
	Object
}](items []T) []Object {
	out := make([]Object, len(items))
	for i := range items {
		out[i] = P(&items[i])
	}
	return out
}

// Collection is a set of objects that can be listed and watched.
type Collection struct {
	kind      kind
	resource  string // the plural, as in the URL
	namespace string // "" for all
	name      string // of the one object; "" for all
	selector  string // of fields; "" for all
	// purpose completes the error of a server that answers 403: it denies permission to
	// do this.
	purpose string
}

const watchPods = "list and watch this node's pods"

// PodsOf returns the pods that are bound to a node.
func PodsOf(node string) Collection {
	return Collection{kind: podKind(), resource: "pods", selector: "spec.nodeName=" + node, purpose: watchPods}
}

// podOf returns one pod alone, if it is bound to a node.
func podOf(node, namespace, name string) Collection {
	c := one(podKind(), "pods", namespace, name, "read pod/"+namespace+"/"+name)
	c.selector += "," + fields.OneTermEqualSelector("spec.nodeName", node).String()
	return c
}

// ConfigMap returns one ConfigMap alone, as a node may list and watch it.
func ConfigMap(namespace, name string) Collection {
	return one(configMapKind(), "configmaps", namespace, name, "read configmap/"+namespace+"/"+name)
}

// Secret returns one Secret alone, as a node may list and watch it.
func Secret(namespace, name string) Collection {
	return one(secretKind(), "secrets", namespace, name, "read secret/"+namespace+"/"+name)
}

func one(k kind, resource, namespace, name, purpose string) Collection {
	return Collection{k, resource, namespace, name, fields.OneTermEqualSelector("metadata.name", name).String(), purpose}
}

// allServices is the services of all namespaces.
func allServices() Collection {
	return Collection{kind: serviceKind(), resource: "services", purpose: "list and watch services"}
}

// path returns the URL path of c, below the server's URL.
func (c Collection) path() []string {
	path := []string{"api", "v1"}
	if c.namespace != "" {
		path = append(path, "namespaces", c.namespace)
	}
	return append(path, c.resource)
}

// permission returns the attributes by which an authorizer decides about a list of c.
func (c Collection) permission() authorizationv1.ResourceAttributes {
	return authorizationv1.ResourceAttributes{Namespace: c.namespace, Verb: "list", Version: "v1", Resource: c.resource, Name: c.name}
}
