package cri

import (
	"errors"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/ptr"

	"github.com/nodectl/nodectl/pkg/pod"
)

// securedPod sets every field of both security contexts, and shares all namespaces that a
// pod can share without the node.
func securedPod() *pod.Spec {
	want := fullPod()
	p := want.Pod
	p.Spec.ShareProcessNamespace = ptr.To(true)
	p.Spec.HostUsers = ptr.To(false)
	p.Spec.SecurityContext = &v1.PodSecurityContext{
		SELinuxOptions: &v1.SELinuxOptions{User: "pod_u", Role: "pod_r", Type: "pod_t", Level: "s0:c1,c2"},
		RunAsUser:      ptr.To(int64(1000)), RunAsGroup: ptr.To(int64(2000)), RunAsNonRoot: ptr.To(true),
		SupplementalGroups: []int64{3000, 3001}, SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict),
		FSGroup: ptr.To(int64(4000)), FSGroupChangePolicy: ptr.To(v1.FSGroupChangeOnRootMismatch),
		Sysctls:        []v1.Sysctl{{Name: "net/ipv4/ip_local_port_range", Value: "1024 65535"}},
		SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeUnconfined},
		// The pod's profile, which the container's replaces.
		AppArmorProfile: &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined},
	}
	p.Spec.InitContainers[0].SecurityContext = &v1.SecurityContext{Privileged: ptr.To(true)}
	p.Spec.Containers[0].SecurityContext = &v1.SecurityContext{
		Capabilities:             &v1.Capabilities{Add: []v1.Capability{"NET_ADMIN", "SYS_TIME"}, Drop: []v1.Capability{"ALL"}},
		Privileged:               ptr.To(false),
		SELinuxOptions:           &v1.SELinuxOptions{Type: "own_t", Level: "s0:c3,c4"},
		RunAsUser:                ptr.To(int64(1001)),
		RunAsGroup:               ptr.To(int64(2001)),
		RunAsNonRoot:             ptr.To(true),
		ReadOnlyRootFilesystem:   ptr.To(true),
		AllowPrivilegeEscalation: ptr.To(false),
		ProcMount:                ptr.To(v1.UnmaskedProcMount),
		SeccompProfile:           &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault},
		AppArmorProfile:          &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: ptr.To("tight")},
	}
	return want
}

// The golden files of a pod with every field, as the kubelet sends it.
//
// Shows: C-1.22.12
func TestC_1_22_12_SecuredSandbox(t *testing.T) {
	users := &pod.Users{HostID: 655360, Length: 65536}
	c, err := testRuntime().sandboxConfig(pod.SandboxRequest{Want: securedPod(), Instance: 1, Place: pod.Place{CgroupParent: "/kubepods/pod5e9c", Users: users}})
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "sandbox-secured.json", c)
}

// Shows: C-1.22.15
func TestC_1_22_15_SecuredContainer(t *testing.T) {
	users := &pod.Users{HostID: 655360, Length: 65536}
	q := pod.CreateRequest{
		Want: securedPod(), Container: "app", Sandbox: &pod.Sandbox{}, Place: pod.Place{Users: users},
		Mounts: []pod.Mount{
			{HostPath: "/a", ContainerPath: "/data", Users: users, Relabel: true},
			{HostPath: "/b", ContainerPath: "/ro", ReadOnly: true, RecursiveReadOnly: true, Users: users},
			{Image: "registry.example/data:1", SubPath: "files", ContainerPath: "/image", ReadOnly: true, Users: users},
		},
	}
	r := testRuntime()
	r.node.selinux = true
	c, err := r.containerConfig(q, &q.Want.Pod.Spec.Containers[0], webImage())
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "container-secured.json", c)
}

// TestEveryFieldReachesTheRuntime: securedPod sets every field of the API's security
// contexts, and without any of them the request differs. A new field of the API fails here.
func TestEveryFieldReachesTheRuntime(t *testing.T) {
	elsewhere := map[string]bool{
		"WindowsOptions": true, // refused
		"RunAsNonRoot":   true, // checked here, and not sent
		"Privileged":     true, // false is the default; see TestContainerSecurity_BooleanFields_AreSent
		// Used by volumes.
		"FSGroupChangePolicy": true, "SELinuxChangePolicy": true,
	}
	r, users := testRuntime(), &pod.Users{HostID: 655360, Length: 65536}
	sent := func(want *pod.Spec) string {
		t.Helper()
		box, err := r.sandboxConfig(pod.SandboxRequest{Want: want, Place: pod.Place{Users: users}})
		if err != nil {
			t.Fatal(err)
		}
		c, err := r.containerConfig(pod.CreateRequest{Want: want, Container: "app", Sandbox: &pod.Sandbox{}, Place: pod.Place{Users: users}}, &want.Pod.Spec.Containers[0], webImage())
		if err != nil {
			t.Fatal(err)
		}
		return string(canonical(t, box)) + string(canonical(t, c))
	}
	for _, level := range []string{"container", "pod"} {
		full := func() (*pod.Spec, reflect.Value) {
			want := securedPod()
			if level == "container" {
				return want, reflect.ValueOf(want.Pod.Spec.Containers[0].SecurityContext).Elem()
			}
			want.Pod.Spec.Containers[0].SecurityContext = nil
			want.Pod.Spec.SecurityContext.RunAsNonRoot = nil // else its user would be required
			return want, reflect.ValueOf(want.Pod.Spec.SecurityContext).Elem()
		}
		whole, context := full()
		for i := range context.NumField() {
			name := context.Type().Field(i).Name
			if elsewhere[name] {
				continue
			}
			if context.Field(i).IsZero() {
				t.Errorf("%s of the %s is not tested", name, level)
			}
			without, fields := full()
			fields.Field(i).SetZero()
			if sent(without) == sent(whole) {
				t.Errorf("%s of the %s changes nothing that is sent", name, level)
			}
		}
	}
}

// one returns a pod with a container, and that container.
func one() (*v1.Pod, *v1.Container) {
	p := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-n1", UID: "5e9c", Annotations: map[string]string{}},
		Spec:       v1.PodSpec{SecurityContext: &v1.PodSecurityContext{}, Containers: []v1.Container{{Name: "app", SecurityContext: &v1.SecurityContext{}}}},
	}
	return p, &p.Spec.Containers[0]
}

func secure(t *testing.T, n *node, p *v1.Pod, img *runtimeapi.Image) *runtimeapi.LinuxContainerSecurityContext {
	t.Helper()
	c, err := n.containerSecurity(p, &p.Spec.Containers[0], &pod.Users{HostID: 65536, Length: 65536}, img)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func same(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

// TestSecurity_NothingIsSet_IsStrict: a pod without any security context, and one with
// empty ones, get the strict defaults.
func TestSecurity_NothingIsSet_IsStrict(t *testing.T) {
	empty, _ := one()
	none := empty.DeepCopy()
	none.Spec.SecurityContext, none.Spec.Containers[0].SecurityContext = nil, nil
	for name, p := range map[string]*v1.Pod{"empty": empty, "none": none} {
		got := secure(t, &node{}, p, &runtimeapi.Image{})
		same(t, name, &runtimeapi.LinuxContainerSecurityContext{
			NamespaceOptions: &runtimeapi.NamespaceOption{
				Pid: runtimeapi.NamespaceMode_CONTAINER, UsernsOptions: &runtimeapi.UserNamespace{Mode: runtimeapi.NamespaceMode_NODE},
			},
			RunAsUser:   &runtimeapi.Int64Value{},
			Seccomp:     &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault},
			MaskedPaths: (&node{}).maskedPaths(), ReadonlyPaths: readonlyPaths(),
		}, got)
		if len(got.MaskedPaths) < 12 || !slices.Contains(got.MaskedPaths, "/proc/kcore") || !slices.Contains(got.ReadonlyPaths, "/proc/sys") {
			t.Errorf("%s: %v, %v", name, got.MaskedPaths, got.ReadonlyPaths)
		}
		box, err := sandboxSecurity(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		same(t, name+" sandbox", &runtimeapi.LinuxSandboxSecurityContext{
			NamespaceOptions: got.NamespaceOptions, Seccomp: got.Seccomp,
		}, box)
	}
}

// TestContainerOverPod: the container's fields replace the pod's.
func TestContainerOverPod(t *testing.T) {
	for _, c := range []struct {
		name string
		pod  v1.PodSecurityContext
		own  v1.SecurityContext
		want *runtimeapi.LinuxContainerSecurityContext // only the user and the label
	}{
		{
			name: "the pod's", pod: v1.PodSecurityContext{RunAsUser: ptr.To(int64(1)), RunAsGroup: ptr.To(int64(2)), SELinuxOptions: &v1.SELinuxOptions{User: "u", Type: "t"}},
			want: &runtimeapi.LinuxContainerSecurityContext{
				RunAsUser: &runtimeapi.Int64Value{Value: 1}, RunAsGroup: &runtimeapi.Int64Value{Value: 2}, SelinuxOptions: &runtimeapi.SELinuxOption{User: "u", Type: "t"},
			},
		},
		{
			name: "its own", pod: v1.PodSecurityContext{RunAsUser: ptr.To(int64(1)), RunAsGroup: ptr.To(int64(2)), SELinuxOptions: &v1.SELinuxOptions{User: "u", Type: "t"}},
			own: v1.SecurityContext{RunAsUser: ptr.To(int64(0)), RunAsGroup: ptr.To(int64(0)), SELinuxOptions: &v1.SELinuxOptions{Level: "l"}},
			want: &runtimeapi.LinuxContainerSecurityContext{
				RunAsUser: &runtimeapi.Int64Value{}, RunAsGroup: &runtimeapi.Int64Value{}, SelinuxOptions: &runtimeapi.SELinuxOption{Level: "l"},
			},
		},
		{
			name: "a group alone", pod: v1.PodSecurityContext{RunAsGroup: ptr.To(int64(2))},
			want: &runtimeapi.LinuxContainerSecurityContext{RunAsUser: &runtimeapi.Int64Value{Value: 65532}, RunAsGroup: &runtimeapi.Int64Value{Value: 2}},
		},
	} {
		p, con := one()
		p.Spec.SecurityContext, con.SecurityContext = &c.pod, &c.own
		got := secure(t, &node{}, p, &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 65532}})
		same(t, c.name, c.want, &runtimeapi.LinuxContainerSecurityContext{
			RunAsUser: got.RunAsUser, RunAsUsername: got.RunAsUsername, RunAsGroup: got.RunAsGroup, SelinuxOptions: got.SelinuxOptions,
		})
	}
}

// CVE-2021-25749: an image's user is known by its number only.
//
// Shows: D1
func TestCVE_2021_25749_RunAsNonRoot(t *testing.T) {
	const who = ` (pod: "web-n1_shop(5e9c)", container: app)`
	uid := func(n int64) *runtimeapi.Image { return &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: n}} }
	for _, c := range []struct {
		name     string
		pod, own *bool
		podUser  *int64
		user     *int64
		img      *runtimeapi.Image
		wrong    string
		runsAs   int64
		runsName string
	}{
		{name: "not asked, root", img: uid(0)},
		{name: "not asked, no user", img: &runtimeapi.Image{}},
		{name: "not asked, no image", img: nil},
		{name: "not asked, a name", img: &runtimeapi.Image{Username: "app"}, runsAs: -1, runsName: "app"},
		{name: "the container over the pod", pod: ptr.To(true), own: ptr.To(false), img: uid(0)},
		{name: "a number", own: ptr.To(true), img: uid(65532), runsAs: 65532},
		{name: "a number and a name", own: ptr.To(true), img: &runtimeapi.Image{Uid: &runtimeapi.Int64Value{Value: 7}, Username: "x"}, runsAs: 7},
		{name: "root", own: ptr.To(true), img: uid(0), wrong: "container has runAsNonRoot and image will run as root" + who},
		{name: "root, by the pod", pod: ptr.To(true), img: uid(0), wrong: "container has runAsNonRoot and image will run as root" + who},
		{name: "no user", own: ptr.To(true), img: &runtimeapi.Image{}, wrong: "container has runAsNonRoot and image will run as root" + who},
		{name: "no image", own: ptr.To(true), img: nil, wrong: "container has runAsNonRoot and image will run as root" + who},
		{name: "a name", own: ptr.To(true), img: &runtimeapi.Image{Username: "app"}, wrong: "container has runAsNonRoot and image has non-numeric user (app), cannot verify user is non-root" + who},
		{name: "root's name", own: ptr.To(true), img: &runtimeapi.Image{Username: "root"}, wrong: "container has runAsNonRoot and image has non-numeric user (root), cannot verify user is non-root" + who},
		{name: "root of Windows", own: ptr.To(true), img: &runtimeapi.Image{Username: "ContainerAdministrator"}, wrong: "container has runAsNonRoot and image has non-numeric user (ContainerAdministrator), cannot verify user is non-root" + who},
		{name: "a negative number", own: ptr.To(true), img: uid(-1), wrong: "container has runAsNonRoot and image has an invalid user id (-1). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive" + who},
		{name: "a number that is root's in 32 bits", own: ptr.To(true), img: uid(1 << 32), wrong: "container has runAsNonRoot and image has an invalid user id (4294967296). (Must be 1-(2147483647)): must be between 0 and 2147483647, inclusive" + who},
		{name: "its own number", own: ptr.To(true), user: ptr.To(int64(9)), img: &runtimeapi.Image{Username: "root"}, runsAs: 9},
		{name: "the pod's number", own: ptr.To(true), podUser: ptr.To(int64(8)), img: uid(0), runsAs: 8},
		{name: "its own is root", own: ptr.To(true), user: ptr.To(int64(0)), podUser: ptr.To(int64(8)), img: uid(9), wrong: "container's runAsUser breaks non-root policy" + who},
		{name: "the pod's is root", pod: ptr.To(true), podUser: ptr.To(int64(0)), img: uid(9), wrong: "container's runAsUser breaks non-root policy" + who},
	} {
		p, con := one()
		p.Spec.SecurityContext.RunAsNonRoot, p.Spec.SecurityContext.RunAsUser = c.pod, c.podUser
		con.SecurityContext.RunAsNonRoot, con.SecurityContext.RunAsUser = c.own, c.user
		got, err := (&node{}).containerSecurity(p, con, nil, c.img)
		if c.wrong != "" {
			if err == nil || err.Error() != c.wrong {
				t.Errorf("%s: %v, want %s", c.name, err, c.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		want := &runtimeapi.Int64Value{Value: c.runsAs}
		if c.runsAs < 0 {
			want = nil
		}
		same(t, c.name, want, got.RunAsUser)
		if got.RunAsUsername != c.runsName {
			t.Errorf("%s: runs as %q", c.name, got.RunAsUsername)
		}
	}
}

func TestGroups(t *testing.T) {
	for _, c := range []struct {
		name   string
		sc     v1.PodSecurityContext
		list   []int64
		policy runtimeapi.SupplementalGroupsPolicy
		wrong  string
	}{
		{name: "none"},
		{name: "groups", sc: v1.PodSecurityContext{SupplementalGroups: []int64{3, 1}}, list: []int64{3, 1}},
		{name: "the volumes' first", sc: v1.PodSecurityContext{SupplementalGroups: []int64{3, 1}, FSGroup: ptr.To(int64(2))}, list: []int64{2, 3, 1}},
		{name: "root's", sc: v1.PodSecurityContext{FSGroup: ptr.To(int64(0))}, list: []int64{0}},
		{name: "Merge", sc: v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyMerge)}},
		{name: "Strict", sc: v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicyStrict)}, policy: runtimeapi.SupplementalGroupsPolicy_Strict},
		{name: "an empty policy", sc: v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicy(""))}, wrong: `unsupported supplementalGroupsPolicy: ""`},
		{name: "another case", sc: v1.PodSecurityContext{SupplementalGroupsPolicy: ptr.To(v1.SupplementalGroupsPolicy("strict"))}, wrong: `unsupported supplementalGroupsPolicy: "strict"`},
	} {
		p, con := one()
		p.Spec.SecurityContext = &c.sc
		got, err := (&node{}).containerSecurity(p, con, nil, nil)
		box, err2 := sandboxSecurity(p, nil)
		if c.wrong != "" {
			if err == nil || err2 == nil || err.Error() != c.wrong || err2.Error() != c.wrong {
				t.Errorf("%s: %v, %v", c.name, err, err2)
			}
			continue
		}
		if err := errors.Join(err, err2); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !slices.Equal(got.SupplementalGroups, c.list) || got.SupplementalGroupsPolicy != c.policy ||
			!slices.Equal(box.SupplementalGroups, c.list) || box.SupplementalGroupsPolicy != c.policy {
			t.Errorf("%s: %v %v, sandbox %v %v", c.name, got.SupplementalGroups, got.SupplementalGroupsPolicy, box.SupplementalGroups, box.SupplementalGroupsPolicy)
		}
	}
}

func TestContainerSecurity_BooleanFields_AreSent(t *testing.T) {
	none, off, on := (*bool)(nil), ptr.To(false), ptr.To(true)
	for _, c := range []struct {
		set         *bool
		is, noPrivs bool
	}{{none, false, false}, {off, false, true}, {on, true, false}} {
		p, con := one()
		con.SecurityContext = &v1.SecurityContext{Privileged: c.set, ReadOnlyRootFilesystem: c.set, AllowPrivilegeEscalation: c.set}
		got := secure(t, &node{}, p, nil)
		if got.Privileged != c.is || got.ReadonlyRootfs != c.is || got.NoNewPrivs != c.noPrivs {
			t.Errorf("%v: %+v", c.set, got)
		}
	}
}

// The sandbox must be privileged if any container of the pod, of whatever kind, will be.
func TestPrivilegedSandbox(t *testing.T) {
	sc := &v1.SecurityContext{Privileged: ptr.To(true)}
	for name, set := range map[string]func(*v1.Pod){
		"container":      func(p *v1.Pod) { p.Spec.Containers[0].SecurityContext = sc },
		"init container": func(p *v1.Pod) { p.Spec.InitContainers = []v1.Container{{SecurityContext: sc}} },
		"ephemeral container": func(p *v1.Pod) {
			p.Spec.EphemeralContainers = []v1.EphemeralContainer{{EphemeralContainerCommon: v1.EphemeralContainerCommon{SecurityContext: sc}}}
		},
	} {
		p, _ := one()
		set(p)
		if got, err := sandboxSecurity(p, nil); err != nil || !got.Privileged || got.Seccomp.ProfileType != runtimeapi.SecurityProfile_RuntimeDefault {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
}

func TestCapabilities(t *testing.T) {
	p, con := one()
	con.SecurityContext.Capabilities = &v1.Capabilities{Add: []v1.Capability{"NET_BIND_SERVICE", "CAP_CHOWN"}, Drop: []v1.Capability{"ALL"}}
	same(t, "capabilities", &runtimeapi.Capability{AddCapabilities: []string{"NET_BIND_SERVICE", "CAP_CHOWN"}, DropCapabilities: []string{"ALL"}},
		secure(t, &node{}, p, nil).Capabilities)
	for _, c := range []v1.Capabilities{{Add: []v1.Capability{""}}, {Drop: []v1.Capability{"ALL", ""}}} {
		con.SecurityContext.Capabilities = &c
		if _, err := (&node{}).containerSecurity(p, con, nil, nil); err == nil || err.Error() != "a capability has no name" {
			t.Errorf("%v: %v", c, err)
		}
	}
}

func TestProcMount(t *testing.T) {
	n := &node{throttles: []string{"/sys/devices/system/cpu/cpu0/thermal_throttle"}}
	for _, c := range []struct {
		mode  *v1.ProcMountType
		own   bool // a user namespace
		open  bool
		wrong string
	}{
		{mode: nil},
		{mode: ptr.To(v1.DefaultProcMount)},
		{mode: ptr.To(v1.UnmaskedProcMount), own: true, open: true},
		{mode: ptr.To(v1.UnmaskedProcMount), wrong: "procMount Unmasked needs spec.hostUsers: false"},
		{mode: ptr.To(v1.ProcMountType("")), own: true, wrong: `unknown procMount ""`},
		{mode: ptr.To(v1.ProcMountType("unmasked")), own: true, wrong: `unknown procMount "unmasked"`},
	} {
		p, con := one()
		con.SecurityContext.ProcMount = c.mode
		if c.own {
			p.Spec.HostUsers = ptr.To(false)
		}
		got, err := n.containerSecurity(p, con, &pod.Users{HostID: 65536, Length: 65536}, nil)
		if c.wrong != "" {
			if err == nil || err.Error() != c.wrong {
				t.Errorf("%v: %v", *c.mode, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if masked, ro := len(got.MaskedPaths), len(got.ReadonlyPaths); c.open != (masked == 0 && ro == 0) || !c.open && (masked != 13 || ro != 5) {
			t.Errorf("%v: %d masked, %d read-only", c.mode, masked, ro)
		}
	}
}

// Reading a pod's security changes neither the pod nor its contexts.
func TestSecurityLeavesThePodAlone(t *testing.T) {
	want := securedPod()
	before := want.Pod.DeepCopy()
	users := &pod.Users{HostID: 655360, Length: 65536}
	if _, err := testRuntime().node.containerSecurity(want.Pod, &want.Pod.Spec.Containers[0], users, webImage()); err != nil {
		t.Fatal(err)
	}
	if _, err := sandboxSecurity(want.Pod, users); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(before, want.Pod); diff != "" {
		t.Error(diff)
	}
}
