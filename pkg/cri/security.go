package cri

import (
	"errors"
	"fmt"
	"math"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// containerSecurity is the container's user and privileges: its own security context over
// the pod's. Only this function decides them, for every start (CVE-2019-11245). img is the
// image that the container is made from; a profile or mode with an unknown type is an
// error.
func (n *node) containerSecurity(p *v1.Pod, c *v1.Container, users *pod.Users, img *runtimeapi.Image) (*runtimeapi.LinuxContainerSecurityContext, error) {
	sc := effective(p, c)
	if err := checkNonRoot(p, c, sc, img); err != nil {
		return nil, err
	}
	ns, err := namespaces(p, users)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: ns,
		Privileged:       yes(sc.Privileged),
		ReadonlyRootfs:   yes(sc.ReadOnlyRootFilesystem),
		NoNewPrivs:       sc.AllowPrivilegeEscalation != nil && !*sc.AllowPrivilegeEscalation,
		SelinuxOptions:   seLinux(sc.SELinuxOptions),
		RunAsUser:        number64(sc.RunAsUser),
		RunAsGroup:       number64(sc.RunAsGroup),
	}
	if out.RunAsUser == nil {
		out.RunAsUser, out.RunAsUsername = imageUser(img)
	}
	if out.Capabilities, err = capabilities(sc.Capabilities); err != nil {
		return nil, err
	}
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(p.Spec.SecurityContext); err != nil {
		return nil, err
	}
	if err := inBlock(ns, out.RunAsUser, out.RunAsGroup, out.SupplementalGroups); err != nil {
		return nil, err
	}
	if out.MaskedPaths, out.ReadonlyPaths, err = n.procPaths(p, sc.ProcMount); err != nil {
		return nil, err
	}
	if out.Seccomp, err = n.seccomp(sc.SeccompProfile); err != nil {
		return nil, err
	}
	if out.Apparmor, out.ApparmorProfile, err = appArmor(p, c); err != nil { //nolint:staticcheck // older runtimes read it
		return nil, err
	}
	return out, nil
}

// sandboxSeccomp is the profile of the sandbox's own process: the one for its pause
// program, else the runtime's default. No pod chooses it.
func (r *Runtime) sandboxSeccomp() *runtimeapi.SecurityProfile {
	if r.cfg.PauseProfile == nil {
		return runtimeDefault()
	}
	path, err := r.cfg.PauseProfile()
	if err != nil {
		r.cfg.Log.Warn("Starting sandbox with the runtime's default seccomp profile", "error", err)
	}
	if err != nil || path == "" {
		return runtimeDefault()
	}
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}
}

// sandboxSecurity is the security context that the pod's containers share (C-1.22.12). Its
// seccomp profile is the runtime's default, which sandboxConfig replaces, see
// sandboxSeccomp.
func sandboxSecurity(p *v1.Pod, users *pod.Users) (*runtimeapi.LinuxSandboxSecurityContext, error) {
	ns, err := namespaces(p, users)
	if err != nil {
		return nil, err
	}
	out := &runtimeapi.LinuxSandboxSecurityContext{
		NamespaceOptions: ns,
		Privileged:       privileged(p),
		Seccomp:          runtimeDefault(),
	}
	sc := p.Spec.SecurityContext
	if sc == nil {
		return out, nil
	}
	out.RunAsUser, out.RunAsGroup, out.SelinuxOptions = number64(sc.RunAsUser), number64(sc.RunAsGroup), seLinux(sc.SELinuxOptions)
	if out.SupplementalGroups, out.SupplementalGroupsPolicy, err = groups(sc); err != nil {
		return nil, err
	}
	return out, inBlock(ns, out.RunAsUser, out.RunAsGroup, out.SupplementalGroups)
}

// effective is the container's security context, with the pod's values for fields that it
// does not set. AppArmor has a rule of its own, see appArmor.
func effective(p *v1.Pod, c *v1.Container) v1.SecurityContext {
	var sc v1.SecurityContext
	if c.SecurityContext != nil {
		sc = *c.SecurityContext
	}
	of := p.Spec.SecurityContext
	if of == nil {
		return sc
	}
	if sc.SELinuxOptions == nil {
		sc.SELinuxOptions = of.SELinuxOptions
	}
	if sc.RunAsUser == nil {
		sc.RunAsUser = of.RunAsUser
	}
	if sc.RunAsGroup == nil {
		sc.RunAsGroup = of.RunAsGroup
	}
	if sc.RunAsNonRoot == nil {
		sc.RunAsNonRoot = of.RunAsNonRoot
	}
	if sc.SeccompProfile == nil {
		sc.SeccompProfile = of.SeccompProfile
	}
	return sc
}

// imageUser is the user that an image names, by number or else by name. If the image names
// none, or img is nil, the user is root.
func imageUser(img *runtimeapi.Image) (*runtimeapi.Int64Value, string) {
	switch {
	case img.GetUid() != nil:
		return &runtimeapi.Int64Value{Value: img.GetUid().GetValue()}, ""
	case img.GetUsername() != "":
		return nil, img.GetUsername()
	}
	return &runtimeapi.Int64Value{}, ""
}

// checkNonRoot refuses a container that must not run as root and would, or might. A user
// name proves nothing, as the image can map it to 0 (C-1.22.15, CVE-2021-25749).
func checkNonRoot(p *v1.Pod, c *v1.Container, sc v1.SecurityContext, img *runtimeapi.Image) error {
	if !yes(sc.RunAsNonRoot) {
		return nil
	}
	who := fmt.Sprintf("(pod: \"%s_%s(%s)\", container: %s)", p.Name, p.Namespace, p.UID, c.Name)
	if sc.RunAsUser != nil {
		if *sc.RunAsUser == 0 {
			return fmt.Errorf("container's runAsUser breaks non-root policy %s", who)
		}
		return nil
	}
	uid, name := imageUser(img)
	switch {
	case uid == nil:
		return fmt.Errorf("container has runAsNonRoot and image has non-numeric user (%s), cannot verify user is non-root %s", name, who)
	case uid.GetValue() == 0:
		return fmt.Errorf("container has runAsNonRoot and image will run as root %s", who)
	}
	if wrong := validation.IsValidUserID(uid.GetValue()); len(wrong) > 0 {
		return fmt.Errorf("container has runAsNonRoot and image has an invalid user id (%d). (Must be 1-(%d)): %s %s",
			uid.GetValue(), math.MaxInt32, strings.Join(wrong, "; "), who)
	}
	return nil
}

// groups are the supplementary groups of a process, the pod's fsGroup first.
func groups(sc *v1.PodSecurityContext) (list []int64, policy runtimeapi.SupplementalGroupsPolicy, err error) {
	if sc == nil {
		return nil, 0, nil
	}
	if sc.FSGroup != nil {
		list = append(list, *sc.FSGroup)
	}
	list = append(list, sc.SupplementalGroups...)
	if sc.SupplementalGroupsPolicy == nil {
		return list, runtimeapi.SupplementalGroupsPolicy_Merge, nil
	}
	switch *sc.SupplementalGroupsPolicy {
	case v1.SupplementalGroupsPolicyMerge:
		return list, runtimeapi.SupplementalGroupsPolicy_Merge, nil
	case v1.SupplementalGroupsPolicyStrict:
		return list, runtimeapi.SupplementalGroupsPolicy_Strict, nil
	}
	return nil, 0, fmt.Errorf("unsupported supplementalGroupsPolicy: %q", *sc.SupplementalGroupsPolicy)
}

func capabilities(c *v1.Capabilities) (*runtimeapi.Capability, error) {
	if c == nil {
		return nil, nil
	}
	out := &runtimeapi.Capability{}
	for _, list := range []struct {
		from []v1.Capability
		to   *[]string
	}{{c.Add, &out.AddCapabilities}, {c.Drop, &out.DropCapabilities}} {
		for _, name := range list.from {
			if name == "" {
				return nil, errors.New("a capability has no name")
			}
			*list.to = append(*list.to, string(name))
		}
	}
	return out, nil
}

func seLinux(o *v1.SELinuxOptions) *runtimeapi.SELinuxOption {
	if o == nil {
		return nil
	}
	return &runtimeapi.SELinuxOption{User: o.User, Role: o.Role, Type: o.Type, Level: o.Level}
}

// procPaths are the paths of /proc and /sys that a container cannot see, and those that it
// cannot write. The lists must be sent: containerd takes a missing one for an empty one.
func (n *node) procPaths(p *v1.Pod, mode *v1.ProcMountType) (masked, readonly []string, err error) {
	if mode == nil {
		return n.maskedPaths(), readonlyPaths(), nil
	}
	switch *mode {
	case v1.DefaultProcMount:
		return n.maskedPaths(), readonlyPaths(), nil
	case v1.UnmaskedProcMount:
		if !ownUsers(p) {
			return nil, nil, errors.New("procMount Unmasked needs spec.hostUsers: false")
		}
		return nil, nil, nil
	}
	return nil, nil, fmt.Errorf("unknown procMount %q", *mode)
}

// maskedPaths are the files of /proc and /sys that reveal facts of the machine or allow
// attacks; a container sees nothing there.
func (n *node) maskedPaths() []string {
	return append([]string{
		"/proc/acpi", "/proc/asound", "/proc/interrupts", "/proc/kcore", "/proc/keys", "/proc/latency_stats",
		"/proc/sched_debug", "/proc/scsi", "/proc/timer_list", "/proc/timer_stats",
		"/sys/devices/virtual/powercap", "/sys/firmware",
	}, n.throttles...)
}

// readonlyPaths are the parts of /proc that change the machine.
func readonlyPaths() []string {
	return []string{"/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"}
}

// privileged reports whether any container of the pod is privileged: the runtime needs it
// to make the sandbox.
func privileged(p *v1.Pod) bool {
	is := func(sc *v1.SecurityContext) bool { return sc != nil && yes(sc.Privileged) }
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			if is(list[i].SecurityContext) {
				return true
			}
		}
	}
	for i := range p.Spec.EphemeralContainers {
		if is(p.Spec.EphemeralContainers[i].SecurityContext) {
			return true
		}
	}
	return false
}

func yes(b *bool) bool { return b != nil && *b }

func number64(n *int64) *runtimeapi.Int64Value {
	if n == nil {
		return nil
	}
	return &runtimeapi.Int64Value{Value: *n}
}
