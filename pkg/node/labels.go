package node

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// The labels of old that clusters still select by.
const (
	labelOldOS   = "beta.kubernetes.io/os"
	labelOldArch = "beta.kubernetes.io/arch"
)

// ownLabels returns the labels that a node keeps right on an object that is there
// already (C-1.25.2).
func ownLabels() []string {
	return []string{
		v1.LabelHostname, v1.LabelTopologyZone, v1.LabelTopologyRegion,
		v1.LabelFailureDomainBetaZone, v1.LabelFailureDomainBetaRegion,
		v1.LabelInstanceTypeStable, v1.LabelInstanceType,
		v1.LabelOSStable, v1.LabelArchStable, labelOldOS, labelOldArch,
	}
}

// Labels returns the labels of a node of this name: those every node has
// (C-1.31.3), and more, which win.
func (f Facts) Labels(name string, more map[string]string) map[string]string {
	labels := map[string]string{
		v1.LabelHostname: name, v1.LabelOSStable: f.OS, v1.LabelArchStable: f.Arch,
		labelOldOS: f.OS, labelOldArch: f.Arch,
	}
	maps.Copy(labels, more)
	return labels
}

// CheckLabels returns which of the labels a node may not give itself: those of
// kubernetes.io and k8s.io that are not for nodes to set. An API server with
// NodeRestriction would refuse the whole node for them.
func CheckLabels(labels map[string]string) error {
	var bad []string
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		if !mayLabel(key) {
			bad = append(bad, key)
		}
	}
	if len(bad) == 0 {
		return nil
	}
	return fmt.Errorf("a node may not label itself with %s: of the labels of kubernetes.io and k8s.io it may set those of kubelet.kubernetes.io and node.kubernetes.io, and %s",
		strings.Join(bad, ", "), strings.Join(ownLabels(), ", "))
}

func mayLabel(key string) bool {
	domain, _, ok := strings.Cut(key, "/")
	if !ok || slices.Contains(ownLabels(), key) {
		return true
	}
	below := func(d string) bool { return domain == d || strings.HasSuffix(domain, "."+d) }
	if below("kubelet.kubernetes.io") || below("node.kubernetes.io") {
		return true
	}
	return !below("kubernetes.io") && !below("k8s.io")
}
