package pod

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
)

// StaticUID returns the UID of a static pod without one in its manifest: 32 lower-case
// hex digits that depend only on the node's name (in lower case), the namespace and the
// pod's final name, node suffix included. Editing or moving a manifest keeps it (unlike
// C-1.5.9).
func StaticUID(node, namespace, name string) string {
	return Digest([]byte(strings.ToLower(node) + "\x00" + namespace + "\x00" + name))
}

// ClaimsUID reports whether a pod's author chose its UID: neither an API server gave it,
// nor was it derived from the pod's names.
func ClaimsUID(s *Spec) bool {
	return !s.Origin.FromAPI() && s.UID() != StaticUID(s.Pod.Spec.NodeName, s.Namespace, s.Name)
}

// Digest returns the 32 lower-case hex digits by which nodectl recognises a content.
func Digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}
