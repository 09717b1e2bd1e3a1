package critest

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Handler is one way of the runtime to run pods.
type Handler struct {
	Name                              string // "" is the default
	RecursiveReadOnly, UserNamespaces bool
}

// SetHandlers makes it a runtime that lists these handlers, and no others. At
// first it lists none and takes any.
func (rt *Runtime) SetHandlers(handlers ...Handler) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.handlers = nil
	for _, h := range handlers {
		rt.handlers = append(rt.handlers, &runtimeapi.RuntimeHandler{Name: h.Name, Features: &runtimeapi.RuntimeHandlerFeatures{
			RecursiveReadOnlyMounts: h.RecursiveReadOnly, UserNamespaces: h.UserNamespaces,
		}})
	}
}

// SetGroupsPolicy makes it a runtime that knows the policy Strict for groups, and
// says who containers run as.
func (rt *Runtime) SetGroupsPolicy(known bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.groupsPolicy = known
}

// SetImageUser makes an image name a user: by number, else by name where uid is
// nil. An image names none at first.
func (rt *Runtime) SetImageUser(image string, uid *int64, name string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	user := &runtimeapi.Image{Username: name}
	if uid != nil {
		user.Uid = &runtimeapi.Int64Value{Value: *uid}
	}
	rt.imageUsers[image] = user
}

// SandboxConfig returns what the newest sandbox of the pod was made from, and by
// which handler; nil when there is none.
func (rt *Runtime) SandboxConfig(key pod.Key) (*runtimeapi.PodSandboxConfig, string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var newest *sandbox
	for _, b := range rt.sandboxes {
		if keyOf(b.config) == key && (newest == nil || b.serial > newest.serial) {
			newest = b
		}
	}
	if newest == nil {
		return nil, ""
	}
	return newest.config, newest.handler
}

// ContainerConfig returns what the newest container of that name was made from;
// nil when there is none.
func (rt *Runtime) ContainerConfig(key pod.Key, name string) *runtimeapi.ContainerConfig {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	var newest *container
	for _, c := range rt.containers {
		if c.key() == key && c.config.GetMetadata().GetName() == name && (newest == nil || c.serial > newest.serial) {
			newest = c
		}
	}
	if newest == nil {
		return nil
	}
	return newest.config
}

// checkHandler refuses a handler that is not listed. The mutex is held.
func (rt *Runtime) checkHandler(name string) error {
	for _, h := range rt.handlers {
		if h.GetName() == name {
			return nil
		}
	}
	if len(rt.handlers) == 0 {
		return nil
	}
	return status.Error(codes.Unknown, fmt.Sprintf("failed to get sandbox runtime: no runtime for %q is configured", name))
}

// user is who the container's process is; nil from a runtime that does not say.
// The mutex is held.
func (rt *Runtime) user(c *container) *runtimeapi.ContainerUser {
	if !rt.groupsPolicy {
		return nil
	}
	sc := c.config.GetLinux().GetSecurityContext()
	gid := sc.GetRunAsGroup().GetValue()
	return &runtimeapi.ContainerUser{Linux: &runtimeapi.LinuxContainerUser{
		Uid: sc.GetRunAsUser().GetValue(), Gid: gid, SupplementalGroups: append([]int64{gid}, sc.GetSupplementalGroups()...),
	}}
}
