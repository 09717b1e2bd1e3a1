package cri

import (
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// namespaces returns the namespaces that the pod shares with the node and among its
// containers.
func namespaces(p *v1.Pod, users *pod.Users) (*runtimeapi.NamespaceOption, error) {
	ns := &runtimeapi.NamespaceOption{
		Network: runtimeapi.NamespaceMode_POD,
		Pid:     runtimeapi.NamespaceMode_CONTAINER,
		Ipc:     runtimeapi.NamespaceMode_POD,
	}
	if p.Spec.HostNetwork {
		ns.Network = runtimeapi.NamespaceMode_NODE
	}
	if p.Spec.HostIPC {
		ns.Ipc = runtimeapi.NamespaceMode_NODE
	}
	switch {
	case p.Spec.HostPID:
		ns.Pid = runtimeapi.NamespaceMode_NODE
	case yes(p.Spec.ShareProcessNamespace):
		ns.Pid = runtimeapi.NamespaceMode_POD
	}
	var err error
	ns.UsernsOptions, err = userNamespace(p, users)
	return ns, err
}

// userNamespace returns the pod's user namespace (C-1.42). A pod that shares a namespace
// with the node cannot have its own.
func userNamespace(p *v1.Pod, users *pod.Users) (*runtimeapi.UserNamespace, error) {
	if !ownUsers(p) {
		return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE}, nil
	}
	switch {
	case p.Spec.HostNetwork:
		return nil, errors.New("spec.hostUsers: false cannot be combined with hostNetwork")
	case p.Spec.HostPID:
		return nil, errors.New("spec.hostUsers: false cannot be combined with hostPID")
	case p.Spec.HostIPC:
		return nil, errors.New("spec.hostUsers: false cannot be combined with hostIPC")
	case users == nil || users.HostID == 0 || users.Length == 0: // 0 is the node's root
		return nil, errors.New("spec.hostUsers is false, and the pod has no allocated user IDs")
	}
	return &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_POD, Uids: mappings(users), Gids: mappings(users)}, nil
}

// inBlock refuses users and groups outside the pod's user namespace: the kernel would only
// return "invalid argument".
func inBlock(ns *runtimeapi.NamespaceOption, user, group *runtimeapi.Int64Value, groups []int64) error {
	ids := append([]int64{user.GetValue(), group.GetValue()}, groups...)
	for _, m := range ns.GetUsernsOptions().GetUids() {
		for _, id := range ids {
			if id < 0 || id >= int64(m.GetLength()) {
				return fmt.Errorf("spec.hostUsers is false, and the pod's user and group IDs end at %d: %d is not one of them", m.GetLength()-1, id)
			}
		}
	}
	return nil
}

// mappings converts the ID block to CRI; nil for none.
func mappings(users *pod.Users) []*runtimeapi.IDMapping {
	if users == nil {
		return nil
	}
	return []*runtimeapi.IDMapping{{HostId: users.HostID, Length: users.Length}}
}

// ownUsers reports whether the pod asks for a user namespace of its own.
func ownUsers(p *v1.Pod) bool { return p.Spec.HostUsers != nil && !*p.Spec.HostUsers }
