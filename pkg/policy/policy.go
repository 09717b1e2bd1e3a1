// Package policy holds pods to what the owner of this node allows each source:
// a Pod Security level, namespaces, host paths, images, and whose ConfigMaps and
// Secrets its pods may name.
//
// Parse reads the file of --source-policy; Source puts a Policy between a source
// and podconfig, where a pod that is not allowed becomes a rejected one: what
// stood before stays, as it does behind any other mistake in a manifest.
//
// The one rule: no I/O, and what no rule speaks for is rejected.
package policy

import (
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

// byDefault is the name of the rule for sources that no other speaks for.
const byDefault = "default"

// kinds returns the kinds of sources there are.
func kinds() []string { return []string{pod.SourceAPI, "etcd", "file", "http", "stdin"} }

// Policy says what the sources of this node may ask for. It is immutable.
type Policy struct {
	file     string
	rules    []*rule // the first that speaks for a source holds
	fallback *rule   // nil: what no rule speaks for is rejected
	security podsecurity.Evaluator
}

// rule is what some sources are allowed.
type rule struct {
	name    string
	sources []speaker

	level  api.LevelVersion
	exempt []string // patterns of namespaces that level does not hold for

	namespaces *[]string // patterns; nil: every one
	hostPaths  *[]root   // nil: every one
	images     *[]image  // nil: every one
	derived    bool      // pods must not choose their UIDs
	priority   *int64    // the highest there may be; nil: every one
	objects    []string  // kinds of sources beside the pod's own
}

// speaker names sources: both parts hold, and an empty one holds for all.
type speaker struct {
	kind     string
	location location
}

// rule returns the rule for a source, nil when there is none.
func (p *Policy) rule(kind, location string) *rule {
	for _, r := range p.rules {
		if slices.ContainsFunc(r.sources, func(s speaker) bool {
			return (s.kind == "" || s.kind == kind) && s.location.holds(location)
		}) {
			return r
		}
	}
	return p.fallback
}

// Visible reports whether pods of sources of one kind may name the ConfigMaps,
// Secrets and claims of sources of another kind. Rules may be for single
// locations: where several can speak for sources of podSource's kind, all of them
// have to allow it. Sources of one kind always see each other's.
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
			return true // no later rule speaks for this kind
		}
	}
	return p.fallback != nil && slices.Contains(p.fallback.objects, objectSource)
}

// glob reports whether a pattern stands for s: every * for any text, none
// included, and all else for itself.
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

// anyOf reports whether one of the patterns stands for s.
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

// all reports whether the pattern stands for every location.
func (l location) all() bool { return l.scheme == "" && (l.path == "" || l.path == "*") }

func (l location) holds(of string) bool {
	if l.all() {
		return true
	}
	o := newLocation(of)
	return l.scheme == o.scheme && hostHolds(l.host, o.host) && glob(l.path, o.path)
}

// hostHolds reports whether a pattern stands for a host and port: a * alone for
// all, one before a dot for all names below, anything else for itself.
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
