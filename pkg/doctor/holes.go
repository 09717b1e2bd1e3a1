package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// hole is a known fault of a runtime, and the first version of each line that has
// the fix.
type hole struct {
	name  string // as the runtime names itself
	id    string
	about string
	fixed []string
}

func knownHoles() []hole {
	return []hole{
		{"runc", "CVE-2024-21626", "a container gets at the host's files", []string{"1.1.12"}},
		{"runc", "CVE-2025-31133, CVE-2025-52565, CVE-2025-52881", "a container gets at the host's /proc", []string{"1.2.8", "1.3.3"}},
		{"containerd", "CVE-2022-23648", "an image reads the host's files", []string{"1.4.13", "1.5.10", "1.6.1"}},
		{"containerd", "CVE-2024-40635", "a user number that is too large is root", []string{"1.6.38", "1.7.27", "2.0.4"}},
		{"containerd", "CVE-2024-25621", "users of the machine read what images hold", []string{"1.7.29", "2.0.7", "2.1.5"}},
		{"containerd", "CVE-2025-64329", "kubectl attach takes all memory", []string{"1.7.29", "2.0.7", "2.1.5"}},
		{"containerd", "CVE-2026-53488, CVE-2026-53492", "an image or a checkpoint gets at the host", []string{"1.7.33", "2.0.10", "2.1.9", "2.2.5", "2.3.2"}},
		{"cri-o", "CVE-2022-0811", "a sysctl runs a program on the host", []string{"1.19.6", "1.20.7", "1.21.6", "1.22.3", "1.23.2"}},
	}
}

// holes returns the known faults of a version. A version that cannot be read has
// none that are known.
func holes(name, version string) (all []string) {
	have, ok := parseVersion(version)
	if !ok {
		return nil
	}
	for _, h := range knownHoles() {
		if strings.EqualFold(h.name, name) && !h.closed(have) {
			all = append(all, fmt.Sprintf("%s %s: %s, %s; fixed in %s", name, version, h.id, h.about, strings.Join(h.fixed, ", ")))
		}
	}
	return all
}

// closed reports that a version has the fix: its line has one, and it is not
// older; or its line is younger than all of them.
func (h hole) closed(have [3]int) bool {
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

// parseVersion reads "v1.2.3-rc.1+x" and "1.2.3"; a candidate counts as what it is
// one of.
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
