package cgroup

import (
	"fmt"
	"path"
	"regexp"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The kubelet's names (C-1.41.1).
const (
	kubepods   = "kubepods"
	burstable  = "burstable"
	bestEffort = "besteffort"
	podPrefix  = "pod"

	sliceSuffix = ".slice"
)

// classes returns the QoS classes of pods. The cgroup of the first one, Guaranteed, is kubepods itself.
func classes() []v1.PodQOSClass {
	return []v1.PodQOSClass{v1.PodQOSGuaranteed, v1.PodQOSBurstable, v1.PodQOSBestEffort}
}

// name is the path of a cgroup from the root of its hierarchy, in parts.
type name []string

func (n name) below(part string) name { return append(n[:len(n):len(n)], part) }

// path returns the cgroup's name for a driver, which is also its path below a hierarchy. The name of a
// systemd slice begins with the names of the slices that contain it, separated by dashes. So path
// replaces dashes in a part by underscores.
func (n name) path(systemd bool) string {
	if !systemd {
		return "/" + path.Join(n...)
	}
	at, slice := "/", ""
	for _, part := range n {
		if slice != "" {
			slice += "-"
		}
		slice += strings.ReplaceAll(part, "-", "_")
		at = path.Join(at, slice+sliceSuffix)
	}
	return at
}

// uidOf returns the UID in base, the last part of the path of a pod's cgroup. ok is false for other
// cgroups. A UID has no underscore, so each underscore in a slice's name stands for a dash.
func uidOf(base string, systemd bool) (uid string, ok bool) {
	if systemd {
		if base, ok = strings.CutSuffix(base, sliceSuffix); !ok {
			return "", false
		}
		base = base[strings.LastIndexByte(base, '-')+1:]
		base = strings.ReplaceAll(base, "_", "-")
	}
	uid, ok = strings.CutPrefix(base, podPrefix)
	return uid, ok && checkUID(uid) == nil
}

// uidForm limits UIDs, which come from manifests and become parts of paths and of names of units.
var uidForm = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]{0,127}$`)

func checkUID(uid string) error {
	if !uidForm.MatchString(uid) {
		return fmt.Errorf("uid %.80q cannot be the name of a cgroup: only letters, digits, dots and dashes are allowed", uid)
	}
	return nil
}

var partForm = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]*$`)

// parseRoot parses --cgroup-root. With systemd, dashes separate the parts of a name that ends in .slice.
func parseRoot(root string, systemd bool) (name, error) {
	root = path.Clean("/" + root)
	if root == "/" || systemd && root == "/-.slice" {
		return nil, nil
	}
	parts := strings.Split(root[1:], "/")
	if base, ok := strings.CutSuffix(path.Base(root), sliceSuffix); ok && systemd {
		parts = strings.Split(base, "-")
	}
	for _, part := range parts {
		if !partForm.MatchString(part) || systemd && strings.HasSuffix(part, sliceSuffix) {
			return nil, fmt.Errorf("--cgroup-root %s: %q cannot be part of a cgroup's name", root, part)
		}
	}
	return parts, nil
}
