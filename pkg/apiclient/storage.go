package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

func storagePath(below ...string) []string {
	return append([]string{"apis", "storage.k8s.io", "v1"}, below...)
}

// CSIDriver returns the object of a CSI driver, nil for none.
func (r *Reader) CSIDriver(ctx context.Context, name string) (*storagev1.CSIDriver, error) {
	return storageObject[storagev1.CSIDriver](ctx, r, "csidrivers", name)
}

// CSINode returns the object with the CSI drivers of a node, nil for none.
func (r *Reader) CSINode(ctx context.Context, name string) (*storagev1.CSINode, error) {
	return storageObject[storagev1.CSINode](ctx, r, "csinodes", name)
}

// VolumeAttachment returns the attachment of a volume to this node, nil for none.
func (r *Reader) VolumeAttachment(ctx context.Context, name string) (*storagev1.VolumeAttachment, error) {
	r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Verb: "get", Group: "storage.k8s.io", Version: "v1", Resource: "volumeattachments", Name: name})
	return storageObject[storagev1.VolumeAttachment](ctx, r, "volumeattachments", name)
}

// storageObject reads one object of the storage group, nil for none.
func storageObject[T any](ctx context.Context, r *Reader, resource, name string) (*T, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return nil, fmt.Errorf("%.80q is not a valid name of %s", name, resource)
	}
	var is T
	err := r.fetch(ctx, request{method: http.MethodGet, path: storagePath(resource, name), purpose: "read " + resource + "/" + name}, &is)
	if isStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &is, nil
}

// PutCSINode creates a CSINode that has no resource version, and replaces another one.
func (r *Reader) PutCSINode(ctx context.Context, n *storagev1.CSINode) error {
	body, err := json.Marshal(n)
	if err != nil {
		return errors.New("cannot encode the CSINode object")
	}
	q := request{method: http.MethodPost, path: storagePath("csinodes"), json: body, purpose: "create csinodes/" + n.Name}
	if n.ResourceVersion != "" {
		q = request{method: http.MethodPut, path: storagePath("csinodes", n.Name), json: body, purpose: "update csinodes/" + n.Name}
	}
	var is storagev1.CSINode
	return r.fetch(ctx, q, &is)
}

// MarkClaimResize reports how far the expansion of a claim's file system has come, "" for no change. A
// failure becomes a condition of the claim. It returns the claim as it is now.
func (r *Reader) MarkClaimResize(ctx context.Context, claim *v1.PersistentVolumeClaim, state v1.ClaimResourceStatus, failure string) (*v1.PersistentVolumeClaim, error) {
	status, meta := map[string]any{}, map[string]any{}
	if state != "" {
		status["allocatedResourceStatuses"] = map[string]any{"storage": state}
	}
	if failure == "" { // as the kubelet: a failure is reported whatever the claim's version
		meta["resourceVersion"] = claim.ResourceVersion
	} else {
		conditions := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c v1.PersistentVolumeClaimCondition) bool {
			return c.Type == v1.PersistentVolumeClaimNodeResizeError
		})
		status["conditions"] = append(conditions, v1.PersistentVolumeClaimCondition{
			Type: v1.PersistentVolumeClaimNodeResizeError, Status: v1.ConditionTrue, LastTransitionTime: metav1.Now(), Message: failure,
		})
	}
	return r.patchClaim(ctx, claim, map[string]any{"metadata": meta, "status": status})
}

// SetClaimSize reports that the file system of a claim has a size, and removes the conditions of the
// resize.
func (r *Reader) SetClaimSize(ctx context.Context, claim *v1.PersistentVolumeClaim, size resource.Quantity) error {
	conditions := slices.DeleteFunc(slices.Clone(claim.Status.Conditions), func(c v1.PersistentVolumeClaimCondition) bool {
		return c.Type == v1.PersistentVolumeClaimFileSystemResizePending || c.Type == v1.PersistentVolumeClaimResizing || c.Type == v1.PersistentVolumeClaimNodeResizeError
	})
	status := map[string]any{"capacity": map[string]any{"storage": size.String()}, "conditions": conditions}
	if len(claim.Status.AllocatedResourceStatuses) > 0 {
		status["allocatedResourceStatuses"] = map[string]any{"storage": nil}
	}
	_, err := r.patchClaim(ctx, claim, map[string]any{"metadata": map[string]any{"resourceVersion": claim.ResourceVersion}, "status": status})
	return err
}

// patchClaim changes the status of a claim.
func (r *Reader) patchClaim(ctx context.Context, claim *v1.PersistentVolumeClaim, change map[string]any) (*v1.PersistentVolumeClaim, error) {
	if len(validation.IsDNS1123Subdomain(claim.Name)) > 0 || len(validation.IsDNS1123Label(claim.Namespace)) > 0 {
		return nil, fmt.Errorf("%.80q in namespace %.80q is not a valid claim name", claim.Name, claim.Namespace)
	}
	body, err := json.Marshal(change)
	if err != nil {
		return nil, errors.New("cannot encode the status of a claim")
	}
	var is v1.PersistentVolumeClaim
	err = r.fetch(ctx, request{
		method: http.MethodPatch, path: []string{"api", "v1", "namespaces", claim.Namespace, "persistentvolumeclaims", claim.Name, "status"},
		json: body, content: "application/merge-patch+json", purpose: "update persistentvolumeclaim/" + claim.Namespace + "/" + claim.Name,
	}, &is)
	if err != nil {
		return nil, err
	}
	return &is, nil
}

// SecretData returns the content of a Secret that a volume of a pod on this node names, nil for a
// Secret that does not exist.
func (r *Reader) SecretData(ctx context.Context, namespace, name string) (map[string]string, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(namespace)) > 0 {
		return nil, fmt.Errorf("%.80q in namespace %.80q is not a valid secret name", name, namespace)
	}
	r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Namespace: namespace, Verb: "get", Version: "v1", Resource: "secrets", Name: name})
	var secret v1.Secret
	err := r.fetch(ctx, request{method: http.MethodGet, path: []string{"api", "v1", "namespaces", namespace, "secrets", name}, purpose: "read secret/" + namespace + "/" + name}, &secret)
	if isStatus(err, http.StatusNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all := make(map[string]string, len(secret.Data))
	for key, value := range secret.Data {
		all[key] = string(value)
	}
	return all, nil
}
