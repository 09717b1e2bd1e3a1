package doctor

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// vulnerability is a known vulnerability of a runtime, with the first fixed version of each
// line of releases.
type vulnerability struct {
	name  string // the runtime's name in CRI
	id    string
	about string
	since string // the first version that has it; empty: all before the fix
	fixed []string
}

func knownVulnerabilities() []vulnerability {
	return []vulnerability{
		{"runc", "CVE-2023-27561, CVE-2023-28642", "a container bypasses AppArmor and SELinux", "", []string{"1.1.5"}},
		{"runc", "CVE-2024-21626", "a container accesses the host's files", "", []string{"1.1.12"}},
		{"runc", "CVE-2024-45310", "a container creates empty files on the host", "", []string{"1.1.14"}},
		{"runc", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", "a container accesses the host's /proc", "", []string{"1.2.8", "1.3.3"}},
		{"runc", "CVE-2026-41579", "an image writes to the host", "", []string{"1.3.6", "1.4.3"}},
		{"containerd", "CVE-2022-23648", "an image reads the host's files", "", []string{"1.4.13", "1.5.10", "1.6.1"}},
		{"containerd", "CVE-2022-31030", "the output of a probe exhausts memory", "", []string{"1.5.13", "1.6.6"}},
		{"containerd", "CVE-2022-23471", "terminal sessions exhaust memory", "", []string{"1.5.16", "1.6.12"}},
		{"containerd", "CVE-2023-25153", "an image archive exhausts memory", "", []string{"1.5.18", "1.6.18"}},
		{"containerd", "CVE-2023-25173", "a container keeps supplementary groups that it must not have", "", []string{"1.5.18", "1.6.18"}},
		{"containerd", "CVE-2024-40635", "a user ID that is too large becomes root", "", []string{"1.6.38", "1.7.27", "2.0.4"}},
		{"containerd", "CVE-2025-47291", "a pod with a user namespace escapes its limits", "2.0.1", []string{"2.0.5"}},
		{"containerd", "CVE-2024-25621", "users of the machine read the content of images", "", []string{"1.7.29", "2.0.7", "2.1.5"}},
		{"containerd", "CVE-2025-64329", "kubectl attach exhausts memory", "", []string{"1.7.29", "2.0.7", "2.1.5"}},
		{"containerd", "CVE-2026-53488", "an image runs a command on the host", "", []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}},
		{"containerd", "CVE-2026-47262", "an image exhausts memory", "", []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}},
		{"containerd", "CVE-2026-50195, CVE-2026-53489, CVE-2026-53492", "a checkpoint accesses the host and its images", "2.1.0", []string{"2.1.9", "2.2.5", "2.3.2"}},
		{"containerd", "CVE-2026-95839", "an image crashes containerd", "2.2.0", []string{"2.2.10", "2.3.7", "2.4.2"}},
		{"cri-o", "CVE-2022-0811", "a sysctl runs a program on the host", "", []string{"1.19.6", "1.20.7", "1.21.6", "1.22.3", "1.23.2"}},
	}
}

// vulnerabilities returns the known vulnerabilities of a version; none if it cannot parse
// the version.
func vulnerabilities(name, version string) (all []string) {
	have, ok := parseVersion(version)
	if !ok {
		return nil
	}
	for _, h := range knownVulnerabilities() {
		if strings.EqualFold(h.name, name) && !h.fixedIn(have) {
			all = append(all, fmt.Sprintf("%s %s: %s, %s; fixed in %s", name, version, h.id, h.about, strings.Join(h.fixed, ", ")))
		}
	}
	return all
}

// fixedIn reports whether a version lacks the vulnerability: it is older than the first
// version that has it, or not older than its line's fix, or of a line newer than all fixes.
func (h vulnerability) fixedIn(have [3]int) bool {
	if first, ok := parseVersion(h.since); ok && slices.Compare(have[:], first[:]) < 0 {
		return true
	}
	var last [3]int
	for _, text := range h.fixed {
		v, _ := parseVersion(text)
		if v[0] == have[0] && v[1] == have[1] {
			return have[2] >= v[2]
		}
		last = v
	}
	return have[0] > last[0] || have[0] == last[0] && have[1] > last[1]
}

// parseVersion reads "v1.2.3-rc.1+x" and "1.2.3"; a release candidate counts as the
// release.
func parseVersion(text string) (v [3]int, ok bool) {
	text = strings.TrimPrefix(strings.TrimSpace(text), "v")
	if i := strings.IndexAny(text, "-+~ "); i >= 0 {
		text = text[:i]
	}
	parts := strings.Split(text, ".")
	if len(parts) != 3 {
		return v, false
	}
	for i, p := range parts {
		n, err := strconv.Atoi(p)
		if err != nil {
			return v, false
		}
		v[i] = n
	}
	return v, true
}
