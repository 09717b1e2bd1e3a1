package node

import (
	"runtime/debug"
	"strings"

	"k8s.io/apimachinery/pkg/util/version"
)

// kubernetes is the release of go.mod, for programs without build information: test binaries.
const kubernetes = "v1.36.3"

// KubernetesVersion returns the Kubernetes release whose libraries this program is
// built with ("v1.36.3"): the kubeletVersion, which parts of a cluster compare with
// their own.
func KubernetesVersion() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return kubernetes
	}
	return versionOf(info.Deps)
}

func versionOf(deps []*debug.Module) string {
	for _, d := range deps { // k8s.io/api v0.36.3 is Kubernetes v1.36.3
		if rest, ok := strings.CutPrefix(d.Version, "v0."); ok && d.Path == "k8s.io/api" {
			return "v1." + rest
		}
	}
	return kubernetes
}

// runtimeVersion returns the version that the runtime reports, in the kubelet's form: a semantic
// version without its v, or else the numeric parts.
func runtimeVersion(text string) string {
	if v, err := version.ParseSemantic(text); err == nil {
		return v.String()
	}
	if v, err := version.ParseGeneric(text); err == nil {
		return v.String()
	}
	return text
}
