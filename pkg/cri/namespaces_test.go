package cri

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// Shows: C-1.42
func TestC_1_42_Namespaces(t *testing.T) {
	const cont, own, nodeMode = runtimeapi.NamespaceMode_CONTAINER, runtimeapi.NamespaceMode_POD, runtimeapi.NamespaceMode_NODE
	block := &pod.Users{HostID: 65536, Length: 131072}
	ids := []*runtimeapi.IDMapping{{HostId: 65536, ContainerId: 0, Length: 131072}}
	on, off := ptr.To(true), ptr.To(false)
	nodes := &runtimeapi.UserNamespace{Mode: nodeMode}
	for _, c := range []struct {
		name  string
		spec  v1.PodSpec
		users *pod.Users
		want  *runtimeapi.NamespaceOption
		wrong string
	}{
		{name: "none", want: &runtimeapi.NamespaceOption{Network: own, Pid: cont, Ipc: own, UsernsOptions: nodes}},
		{name: "network", spec: v1.PodSpec{HostNetwork: true}, want: &runtimeapi.NamespaceOption{Network: nodeMode, Pid: cont, Ipc: own, UsernsOptions: nodes}},
		{name: "IPC", spec: v1.PodSpec{HostIPC: true}, want: &runtimeapi.NamespaceOption{Network: own, Pid: cont, Ipc: nodeMode, UsernsOptions: nodes}},
		{name: "PID", spec: v1.PodSpec{HostPID: true}, want: &runtimeapi.NamespaceOption{Network: own, Pid: nodeMode, Ipc: own, UsernsOptions: nodes}},
		{name: "shared PID", spec: v1.PodSpec{ShareProcessNamespace: on}, want: &runtimeapi.NamespaceOption{Network: own, Pid: own, Ipc: own, UsernsOptions: nodes}},
		{name: "not shared PID", spec: v1.PodSpec{ShareProcessNamespace: off}, want: &runtimeapi.NamespaceOption{Network: own, Pid: cont, Ipc: own, UsernsOptions: nodes}},
		{name: "the node's PID over a shared one", spec: v1.PodSpec{HostPID: true, ShareProcessNamespace: on}, want: &runtimeapi.NamespaceOption{Network: own, Pid: nodeMode, Ipc: own, UsernsOptions: nodes}},
		{name: "the node's users", spec: v1.PodSpec{HostUsers: on}, users: block, want: &runtimeapi.NamespaceOption{Network: own, Pid: cont, Ipc: own, UsernsOptions: nodes}},
		{name: "its own users", spec: v1.PodSpec{HostUsers: off}, users: block, want: &runtimeapi.NamespaceOption{Network: own, Pid: cont, Ipc: own, UsernsOptions: &runtimeapi.UserNamespace{Mode: own, Uids: ids, Gids: ids}}},
		{name: "no users were given", spec: v1.PodSpec{HostUsers: off}, wrong: "spec.hostUsers is false, and the pod has no allocated user IDs"},
		{name: "root was given", spec: v1.PodSpec{HostUsers: off}, users: &pod.Users{Length: 65536}, wrong: "spec.hostUsers is false, and the pod has no allocated user IDs"},
		{name: "nothing was given", spec: v1.PodSpec{HostUsers: off}, users: &pod.Users{HostID: 65536}, wrong: "spec.hostUsers is false, and the pod has no allocated user IDs"},
		{name: "its own users on the node's network", spec: v1.PodSpec{HostUsers: off, HostNetwork: true}, users: block, wrong: "spec.hostUsers: false cannot be combined with hostNetwork"},
		{name: "its own users among the node's processes", spec: v1.PodSpec{HostUsers: off, HostPID: true}, users: block, wrong: "spec.hostUsers: false cannot be combined with hostPID"},
		{name: "its own users on the node's IPC", spec: v1.PodSpec{HostUsers: off, HostIPC: true}, users: block, wrong: "spec.hostUsers: false cannot be combined with hostIPC"},
	} {
		p := &v1.Pod{Spec: c.spec}
		got, err := namespaces(p, c.users)
		if c.wrong != "" {
			_, err2 := sandboxSecurity(p, c.users)
			_, err3 := (&node{}).containerSecurity(p, &v1.Container{}, c.users, nil)
			for _, err := range []error{err, err2, err3} {
				if err == nil || err.Error() != c.wrong {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
		same(t, c.name, c.want, got)
	}
}

// A pod with a user namespace cannot use IDs outside its block.
//
// Shows: C-1.42
func TestC_1_42_UsersOutsideTheBlock(t *testing.T) {
	block := &pod.Users{HostID: 131072, Length: 65536}
	for _, id := range []int64{0, 65535, 65536, 131072, 1 << 31} {
		for name, sc := range map[string]*v1.PodSecurityContext{
			"user": {RunAsUser: &id}, "group": {RunAsGroup: &id}, "volumes": {FSGroup: &id}, "groups": {SupplementalGroups: []int64{1, id}},
		} {
			p, con := one()
			p.Spec.SecurityContext = sc
			for _, own := range []bool{true, false} {
				p.Spec.HostUsers = ptr.To(!own)
				_, err := (&node{}).containerSecurity(p, con, block, nil)
				_, err2 := sandboxSecurity(p, block)
				if want := own && id > 65535; (err != nil) != want || (err2 != nil) != want {
					t.Errorf("%s %d, its own users %t: %v, %v", name, id, own, err, err2)
				}
			}
		}
		p, con := one()
		p.Spec.HostUsers = ptr.To(false)
		_, err := (&node{}).containerSecurity(p, con, block, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: id}})
		if want := fmt.Sprintf("spec.hostUsers is false, and the pod's user and group IDs end at 65535: %d is not one of them", id); id > 65535 && (err == nil || err.Error() != want) || id <= 65535 && err != nil {
			t.Errorf("the image's %d: %v", id, err)
		}
	}
}

func TestMounts_Invalid_AreRefused(t *testing.T) {
	for name, m := range map[string]pod.Mount{
		"nothing":                   {ContainerPath: "/x"},
		"path and image":            {ContainerPath: "/x", HostPath: "/a", Image: "i:1"},
		"part of a path":            {ContainerPath: "/x", HostPath: "/a", SubPath: "b"},
		"an unknown propagation":    {ContainerPath: "/x", HostPath: "/a", Propagation: "Sideways"},
		"read-only that propagates": {ContainerPath: "/x", HostPath: "/a", ReadOnly: true, RecursiveReadOnly: true, Propagation: "HostToContainer"},
	} {
		q := pod.CreateRequest{Want: fullPod(), Mounts: []pod.Mount{m}}
		if got, err := (&node{}).mounts(q); err == nil || !strings.Contains(err.Error(), "/x") {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	// Without SELinux in the kernel, no relabelling is requested.
	q := pod.CreateRequest{Want: fullPod(), Mounts: []pod.Mount{{HostPath: "/a", ContainerPath: "/x", Relabel: true}}}
	if got, err := (&node{}).mounts(q); err != nil || got[0].SelinuxRelabel {
		t.Errorf("%v, %v", got, err)
	}
}
