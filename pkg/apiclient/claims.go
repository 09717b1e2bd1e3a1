package apiclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/migration"
	"github.com/nodectl/nodectl/pkg/pod"
)

// Pod returns a pod that is bound to a node, as the server has it now; nil if there is none. It
// asks for a list: a server answers a node's GET of a deleted pod with 403 and not with 404,
// because its node authorizer grants a GET only of pods that it knows to be bound to the node. It
// grants each list that selects the node (authorizePod in
// plugin/pkg/auth/authorizer/node/node_authorizer.go of Kubernetes 1.36).
func (r *Reader) Pod(ctx context.Context, node, namespace, name string) (*v1.Pod, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(namespace)) > 0 {
		return nil, fmt.Errorf("%q in namespace %q is not a valid pod name", name, namespace)
	}
	transport, err := r.Transport()
	if err != nil {
		return nil, err
	}
	all, err := transport.List(ctx, podOf(node, namespace, name), r.Tuning.PageSize)
	if err != nil {
		return nil, err
	}
	for _, o := range all.Objects {
		if p, ok := o.(*v1.Pod); ok && p.Namespace == namespace && p.Name == name && p.Spec.NodeName == node {
			return p, nil
		}
	}
	return nil, nil
}

// Claim returns the volume that a claim of the pod's namespace is bound to: a directory of this node or
// of an NFS server, or a volume of a CSI driver, which may stand for the volume of a cloud. The error says
// that it is not bound yet, or to a volume of another kind. A node may get the claims that its pods name, but neither list nor watch them.
func (r *Reader) Claim(ctx context.Context, want *pod.Spec, name string) (pod.BoundVolume, error) {
	claim, err := r.boundClaim(ctx, want, name)
	if err != nil {
		return pod.BoundVolume{}, err
	}
	r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "persistentvolumes", Name: claim.Spec.VolumeName})
	var volume v1.PersistentVolume
	err = r.fetch(ctx, request{
		method: http.MethodGet, path: []string{"api", "v1", "persistentvolumes", claim.Spec.VolumeName},
		purpose: "read persistentvolume/" + claim.Spec.VolumeName,
	}, &volume)
	if err != nil {
		return pod.BoundVolume{}, err
	}
	if of := volume.Spec.ClaimRef; of == nil || of.UID != claim.UID || volume.Name != claim.Spec.VolumeName {
		return pod.BoundVolume{}, fmt.Errorf("persistentvolume %q is bound to another claim", volume.Name)
	}
	bound := pod.BoundVolume{Claim: claim}
	migrated, err := migration.Persistent(&volume)
	if err != nil {
		return pod.BoundVolume{}, fmt.Errorf("persistentvolume %q: %w", volume.Name, err)
	}
	switch {
	case migrated != nil:
		bound.CSI = migrated
	case pod.IsBlock(&volume) && volume.Spec.CSI == nil:
		return pod.BoundVolume{}, errBlock
	case volume.Spec.HostPath != nil:
		bound.Directory = volume.Spec.HostPath
	case volume.Spec.Local != nil:
		directory := v1.HostPathDirectory
		bound.Directory = &v1.HostPathVolumeSource{Path: volume.Spec.Local.Path, Type: &directory}
	case volume.Spec.CSI != nil:
		bound.CSI = &volume
	case volume.Spec.NFS != nil:
		bound.NFS = &volume
	default:
		return pod.BoundVolume{}, fmt.Errorf("persistentvolume %q is of type %s, which nodectl does not have: csi, nfs, hostPath and local volumes are supported", volume.Name, sourceName(&volume.Spec.PersistentVolumeSource))
	}
	return bound, nil
}

// sourceName returns the name of the type of a volume, as its object has it.
func sourceName(s *v1.PersistentVolumeSource) string {
	text, err := json.Marshal(s)
	var fields map[string]json.RawMessage
	if err != nil || json.Unmarshal(text, &fields) != nil || len(fields) != 1 {
		return "unknown"
	}
	for name := range fields {
		return name
	}
	return "unknown"
}

// errBlock refuses a block volume.
var errBlock = errors.New("is a block device: only block volumes of CSI drivers are supported")

// boundClaim returns a claim of the pod's namespace that is bound to a volume.
func (r *Reader) boundClaim(ctx context.Context, want *pod.Spec, name string) (*v1.PersistentVolumeClaim, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(want.Namespace)) > 0 {
		return nil, fmt.Errorf("%q in namespace %q is not a valid claim name", name, want.Namespace)
	}
	r.awaitPermission(ctx, authorizationv1.ResourceAttributes{Namespace: want.Namespace, Verb: "get", Version: "v1", Resource: "persistentvolumeclaims", Name: name})
	var claim v1.PersistentVolumeClaim
	err := r.fetch(ctx, request{
		method: http.MethodGet, path: []string{"api", "v1", "namespaces", want.Namespace, "persistentvolumeclaims", name},
		purpose: "read persistentvolumeclaim/" + want.Namespace + "/" + name,
	}, &claim)
	switch {
	case err != nil:
		return nil, err
	case claim.DeletionTimestamp != nil && claim.Status.Phase != v1.ClaimBound:
		return nil, errors.New("is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, errors.New("is not bound")
	case len(validation.IsDNS1123Subdomain(claim.Spec.VolumeName)) > 0:
		return nil, fmt.Errorf("%q is not a valid volume name", claim.Spec.VolumeName)
	}
	return &claim, nil
}
