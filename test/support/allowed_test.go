//go:build linux

package support

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	corev1 "k8s.io/kubernetes/pkg/apis/core/v1"

	"github.com/nodectl/nodectl/pkg/cri"
	"github.com/nodectl/nodectl/pkg/cri/critest"
	"github.com/nodectl/nodectl/pkg/manifest"
	"github.com/nodectl/nodectl/pkg/pod"
	"github.com/nodectl/nodectl/pkg/policy"
	"github.com/nodectl/nodectl/pkg/volume"
)

// allowedSeeds are specs around the borders of the levels.
var allowedSeeds = []string{
	`{"containers":[{"name":"c","image":"a"}]}`,
	`{"containers":[{"name":"c","image":"a","securityContext":{"allowPrivilegeEscalation":false,"capabilities":{"drop":["ALL"],"add":["NET_BIND_SERVICE"]},"runAsNonRoot":true,"runAsUser":1,"seccompProfile":{"type":"RuntimeDefault"}},"volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","emptyDir":{}}]}`,
	`{"containers":[{"name":"c","image":"a","volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","hostPath":{"path":"/"}}]}`,
	`{"containers":[{"name":"c","image":"a","volumeMounts":[{"name":"v","mountPath":"/v"}]}],"volumes":[{"name":"v","emptyDir":{},"hostPath":{"path":"/"}}]}`,
	`{"containers":[{"name":"c","image":"a","volumeMounts":[{"name":"v","mountPath":"/v","subPath":"../../etc"}]}],"volumes":[{"name":"v","emptyDir":{}}]}`,
	`{"hostNetwork":true,"hostPID":true,"hostIPC":true,"containers":[{"name":"c","image":"a"}]}`,
	`{"containers":[{"name":"c","image":"a","securityContext":{"privileged":true}}]}`,
	`{"containers":[{"name":"c","image":"a","securityContext":{"capabilities":{"add":["SYS_ADMIN"]},"procMount":"Unmasked"}}]}`,
	`{"hostUsers":true,"securityContext":{"sysctls":[{"name":"kernel.msgmax","value":"1"}]},"containers":[{"name":"c","image":"a"}]}`,
	`{"os":{"name":"windows"},"securityContext":{"windowsOptions":{"hostProcess":true}},"hostNetwork":true,"containers":[{"name":"c","image":"a"}]}`,
	`{"containers":[{"name":"../c","image":"a"}]}`,
	`{"initContainers":[{"name":"i","image":"a","securityContext":{"privileged":true}}],"containers":[{"name":"c","image":"a"}]}`,
	`{"ephemeralContainers":[{"name":"e","image":"a","securityContext":{"privileged":true}}],"containers":[{"name":"c","image":"a"}]}`,
}

// FuzzAllowed compares a policy's decision about a pod with the requests for that pod to the
// container runtime. For every pod that a level allows, the sandbox, the mounts and the security
// contexts in the requests keep to that level.
//
// Shows: D1
func FuzzAllowed(f *testing.F) {
	for _, s := range allowedSeeds {
		f.Add([]byte(s), false)
		f.Add([]byte(s), true)
	}
	policies := map[string]*policy.Policy{}
	for _, level := range []string{"baseline", "restricted"} {
		text := "apiVersion: nodectl.dev/v1alpha1\nkind: SourcePolicy\ndefault: {podSecurity: {level: " + level + "}}\n"
		p, problems := policy.Parse([]byte(text), "policy.yaml", func(string, []string) string { return "" })
		if len(problems) > 0 {
			f.Fatal(problems)
		}
		policies[level] = p
	}
	f.Fuzz(func(t *testing.T, data []byte, restricted bool) {
		p := &v1.Pod{}
		if json.Unmarshal(data, &p.Spec) != nil {
			return
		}
		p.Name, p.Namespace, p.UID = "web", "default", "3f0c"
		corev1.SetObjectDefaults_Pod(p)
		want, problems := manifest.FromAPI(p, manifest.Options{Node: "n1", Source: "api", Location: "/kubeconfig", File: "default/web"})
		level := "baseline"
		if restricted {
			level = "restricted"
		}
		if len(problems) > 0 || len(policies[level].Check(want, "/kubeconfig")) > 0 {
			return
		}
		for i := range want.Pod.Spec.Volumes {
			if v := &want.Pod.Spec.Volumes[i]; v.EmptyDir == nil && v.HostPath == nil || v.EmptyDir != nil && v.EmptyDir.Medium != "" {
				return // needs objects, or mounts a file system
			}
		}
		sent(t, want, restricted)
	})
}

// sent starts the pod on a runtime in memory, and checks the requests to it. It returns the number
// of containers that it has checked.
func sent(t *testing.T, want *pod.Spec, restricted bool) (looked int) {
	dir := t.TempDir()
	for i := range want.Pod.Spec.Volumes {
		if want.Pod.Spec.Volumes[i].HostPath != nil { // before it is put in place
			t.Fatalf("a host path was allowed: %+v", want.Pod.Spec.Volumes[i].HostPath)
		}
	}
	rt := critest.New()
	runtime := rt.CRI(cri.Config{Node: "n1", RootDir: dir, NodeMemory: 8 << 30})
	volumes := volume.New(volume.Config{RootDir: dir})
	ctx := context.Background()
	if volumes.SetUp(ctx, want, pod.Place{}, 1) != nil {
		return 0
	}
	id, err := runtime.RunSandbox(ctx, pod.SandboxRequest{Want: want, Instance: 1, Warn: func(string, string) {}})
	if err != nil {
		return 0
	}
	box, _ := rt.SandboxConfig(want.Key)
	context := box.GetLinux().GetSecurityContext()
	isolated(t, "sandbox", context.GetPrivileged(), context.GetNamespaceOptions())
	for name := range box.GetLinux().GetSysctls() {
		if !slices.Contains(safeSysctls, name) {
			t.Errorf("sysctl %s", name)
		}
	}
	spec := &want.Pod.Spec
	var names []string
	for _, c := range append(slices.Clone(spec.InitContainers), spec.Containers...) {
		names = append(names, c.Name)
	}
	for _, c := range spec.EphemeralContainers {
		names = append(names, c.Name)
	}
	for _, name := range names {
		r := pod.CreateRequest{Want: want, Container: name, Sandbox: &pod.Sandbox{ID: id, Instance: 1, Ready: true}}
		if r.Mounts, err = volumes.Mounts(ctx, r); err != nil {
			continue
		}
		if _, err := runtime.CreateContainer(ctx, r); err != nil {
			continue
		}
		holdsLevel(t, dir, rt.ContainerConfig(want.Key, name), restricted)
		looked++
	}
	return looked
}

// TestAllowed_Pod_ReachesTheRuntime: FuzzAllowed checks real containers.
func TestAllowed_Pod_ReachesTheRuntime(t *testing.T) {
	t.Parallel()
	for i, restricted := range []bool{false, true} {
		p := &v1.Pod{}
		if err := json.Unmarshal([]byte(allowedSeeds[i]), &p.Spec); err != nil {
			t.Fatal(err)
		}
		p.Name, p.Namespace, p.UID = "web", "default", "3f0c"
		corev1.SetObjectDefaults_Pod(p)
		want, problems := manifest.FromAPI(p, manifest.Options{Node: "n1", Source: "api", Location: "/kubeconfig", File: "default/web"})
		if len(problems) > 0 {
			t.Fatal(problems)
		}
		if looked := sent(t, want, restricted); looked != 1 {
			t.Errorf("seed %d: looked at %d containers", i, looked)
		}
	}
}

// safeSysctls are those of the baseline level.
var safeSysctls = []string{
	"kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_unprivileged_port_start", "net.ipv4.tcp_syncookies",
	"net.ipv4.ping_group_range", "net.ipv4.ip_local_reserved_ports", "net.ipv4.tcp_keepalive_time", "net.ipv4.tcp_fin_timeout",
	"net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem",
}

// baselineCapabilities are those that the baseline level lets a container add.
var baselineCapabilities = []string{
	"AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "MKNOD", "NET_BIND_SERVICE", "SETFCAP", "SETGID", "SETPCAP", "SETUID", "SYS_CHROOT",
}

func isolated(t *testing.T, what string, privileged bool, n *runtimeapi.NamespaceOption) {
	t.Helper()
	node := runtimeapi.NamespaceMode_NODE
	if privileged || n.GetNetwork() == node || n.GetPid() == node || n.GetIpc() == node {
		t.Errorf("%s: privileged %v, namespaces %v", what, privileged, n)
	}
}

func holdsLevel(t *testing.T, dir string, c *runtimeapi.ContainerConfig, restricted bool) {
	t.Helper()
	for _, m := range c.GetMounts() {
		real, err := filepath.EvalSymlinks(m.GetHostPath())
		if err != nil && !os.IsNotExist(err) || m.GetHostPath() != "" && !strings.HasPrefix(real, dir+"/") {
			t.Errorf("mount of %s (%s, %v)", m.GetHostPath(), real, err)
		}
	}
	s := c.GetLinux().GetSecurityContext()
	isolated(t, c.GetMetadata().GetName(), s.GetPrivileged(), s.GetNamespaceOptions())
	for _, name := range s.GetCapabilities().GetAddCapabilities() {
		if !slices.Contains(baselineCapabilities, strings.TrimPrefix(name, "CAP_")) || restricted && name != "NET_BIND_SERVICE" {
			t.Errorf("capability %s", name)
		}
	}
	if len(s.GetMaskedPaths()) == 0 || len(c.GetDevices()) > 0 {
		t.Errorf("masked paths %v, devices %v", s.GetMaskedPaths(), c.GetDevices())
	}
	if !restricted {
		return
	}
	if !s.GetNoNewPrivs() || !slices.Contains(s.GetCapabilities().GetDropCapabilities(), "ALL") || s.GetSeccomp().GetProfileType() == runtimeapi.SecurityProfile_Unconfined {
		t.Errorf("no new privileges %v, dropped %v, seccomp %v", s.GetNoNewPrivs(), s.GetCapabilities().GetDropCapabilities(), s.GetSeccomp())
	}
	if s.GetRunAsUser() != nil && s.GetRunAsUser().GetValue() == 0 {
		t.Error("runs as root")
	}
}
