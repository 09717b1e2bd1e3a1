package cri

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
	v1 "k8s.io/api/core/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// node is the node's part in a container's security, beside its pod and its image. It is
// read once.
type node struct {
	seccompDir string   // "" means no profiles
	throttles  []string // directories of the processors' throttling counters, which containers do not see
	selinux    bool     // the kernel labels files
}

func newNode(seccompDir string) *node {
	n := &node{seccompDir: seccompDir}
	n.throttles, _ = filepath.Glob("/sys/devices/system/cpu/cpu[0-9]*/thermal_throttle") // the pattern is good
	slices.Sort(n.throttles)
	var st unix.Statfs_t
	n.selinux = unix.Statfs("/sys/fs/selinux", &st) == nil && st.Type == unix.SELINUX_MAGIC
	return n
}

func runtimeDefault() *runtimeapi.SecurityProfile {
	return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_RuntimeDefault}
}

// seccomp is the container's seccomp profile: the runtime's default if the pod names none.
// Only the type Unconfined leaves it unconfined (CVE-2023-2431).
func (n *node) seccomp(s *v1.SeccompProfile) (*runtimeapi.SecurityProfile, error) {
	if s == nil {
		return runtimeDefault(), nil
	}
	if s.LocalhostProfile != nil && s.Type != v1.SeccompProfileTypeLocalhost {
		return nil, fmt.Errorf("seccompProfile: localhostProfile may only be set if the type is Localhost, and it is %q", s.Type)
	}
	switch s.Type {
	case v1.SeccompProfileTypeRuntimeDefault:
		return runtimeDefault(), nil
	case v1.SeccompProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, nil
	case v1.SeccompProfileTypeLocalhost:
		if s.LocalhostProfile == nil || *s.LocalhostProfile == "" {
			return nil, errors.New("seccompProfile: localhostProfile must be set if the type is Localhost")
		}
		path, err := n.seccompFile(*s.LocalhostProfile)
		if err != nil {
			return nil, fmt.Errorf("seccompProfile: localhostProfile %q: %w", *s.LocalhostProfile, err)
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: path}, nil
	}
	return nil, fmt.Errorf("seccompProfile: unknown type %q", s.Type)
}

// seccompFile returns the path of a profile, which must be a regular file below the
// directory for them. Neither its name nor a link may lead out of it.
func (n *node) seccompFile(name string) (string, error) {
	if n.seccompDir == "" {
		return "", errors.New("this node has no directory for profiles")
	}
	if filepath.IsAbs(name) || !filepath.IsLocal(name) {
		return "", errors.New("it must be a path below the directory for profiles")
	}
	root, err := os.OpenRoot(n.seccompDir)
	if err != nil {
		return "", fmt.Errorf("open the directory for profiles: %w", err)
	}
	defer root.Close()
	info, err := root.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("there is no such file in %s", n.seccompDir)
	case err != nil:
		return "", fmt.Errorf("stat it: %w", err)
	case !info.Mode().IsRegular():
		return "", errors.New("it is not a regular file")
	}
	return filepath.Join(n.seccompDir, name), nil
}

// appArmor is the container's AppArmor profile, also in the form for older runtimes: from
// the container's field, the pod's annotation for it, or the pod's field. Without any it is
// the runtime's default.
func appArmor(p *v1.Pod, c *v1.Container) (*runtimeapi.SecurityProfile, string, error) {
	profile, err := appArmorOf(p, c)
	if err != nil || profile == nil {
		return nil, "", err
	}
	name := profile.LocalhostProfile
	if name != nil && profile.Type != v1.AppArmorProfileTypeLocalhost {
		return nil, "", fmt.Errorf("appArmorProfile: localhostProfile may only be set if the type is Localhost, and it is %q", profile.Type)
	}
	switch profile.Type {
	case v1.AppArmorProfileTypeRuntimeDefault:
		return runtimeDefault(), v1.DeprecatedAppArmorBetaProfileRuntimeDefault, nil
	case v1.AppArmorProfileTypeUnconfined:
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}, v1.DeprecatedAppArmorBetaProfileNameUnconfined, nil
	case v1.AppArmorProfileTypeLocalhost:
		if name == nil || strings.TrimSpace(*name) == "" {
			return nil, "", errors.New("appArmorProfile: localhostProfile must be set if the type is Localhost")
		}
		return &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Localhost, LocalhostRef: *name},
			v1.DeprecatedAppArmorBetaProfileNamePrefix + *name, nil
	}
	return nil, "", fmt.Errorf("appArmorProfile: unknown type %q", profile.Type)
}

func appArmorOf(p *v1.Pod, c *v1.Container) (*v1.AppArmorProfile, error) {
	if c.SecurityContext != nil && c.SecurityContext.AppArmorProfile != nil {
		return c.SecurityContext.AppArmorProfile, nil
	}
	key := v1.DeprecatedAppArmorBetaContainerAnnotationKeyPrefix + c.Name
	if text, ok := p.Annotations[key]; ok {
		name, local := strings.CutPrefix(text, v1.DeprecatedAppArmorBetaProfileNamePrefix)
		switch {
		case text == v1.DeprecatedAppArmorBetaProfileRuntimeDefault:
			return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeRuntimeDefault}, nil
		case text == v1.DeprecatedAppArmorBetaProfileNameUnconfined:
			return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeUnconfined}, nil
		case local:
			return &v1.AppArmorProfile{Type: v1.AppArmorProfileTypeLocalhost, LocalhostProfile: &name}, nil
		}
		return nil, fmt.Errorf("annotation %s: unknown profile %q", key, text)
	}
	if p.Spec.SecurityContext != nil {
		return p.Spec.SecurityContext.AppArmorProfile, nil
	}
	return nil, nil
}
