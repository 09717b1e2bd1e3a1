package kube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/util/jsonpath"

	"github.com/nodectl/nodectl/test/cluster"
	"github.com/nodectl/nodectl/test/wait"
)

// objects reads and writes the objects of a cluster, as an administrator.
type objects struct {
	client dynamic.Interface
	mapper meta.RESTMapper
}

func newObjects(t testing.TB, c *cluster.Cluster) *objects {
	t.Helper()
	config := c.Config(t, c.AdminKubeconfig(t))
	client, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	asked, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	groups, err := restmapper.GetAPIGroupResources(asked)
	if err != nil {
		t.Fatal(err)
	}
	return &objects{client, restmapper.NewDiscoveryRESTMapper(groups)}
}

// in returns the client of a resource, in a namespace if the resource is namespaced.
func (o *objects) in(namespace string, kind schema.GroupKind, version string) (dynamic.ResourceInterface, error) {
	m, err := o.mapper.RESTMapping(kind, version)
	if err != nil {
		return nil, err
	}
	if m.Scope.Name() == meta.RESTScopeNameRoot {
		return o.client.Resource(m.Resource), nil
	}
	return o.client.Resource(m.Resource).Namespace(namespace), nil
}

// named is in for a resource name of kubectl, as "pods" or "deployment".
func (o *objects) named(namespace, resource string) (dynamic.ResourceInterface, error) {
	kind, err := o.mapper.KindFor(schema.GroupVersionResource{Resource: resource})
	if err != nil {
		return nil, err
	}
	return o.in(namespace, kind.GroupKind(), kind.Version)
}

// apply is kubectl apply.
func (o *objects) apply(t testing.TB, namespace, manifests string) {
	t.Helper()
	documents := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		var is unstructured.Unstructured
		if err := documents.Decode(&is); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatalf("%v in\n%s", err, manifests)
		}
		if len(is.Object) == 0 {
			continue
		}
		at := namespace
		if is.GetNamespace() != "" {
			at = is.GetNamespace()
		}
		kind := is.GroupVersionKind()
		client, err := o.in(at, kind.GroupKind(), kind.Version)
		if err == nil {
			_, err = client.Apply(context.Background(), is.GetName(), &is, metav1.ApplyOptions{FieldManager: "test", Force: true})
		}
		if err != nil {
			t.Fatalf("apply %s %s: %v", kind.Kind, is.GetName(), err)
		}
	}
}

// deleteWorkloads deletes all pods of a namespace and their controllers; "" is all
// namespaces. It waits for nothing.
func (o *objects) deleteWorkloads(t testing.TB, namespace string) {
	t.Helper()
	for _, resource := range []string{"deployments", "statefulsets", "daemonsets", "jobs", "pods"} {
		o.deleteAll(t, namespace, resource)
	}
}

// deleteAll deletes the objects of a resource, and waits for none.
func (o *objects) deleteAll(t testing.TB, namespace, resource string, fields ...string) {
	t.Helper()
	all, err := o.named(namespace, resource)
	if err != nil {
		t.Fatal(err)
	}
	err = wait.Try(func() error {
		list, err := all.List(context.Background(), metav1.ListOptions{FieldSelector: strings.Join(fields, ",")})
		if err != nil {
			return err
		}
		background := metav1.DeletePropagationBackground
		for _, is := range list.Items {
			client, err := o.named(is.GetNamespace(), resource)
			if err == nil && is.GetDeletionTimestamp() == nil {
				err = client.Delete(context.Background(), is.GetName(), metav1.DeleteOptions{PropagationPolicy: &background})
			}
			if err != nil && !apierrors.IsNotFound(err) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Errorf("delete %s: %v", resource, err)
	}
}

// query is a query of kubectl get.
type query struct {
	client   dynamic.ResourceInterface
	what     metav1.ListOptions
	name     string // of the one object; "" is all that the argument what selects
	output   string // name, or jsonpath=TEMPLATE
	optional bool   // a missing object is no error
}

// query reads the arguments of kubectl get for one resource: [NAME] [-n NAMESPACE | -A]
// [-l LABELS] [--field-selector FIELDS] [--ignore-not-found] -o name|jsonpath=TEMPLATE.
func (o *objects) query(namespace string, args []string) (q query, err error) {
	for rest := args[1:]; len(rest) > 0; rest = rest[1:] {
		value := func() string { rest = rest[1:]; return rest[0] }
		switch rest[0] {
		case "-n":
			namespace = value()
		case "-A":
			namespace = ""
		case "-l":
			q.what.LabelSelector = value()
		case "--field-selector":
			q.what.FieldSelector = value()
		case "-o":
			q.output = value()
		case "--ignore-not-found":
			q.optional = true
		default:
			q.name = rest[0]
			q.what.FieldSelector = "metadata.name=" + q.name
		}
	}
	q.client, err = o.named(namespace, args[0])
	return q, err
}

// get returns the output of kubectl get, and the resource version of the answer.
func (q query) get(ctx context.Context) (text, version string, err error) {
	list, err := q.client.List(ctx, q.what)
	if err != nil {
		return "", "", err
	}
	version = list.GetResourceVersion()
	found := list.UnstructuredContent()
	if q.name != "" {
		switch {
		case len(list.Items) == 1:
			found = list.Items[0].UnstructuredContent()
		case q.optional:
			return "", version, nil
		default:
			return "", version, fmt.Errorf("%s is not there", q.name)
		}
	}
	if q.output == "name" {
		for i := range list.Items {
			text += list.Items[i].GetName() + "\n"
		}
		return text, version, nil
	}
	template, ok := strings.CutPrefix(q.output, "jsonpath=")
	if !ok {
		return "", version, fmt.Errorf("-o %s: only name and jsonpath are known here", q.output)
	}
	path := jsonpath.New("").AllowMissingKeys(true)
	if err := path.Parse(template); err != nil {
		return "", version, err
	}
	var out bytes.Buffer
	err = path.Execute(&out, found)
	return out.String(), version, err
}

// changes returns when something has changed since a version; it may also return without one.
func (q query) changes(ctx context.Context, version string) {
	const seconds = 10
	what := q.what
	what.ResourceVersion, what.TimeoutSeconds = version, new(int64(seconds))
	w, err := q.client.Watch(ctx, what)
	if err != nil {
		return // the next get returns the error
	}
	defer w.Stop()
	<-w.ResultChan() // closed after that time
}
