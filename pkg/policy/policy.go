// Package policy enforces the limits that the owner of this node sets for each source: a Pod
// Security level, namespaces, host paths, images, and from which sources its pods may use
// ConfigMaps and Secrets.
//
// Parse reads the file of --source-policy; Source puts a Policy between a source and
// podconfig, where a pod that is not allowed becomes a rejected one: its last good
// version stays, as with any other mistake in a manifest.
//
// The package does no I/O. It rejects a pod that no rule matches.
package policy

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/pod-security-admission/api"
	podsecurity "k8s.io/pod-security-admission/policy"

	"github.com/nodectl/nodectl/pkg/pod"
)

// APIVersion and Kind head a policy file.
const (
	APIVersion = "nodectl.dev/v1alpha1"
	Kind       = "SourcePolicy"
)

// byDefault is the name of the rule for sources that no other rule matches.
const byDefault = "default"

// kinds returns the kinds of sources there are.
func kinds() []string { return []string{pod.SourceAPI, "etcd", "file", "http", "stdin"} }

// Policy limits the pods of this node's sources. It is immutable.
type Policy struct {
	file     string
	rules    []*rule // the first that matches a source applies
	fallback *rule   // nil: a source that no rule matches is rejected
	security podsecurity.Evaluator
}

// rule has the limits of the matching sources.
type rule struct {
	name    string
	sources []sourcePattern

	level  api.LevelVersion
	exempt []string // patterns of namespaces that level does not hold for

	namespaces *[]string // patterns; nil: every one
	hostPaths  *[]root   // nil: every one
	images     *[]image  // nil: every one
	derived    bool      // pods must not choose their UIDs
	priority   *int64    // the highest there may be; nil: every one
	objects    []string  // kinds of sources beside the pod's own

	// Of Services. If they are nil, the level decides: see checkService.
	nodePorts   *[]portRange
	externalIPs *[]netip.Prefix
	balancers   *bool
}

// sourcePattern matches sources: both parts must match, and an empty one matches all.
type sourcePattern struct {
	kind     string
	location location
}

// rule returns the rule for a source, nil when there is none.
func (p *Policy) rule(kind, location string) *rule {
	for _, r := range p.rules {
		if slices.ContainsFunc(r.sources, func(s sourcePattern) bool {
			return (s.kind == "" || s.kind == kind) && s.location.holds(location)
		}) {
			return r
		}
	}
	return p.fallback
}

// Visible reports whether pods of sources of one kind may name the ConfigMaps, Secrets
// and claims of sources of another kind. Rules may be for single locations: where
// several can match sources of podSource's kind, all of them have to allow it. Sources
// of one kind always see each other's.
func (p *Policy) Visible(podSource, objectSource string) bool {
	if podSource == objectSource {
		return true
	}
	for _, r := range p.rules {
		some, all := false, false
		for _, s := range r.sources {
			if s.kind == "" || s.kind == podSource {
				some = true
				all = all || s.location.all()
			}
		}
		if some && !slices.Contains(r.objects, objectSource) {
			return false
		}
		if all {
			return true // no later rule can match this kind
		}
	}
	return p.fallback != nil && slices.Contains(p.fallback.objects, objectSource)
}

// glob reports whether a pattern matches s: every * matches any text, also an empty
// one.
func glob(pattern, s string) bool {
	first, rest, found := strings.Cut(pattern, "*")
	if !found {
		return pattern == s
	}
	s, ok := strings.CutPrefix(s, first)
	if !ok {
		return false
	}
	parts := strings.Split(rest, "*")
	last := parts[len(parts)-1]
	for _, part := range parts[:len(parts)-1] {
		_, after, ok := strings.Cut(s, part)
		if !ok {
			return false
		}
		s = after
	}
	return strings.HasSuffix(s, last)
}

// anyOf reports whether one of the patterns matches s.
func anyOf(patterns []string, s string) bool {
	return slices.ContainsFunc(patterns, func(pattern string) bool { return glob(pattern, s) })
}

// location is a pattern of sources' locations. A URL's scheme and host are
// compared apart from its path, so that no * reaches from one into another.
type location struct {
	scheme, host, path string // scheme "" is no URL
}

func newLocation(pattern string) location {
	scheme, rest, is := strings.Cut(pattern, "://")
	if !is {
		return location{path: pattern}
	}
	host, path, _ := strings.Cut(rest, "/")
	return location{scheme: scheme, host: host, path: path}
}

// all reports whether the pattern matches every location.
func (l location) all() bool { return l.scheme == "" && (l.path == "" || l.path == "*") }

func (l location) holds(of string) bool {
	if l.all() {
		return true
	}
	o := newLocation(of)
	return l.scheme == o.scheme && hostHolds(l.host, o.host) && glob(l.path, o.path)
}

// hostHolds reports whether a pattern matches a host and port: a * alone matches all,
// one before a dot all names below, anything else only itself.
func hostHolds(pattern, host string) bool {
	if below, ok := strings.CutPrefix(pattern, "*."); ok {
		return len(host) > len(below)+1 && strings.HasSuffix(host, "."+below)
	}
	return pattern == "*" || pattern == host
}

// badHost reports whether a pattern of a host has a * where it would stand for
// another host as well.
func badHost(pattern string) bool {
	return pattern != "*" && strings.Contains(strings.TrimPrefix(pattern, "*."), "*")
}
