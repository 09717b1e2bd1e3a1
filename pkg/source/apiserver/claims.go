package apiserver

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	v1 "k8s.io/api/core/v1"
	nodev1 "k8s.io/api/node/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Claim returns the directory of this node that a claim of the pod's namespace is
// bound to. An error says that it is not bound yet, or to a volume that needs a
// driver. A node may get what its pods name, and neither list nor watch it.
func (s *Source) Claim(ctx context.Context, want *pod.Spec, name string) (*v1.HostPathVolumeSource, error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsDNS1123Label(want.Namespace)) > 0 {
		return nil, fmt.Errorf("%q in namespace %q cannot be a claim", name, want.Namespace)
	}
	s.awaitLeave(ctx, authorizationv1.ResourceAttributes{Namespace: want.Namespace, Verb: "get", Version: "v1", Resource: "persistentvolumeclaims", Name: name})
	var claim v1.PersistentVolumeClaim
	err := s.fetch(ctx, request{
		method: http.MethodGet, path: []string{"api", "v1", "namespaces", want.Namespace, "persistentvolumeclaims", name},
		what: "read persistentvolumeclaim/" + want.Namespace + "/" + name,
	}, &claim)
	switch {
	case err != nil:
		return nil, err
	case claim.DeletionTimestamp != nil && claim.Status.Phase != v1.ClaimBound:
		return nil, errors.New("is being deleted")
	case claim.Status.Phase != v1.ClaimBound || claim.Spec.VolumeName == "":
		return nil, errors.New("is not bound")
	case claim.Spec.VolumeMode != nil && *claim.Spec.VolumeMode != v1.PersistentVolumeFilesystem:
		return nil, errors.New("is a block device: only file systems are supported")
	case len(validation.IsDNS1123Subdomain(claim.Spec.VolumeName)) > 0:
		return nil, fmt.Errorf("%q cannot be a volume", claim.Spec.VolumeName)
	}
	s.awaitLeave(ctx, authorizationv1.ResourceAttributes{Verb: "get", Version: "v1", Resource: "persistentvolumes", Name: claim.Spec.VolumeName})
	var volume v1.PersistentVolume
	err = s.fetch(ctx, request{
		method: http.MethodGet, path: []string{"api", "v1", "persistentvolumes", claim.Spec.VolumeName},
		what: "read persistentvolume/" + claim.Spec.VolumeName,
	}, &volume)
	if err != nil {
		return nil, err
	}
	if of := volume.Spec.ClaimRef; of == nil || of.UID != claim.UID {
		return nil, fmt.Errorf("persistentvolume %q is bound to another claim", volume.Name)
	}
	switch {
	case volume.Spec.HostPath != nil:
		return volume.Spec.HostPath, nil
	case volume.Spec.Local != nil:
		directory := v1.HostPathDirectory
		return &v1.HostPathVolumeSource{Path: volume.Spec.Local.Path, Type: &directory}, nil
	}
	return nil, fmt.Errorf("persistentvolume %q needs a driver that nodectl does not have: hostPath and local volumes are supported", volume.Name)
}

// classes remembers handlers of runtime classes. A class's handler never changes, but
// its name may be given to another.
type classes struct {
	mu    sync.Mutex // guards what follows
	known map[string]class
}

type class struct {
	handler string
	asked   time.Time
}

// classFor is how long an answer about a runtime class holds.
const classFor = time.Minute

// Handler returns the runtime's handler of a RuntimeClass; ok is false where the
// server has none of that name. An error says that it could not be asked, and had not
// said before: nobody knows then whether there is one.
func (s *Source) Handler(ctx context.Context, name string) (handler string, ok bool, err error) {
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return "", false, nil
	}
	s.classes.mu.Lock()
	was, known := s.classes.known[name]
	s.classes.mu.Unlock()
	if known && time.Since(was.asked) < classFor {
		return was.handler, true, nil
	}
	wait := tokenFor
	if known { // there is something to go on with
		wait = firstAnswer
	}
	ctx, stop := context.WithTimeout(ctx, wait)
	defer stop()
	var is nodev1.RuntimeClass
	err = s.fetch(ctx, request{
		method: http.MethodGet, path: []string{"apis", "node.k8s.io", "v1", "runtimeclasses", name}, what: "read runtimeclass/" + name,
	}, &is)
	if err == nil && (is.Name != name || is.Handler == "") { // which would be the runtime's default
		err = errPartial
	}
	s.classes.mu.Lock()
	defer s.classes.mu.Unlock()
	refused := (*refusal)(nil)
	switch {
	case errors.As(err, &refused) && refused.status == http.StatusNotFound:
		delete(s.classes.known, name)
		return "", false, nil
	case err != nil && known:
		return was.handler, true, nil
	case err != nil:
		return "", false, err
	}
	if s.classes.known == nil {
		s.classes.known = make(map[string]class)
	}
	s.classes.known[name] = class{is.Handler, time.Now()}
	return is.Handler, true, nil
}
