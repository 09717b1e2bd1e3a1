package apiclient

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"

	authorizationv1 "k8s.io/api/authorization/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/util/validation"
)

func resourcePath(below ...string) []string {
	return append([]string{"apis", resourcev1.GroupName, "v1"}, below...)
}

// ResourceClaim returns a claim for devices, nil for none. A node may get the claims that its pods
// name, but neither list nor watch them.
func (r *Reader) ResourceClaim(ctx context.Context, namespace, name string) (*resourcev1.ResourceClaim, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(namespace)) > 0 {
		return nil, fmt.Errorf("%.80q in namespace %.80q is not a valid claim name", name, namespace)
	}
	r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Group: resourcev1.GroupName, Version: "v1", Resource: "resourceclaims", Name: name})
	var claim resourcev1.ResourceClaim
	err := r.fetch(ctx, request{
		method: http.MethodGet, path: resourcePath("namespaces", namespace, "resourceclaims", name), purpose: "read resourceclaim/" + namespace + "/" + name,
	}, &claim)
	if isStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &claim, nil
}

// DeleteResourceSlices deletes the ResourceSlices of a node that a driver has published, or those of
// all drivers but these for "". A server without the API has none.
func (r *Reader) DeleteResourceSlices(ctx context.Context, node, driver string, but []string) error {
	all := []fields.Selector{fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorNodeName, node)}
	if driver != "" {
		all = append(all, fields.OneTermEqualSelector(resourcev1.ResourceSliceSelectorDriver, driver))
	}
	for _, other := range but {
		all = append(all, fields.OneTermNotEqualSelector(resourcev1.ResourceSliceSelectorDriver, other))
	}
	selector := fields.AndSelectors(all...)
	ctx, stop := context.WithTimeout(ctx, pageTimeout)
	defer stop()
	transport, err := r.Transport()
	if err != nil {
		return err
	}
	response, err := transport.do(ctx, request{
		method: http.MethodDelete, path: resourcePath("resourceslices"), query: url.Values{"fieldSelector": {selector.String()}},
		accept: jsonType, purpose: "delete resourceslices of " + node,
	})
	if isStatus(err, http.StatusNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }()
	_, _ = io.CopyN(io.Discard, response.Body, fetchLimit) // the answer lists the deleted objects
	return nil
}
