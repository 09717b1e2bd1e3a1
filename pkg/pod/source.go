package pod

import (
	"strings"

	v1 "k8s.io/api/core/v1"
)

// SourceAPI is the kind of source that is an API server. The pods of all other kinds
// are static pods.
const SourceAPI = "api"

// FromAPI reports whether an API server is the source: such a pod is no static pod.
func (o Origin) FromAPI() bool { return o.Source == SourceAPI }

// IsAPILayer reports whether a layer is an API server, by its name as Origin.Layer gives it.
func IsAPILayer(layer string) bool { return strings.HasPrefix(layer, SourceAPI+":") }

// SourceOf returns the kind of source that a Pod object names in its annotation, ""
// where it names none: for readers that have the object and no Spec.
func SourceOf(p *v1.Pod) string { return p.Annotations[AnnotationConfigSource] }
