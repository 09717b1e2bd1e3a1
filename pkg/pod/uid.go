package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
)

// StaticUID returns the UID of a static pod without one in its manifest: 32 lower-case
// hex digits that depend only on the node's name (in lower case), the namespace and the
// pod's final name, node suffix included. Editing or moving a manifest keeps it (unlike
// C-1.5.9).
func StaticUID(node, namespace, name string) string {
	return Digest([]byte(strings.ToLower(node) + "\x00" + namespace + "\x00" + name))
}

// RevisionUID returns the UID of a StatefulSet's pod: its name stays when its template changes,
// and the other revision (the label controller-revision-hash) is another pod.
func RevisionUID(node, namespace, name, revision string) string {
	return Digest([]byte(strings.ToLower(node) + "\x00" + namespace + "\x00" + name + "\x00" + revision))
}

// HasChosenUID reports whether a pod's author chose its UID: neither an API server gave it,
// nor was it derived from the pod's own names and revision.
func HasChosenUID(s *Spec) bool {
	if s.Origin.FromAPI() {
		return false
	}
	node, uid := s.Pod.Spec.NodeName, s.UID()
	revision := s.Pod.Labels[appsv1.ControllerRevisionHashLabelKey]
	return uid != StaticUID(node, s.Namespace, s.Name) && (revision == "" || uid != RevisionUID(node, s.Namespace, s.Name, revision))
}

// Digest returns the 32 lower-case hex digits by which nodectl recognises a content.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
