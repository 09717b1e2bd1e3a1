package critest

import (
	"fmt"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Handler is one runtime handler.
type Handler struct {
	Name                              string // "" is the default
	RecursiveReadOnly, UserNamespaces bool
}

// SetHandlers makes the runtime list these handlers, and accept no others. Without it the
// runtime lists none and accepts any.
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

// SetGroupsPolicy makes the runtime support the policy Strict for groups, and report the
// users of containers.
func (rt *Runtime) SetGroupsPolicy(known bool) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	rt.groupsPolicy = known
}

// SetImageUser sets an image's user: by number, or by name if uid is nil. Without it an
// image has none.
func (rt *Runtime) SetImageUser(image string, uid *int64, name string) {
	rt.mu.Lock()
	defer rt.mu.Unlock()
	user := &runtimeapi.Image{Username: name}
	if uid != nil {
		user.Uid = &runtimeapi.Int64Value{Value: *uid}
	}
	rt.imageUsers[image] = user
}

// SandboxConfig returns the config of the pod's newest sandbox, and its handler; nil if
// there is none.
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

// ContainerConfig returns the config of the newest container of that name; nil if there is
// none.
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

// checkHandler refuses a handler that is not listed. The caller holds the mutex.
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

// user is the user of the container's process; nil if the runtime does not report it. The
// caller holds the mutex.
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
