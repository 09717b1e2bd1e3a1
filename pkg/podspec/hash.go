package podspec

import (
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/nodectl/nodectl/pkg/pod"
)

// hashVersion names the rules by which hashes are computed. It changes when an unedited
// pod would hash differently, so that an upgrade does not count as an edit. The hashes
// of earlier rules are in Spec.Earlier:
//
//   - v1: resources were part of what replaces a container.
//   - v2: they are not, for they are changed in place; their QoS class is part of
//     what replaces the pod. A sidecar is hashed as a container.
//
// The hash of the content is that of v1 to this day.
const (
	hashVersion  = "v2"
	hashVersion1 = "v1"
)

// HashVersion returns the version in front of a hash, "" when it has none.
func HashVersion(hash string) string {
	v, _, ok := strings.Cut(hash, "-")
	if !ok {
		return ""
	}
	return v
}

// Fingerprint fills in the hashes of s, which is being made, from its pod as its author
// set it, before anything was defaulted. They depend only on the content: not on the
// order of keys, formatting, comments, place, explicit empty values, explicit defaults
// that the table knows, or the spelling of a quantity.
func Fingerprint(s *pod.Spec, p *v1.Pod) {
	var buf [2048]byte
	b := buf[:0]
	spec := fieldTree().kid("spec")
	s.Earlier = nil
	earlier := func(name string, form []byte) {
		if s.Earlier == nil {
			s.Earlier = make(map[string]string, len(p.Spec.Containers)+1)
		}
		s.Earlier[name] = hashVersion1 + "-" + pod.Digest(form)
	}
	form := appendSpec(b, withSidecars(p), replacesPod)
	if class := pod.QOS(&p.Spec); class != v1.PodQOSBestEffort {
		earlier("", form)
		form = append(append(form, "qos "...), class...)
	}
	s.SandboxHash = versioned(form)
	s.ContainerHashes = make(map[string]string, len(p.Spec.InitContainers)+len(p.Spec.Containers))
	of := func(n *fieldNode, c *v1.Container, k keep) []byte {
		form, _ := n.appendStruct(b, reflect.ValueOf(c).Elem(), k)
		return form
	}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; pod.Restartable(c) {
			s.ContainerHashes[c.Name] = versioned(of(spec.kid("containers"), c, replacesContainer))
		} else {
			s.ContainerHashes[c.Name] = versioned(of(spec.kid("initContainers"), c, replacesInit))
		}
	}
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		s.ContainerHashes[c.Name] = versioned(of(spec.kid("containers"), c, replacesContainer))
		if len(c.Resources.Requests)+len(c.Resources.Limits) > 0 {
			earlier(c.Name, of(spec.kid("containers"), c, replacedV1))
		}
	}
	s.Hash = contentHash(b, p)
}

// NewHashes returns the hashes that Fingerprint makes. Spec.Hash covers everything that is set.
// Spec.SandboxHash covers the fields whose edit replaces the pod. Spec.ContainerHashes covers, by
// container name, the fields whose edit replaces that container or init container.
func NewHashes(p *v1.Pod) (hash, sandbox string, containers map[string]string) {
	var s pod.Spec
	Fingerprint(&s, p)
	return s.Hash, s.SandboxHash, s.ContainerHashes
}

// withSidecars returns a pod with its sidecars among its containers: an edit of a sidecar has the
// effect of an edit of a container.
func withSidecars(p *v1.Pod) *v1.Pod {
	if !slices.ContainsFunc(p.Spec.InitContainers, sidecar) {
		return p
	}
	out := *p
	out.Spec.InitContainers = nil
	out.Spec.Containers = slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if sidecar(c) {
			out.Spec.Containers = append(out.Spec.Containers, c)
		} else {
			out.Spec.InitContainers = append(out.Spec.InitContainers, c)
		}
	}
	return &out
}

func sidecar(c v1.Container) bool { return pod.Restartable(&c) }

// contentHash returns the hash of everything that is set in a pod. It writes
// behind b's length.
func contentHash(b []byte, p *v1.Pod) string {
	b = append(b, `{"metadata":{`...)
	a := authorAnnotations(p.Annotations)
	if len(a) > 0 {
		b = appendJSON(append(b, `"annotations":`...), a)
	}
	if len(p.Labels) > 0 {
		if len(a) > 0 {
			b = append(b, ',')
		}
		b = appendJSON(append(b, `"labels":`...), p.Labels)
	}
	return hashVersion1 + "-" + pod.Digest(append(appendSpec(append(b, `},"spec":`...), p, everything), '}'))
}

// appendSpec appends the canonical form of a pod's spec.
func appendSpec(b []byte, p *v1.Pod, k keep) []byte {
	out, set := fieldTree().kid("spec").appendCanon(b, reflect.ValueOf(&p.Spec), k)
	if !set {
		return append(b, "null"...)
	}
	return out
}

// NewAPIHashes is NewHashes for a pod from an API server. The server defaults and
// changes fields, differently from version to version: so only the name and the image
// restart a container (C-1.19.9), and only another UID replaces the pod.
func NewAPIHashes(p *v1.Pod) (hash, sandbox string, containers map[string]string) {
	containers = make(map[string]string, len(p.Spec.InitContainers)+len(p.Spec.Containers))
	for _, list := range [][]v1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			containers[list[i].Name] = hashOf(map[string]any{"name": list[i].Name, "image": list[i].Image})
		}
	}
	return contentHash(nil, p), hashOf(nil), containers
}

// HashObject returns the hash of a ConfigMap's or Secret's content.
func HashObject(content any) string { return hashOf(content) }

// authorAnnotations leaves out annotations of the kubelet and nodectl (C-1.4).
func authorAnnotations(all map[string]string) map[string]string {
	if len(all) == 0 {
		return nil
	}
	out := maps.Clone(all)
	for _, k := range []string{pod.AnnotationConfigSource, pod.AnnotationConfigSeen, pod.AnnotationConfigHash, pod.AnnotationConfigMirror} {
		delete(out, k)
	}
	return out
}

func hashOf(content any) string { return versioned(appendJSON(nil, content)) }

func versioned(form []byte) string { return hashVersion + "-" + pod.Digest(form) }

// hasHash reports whether hash, of the container called name or of the sandbox for "",
// equals the spec's, by any version of the rules.
func hasHash(s *pod.Spec, name, hash string) bool {
	want := s.SandboxHash
	if name != "" {
		want = s.ContainerHash(name)
	}
	if hash == "" || want == "" {
		return false
	}
	_, a, _ := strings.Cut(hash, "-")
	_, b, _ := strings.Cut(want, "-")
	return a == b || hash == s.Earlier[name]
}

// Restart returns the restarts if new replaces old: the whole pod, or the named containers
// (sorted), with the reason as text. A container that only one of them has is started or stopped,
// not restarted, and is not named, and neither is one that is only resized (Resizes). Where one of
// the specs has no hashes, or was hashed by rules that are not known, the two pods are compared
// field by field.
func Restart(old, new *pod.Spec) (podLevel bool, containers []string, reason string) {
	if old == nil || new == nil || old.Pod == nil || new.Pod == nil {
		return false, nil, ""
	}
	d := difference(old.Pod, new.Pod)
	comparable := HashVersion(old.SandboxHash) == HashVersion(new.SandboxHash) && old.SandboxHash != ""
	differs := func(name, hash, now string, fields []string) bool {
		switch {
		case comparable:
			return hash != now
		case hasHash(new, name, hash):
			return false
		}
		return len(fields) > 0
	}
	switch {
	case old.UID() != new.UID():
		return true, nil, "metadata.uid changed"
	case differs("", old.SandboxHash, new.SandboxHash, d.pod), !comparable && slices.Contains(d.pod, qosChanged):
		return true, nil, changed(d.pod)
	}
	resized := restartingResizes(old, new)
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(d.containers)) {
		fields := d.containers[name]
		restarts := differs(name, old.ContainerHash(name), new.ContainerHash(name), fields)
		if resized[name] {
			fields, restarts = append(fields, "resources"), true
			slices.Sort(fields)
		}
		if restarts {
			containers = append(containers, name)
			reasons = append(reasons, changed(fields))
		}
	}
	switch uniq := slices.Compact(slices.Clone(reasons)); len(uniq) {
	case 0:
		return false, nil, ""
	case 1:
		return false, containers, uniq[0]
	}
	for i := range reasons {
		reasons[i] = containers[i] + ": " + reasons[i]
	}
	return false, containers, strings.Join(reasons, "; ")
}

// changed puts field names into words.
func changed(fields []string) string {
	if len(fields) == 0 {
		return hashChanged
	}
	return strings.Join(fields, ", ") + " changed"
}

type podDifference struct {
	pod        []string            // names of fields that replace the pod
	containers map[string][]string // by name of each container both pods have
}

// qosChanged is the name of the property that resources decide for a whole pod.
const qosChanged = "QoS class"

// difference returns the names of the fields by which two pods differ, those
// that restart something.
func difference(a, b *v1.Pod) podDifference {
	spec := fieldTree().kid("spec")
	left, right := withSidecars(a), withSidecars(b)
	of := func(p *v1.Pod) map[string]string { return spec.forms(reflect.ValueOf(&p.Spec).Elem(), replacesPod) }
	d := podDifference{containers: map[string][]string{}}
	if pod.QOS(&a.Spec) != pod.QOS(&b.Spec) {
		d.pod = append(d.pod, qosChanged)
	}
	for _, name := range differing(of(left), of(right)) {
		switch name {
		case "containers":
			name = "host ports"
		case "initContainers":
			name = "init containers"
		}
		d.pod = append(d.pod, name)
	}
	node := spec.kid("containers")
	for i := range left.Spec.Containers {
		for j := range right.Spec.Containers {
			if name := left.Spec.Containers[i].Name; name == right.Spec.Containers[j].Name {
				d.containers[name] = differing(
					node.forms(reflect.ValueOf(&left.Spec.Containers[i]).Elem(), replacesContainer),
					node.forms(reflect.ValueOf(&right.Spec.Containers[j]).Elem(), replacesContainer))
			}
		}
	}
	return d
}

// differing returns the keys, sorted, whose values differ.
func differing(a, b map[string]string) []string {
	var out []string
	for k, v := range a {
		if w, both := b[k]; !both || v != w {
			out = append(out, k)
		}
	}
	for k := range b {
		if _, both := a[k]; !both {
			out = append(out, k)
		}
	}
	slices.Sort(out)
	return out
}
