package volume

import (
	"bufio"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// maxPolicyFile limits the files of the SELinux policy that are read, in bytes.
const maxPolicyFile = 64 << 10

// FileLabel returns the default SELinux label of containers' files, from the policy of the
// machine; "" if the policy has none. root is the root of the file system.
func FileLabel(root fs.FS) string {
	policy := policySetting(root, "etc/selinux/config", "SELINUXTYPE")
	if oneName(policy) != nil {
		return ""
	}
	label := policySetting(root, path.Join("etc/selinux", policy, "contexts/lxc_contexts"), "file")
	if strings.Count(label, ":") < 2 {
		return ""
	}
	return label
}

// policySetting returns the value of a line "name = value" of a file, without quotes.
func policySetting(root fs.FS, file, name string) string {
	f, err := root.Open(file)
	if err != nil {
		return ""
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(io.LimitReader(f, maxPolicyFile)); lines.Scan(); {
		key, value, has := strings.Cut(lines.Text(), "=")
		if has && strings.TrimSpace(key) == name {
			return strings.Trim(strings.TrimSpace(value), `"`)
		}
	}
	return ""
}

// fileLabels returns the SELinux labels for the files of the containers that mount a volume,
// sorted. It returns none in three cases: the pod asks for recursive changes; the runtime chooses
// the level of a container, which no mount option can repeat; a label has a character that is
// not allowed (isLabelRune).
func fileLabels(byDefault string, p *v1.Pod, volume string) []string {
	if strings.Count(byDefault, ":") < 2 {
		return nil // the policy names no label
	}
	var of *v1.SELinuxOptions
	if sc := p.Spec.SecurityContext; sc != nil {
		if sc.SELinuxChangePolicy != nil && *sc.SELinuxChangePolicy == v1.SELinuxChangePolicyRecursive {
			return nil
		}
		of = sc.SELinuxOptions
	}
	var labels []string
	open := false
	look := func(mounts []v1.VolumeMount, sc *v1.SecurityContext) {
		if !slices.ContainsFunc(mounts, func(m v1.VolumeMount) bool { return m.Name == volume }) {
			return
		}
		options := of
		if sc != nil && sc.SELinuxOptions != nil {
			options = sc.SELinuxOptions
		}
		if options == nil || options.Level == "" {
			open = true
			return
		}
		label := fileLabel(byDefault, options)
		open = open || strings.IndexFunc(label, func(r rune) bool { return !isLabelRune(r) }) >= 0
		labels = append(labels, label)
	}
	for i := range p.Spec.InitContainers {
		look(p.Spec.InitContainers[i].VolumeMounts, p.Spec.InitContainers[i].SecurityContext)
	}
	for i := range p.Spec.Containers {
		look(p.Spec.Containers[i].VolumeMounts, p.Spec.Containers[i].SecurityContext)
	}
	for i := range p.Spec.EphemeralContainers {
		look(p.Spec.EphemeralContainers[i].VolumeMounts, p.Spec.EphemeralContainers[i].SecurityContext)
	}
	if open {
		return nil
	}
	slices.Sort(labels)
	return slices.Compact(labels)
}

// isLabelRune reports whether a label in a mount option may have the character. A driver may give the
// options of a mount to a shell, and it separates them by commas outside of quotes.
func isLabelRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.:,-", r)
}

// fileLabel returns the label of a container's files: the default one with the container's user and
// level. Role and type of a container are those of its process, not of its files.
func fileLabel(byDefault string, o *v1.SELinuxOptions) string {
	parts := strings.SplitN(byDefault, ":", 4)
	if o.User != "" {
		parts[0] = o.User
	}
	return strings.Join(parts[:3], ":") + ":" + o.Level
}
