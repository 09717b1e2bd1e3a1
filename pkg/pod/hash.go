package pod

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
)

// hashVersion names the rules by which hashes are made. It changes when a pod
// that nobody edited would hash differently, so that an upgrade is recognised
// instead of being taken for an edit.
const hashVersion = "v1"

// HashVersion returns the version in front of a hash, "" when it has none.
func HashVersion(hash string) string {
	v, _, ok := strings.Cut(hash, "-")
	if !ok {
		return ""
	}
	return v
}

// StaticUID returns the UID of a static pod that was given none: 32 lower-case
// hex digits that depend on the node's name (in lower case), the namespace and
// the pod's final name, node suffix included, and on nothing else. Editing or
// moving a manifest keeps it (unlike C-1.5.9).
func StaticUID(node, namespace, name string) string {
	return digest([]byte(strings.ToLower(node) + "\x00" + namespace + "\x00" + name))
}

// NewHashes returns the hashes of a pod as its author set it, before anything
// was defaulted: of everything set (Spec.Hash), of what replaces the pod when
// it changes (Spec.SandboxHash), and by container name, init containers
// included, of what replaces that container (Spec.ContainerHashes).
//
// They depend on what is asked for alone: neither on the order of keys, nor on
// formatting, comments, place, explicit empty values, written-out defaults that
// the table knows, or the spelling of a quantity.
func NewHashes(p *v1.Pod) (hash, sandbox string, containers map[string]string) {
	root, v := fieldTree(), reflect.ValueOf(p).Elem()
	meta := map[string]any{}
	if len(p.Labels) > 0 {
		meta["labels"] = p.Labels
	}
	if a := authorAnnotations(p.Annotations); len(a) > 0 {
		meta["annotations"] = a
	}
	spec := root.kid("spec")
	sv := v.FieldByIndex(spec.index)
	hash = hashOf(map[string]any{"metadata": meta, "spec": spec.canon(sv, everything)})
	sandbox = hashOf(spec.canon(sv, replacesPod))
	containers = map[string]string{}
	for i := range p.Spec.InitContainers {
		containers[p.Spec.InitContainers[i].Name] = hashOf(spec.kid("initContainers").canonStruct(reflect.ValueOf(p.Spec.InitContainers[i]), replacesInit))
	}
	for i := range p.Spec.Containers {
		containers[p.Spec.Containers[i].Name] = hashOf(spec.kid("containers").canonStruct(reflect.ValueOf(p.Spec.Containers[i]), replacesContainer))
	}
	return hash, sandbox, containers
}

// HashObject returns the hash of a ConfigMap's or Secret's content.
func HashObject(content any) string { return hashOf(content) }

// authorAnnotations leaves out what the kubelet and nodectl write (C-1.4).
func authorAnnotations(all map[string]string) map[string]string {
	out := maps.Clone(all)
	for _, k := range []string{AnnotationConfigSource, AnnotationConfigSeen, AnnotationConfigHash, AnnotationConfigMirror} {
		delete(out, k)
	}
	return out
}

func hashOf(canonical any) string {
	b, err := json.Marshal(canonical)
	if err != nil {
		// A canonical value holds maps, lists, strings, numbers and booleans.
		panic("pod: canonical form has no JSON: " + err.Error())
	}
	return hashVersion + "-" + digest(b)
}

func digest(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:16])
}

// keep says whether a plain value belongs into a canonical form, by its row.
type keep func(*Field) bool

func everything(*Field) bool    { return true }
func replacesPod(f *Field) bool { return f != nil && f.Restart == RestartPod }
func replacesContainer(f *Field) bool {
	return f != nil && f.Restart == RestartContainer
}

// replacesInit keeps everything of an init container that matters at all.
func replacesInit(f *Field) bool { return f != nil && f.Restart != RestartNone }

// canon returns what is set in v as maps, lists and plain values, nil when
// nothing is. Lists without an order come back sorted.
func (n *fieldNode) canon(v reflect.Value, k keep) any {
	pointer := v.Kind() == reflect.Pointer
	if pointer {
		if v.IsNil() {
			return nil
		}
		v = v.Elem()
	}
	switch {
	case n.plain:
		return n.canonPlain(v, pointer, k)
	case v.Kind() == reflect.Slice:
		return n.canonList(v, k)
	}
	out := n.canonStruct(v, k)
	if len(out) == 0 && (!n.presence || !pointer || !k(n.row)) {
		return nil
	}
	return out
}

func (n *fieldNode) canonPlain(v reflect.Value, pointer bool, k keep) any {
	if !k(n.row) || !pointer && v.IsZero() || hasNone(v) {
		return nil
	}
	if n.row != nil && n.row.Default != nil && fmt.Sprint(n.row.Default) == fmt.Sprint(v.Interface()) {
		return nil
	}
	return v.Interface()
}

func (n *fieldNode) canonList(v reflect.Value, k keep) any {
	// What a list holds counts even when all of an element is left out by k:
	// but only the whole form keeps empty elements in their places.
	whole := k(nil)
	var out []any
	for i := range v.Len() {
		if n.row != nil && n.row.Counts != nil && !whole && !n.row.Counts(v.Index(i).Interface()) {
			continue
		}
		if e := n.canonStruct(v.Index(i), k); len(e) > 0 || whole {
			out = append(out, e)
		}
	}
	if len(out) == 0 {
		return nil
	}
	if n.row != nil && n.row.Unordered {
		slices.SortStableFunc(out, func(a, b any) int { return bytes.Compare(mustJSON(a), mustJSON(b)) })
	}
	return out
}

func (n *fieldNode) canonStruct(v reflect.Value, k keep) map[string]any {
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	out := map[string]any{}
	for _, kid := range n.kids {
		if c := kid.canon(v.FieldByIndex(kid.index), k); c != nil {
			out[kid.name] = c
		}
	}
	return out
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic("pod: canonical form has no JSON: " + err.Error())
	}
	return b
}

// Restart returns what replacing old by new restarts: the whole pod, or the
// containers named (sorted), and why, in words. A container that only one of
// them has is started or stopped, not restarted, and is not named. Where one
// of the specs has no hashes, or was hashed by other rules, the two pods are
// compared field by field.
func Restart(old, new *Spec) (podLevel bool, containers []string, reason string) {
	if old == nil || new == nil || old.Pod == nil || new.Pod == nil {
		return false, nil, ""
	}
	d := difference(old.Pod, new.Pod)
	comparable := HashVersion(old.SandboxHash) == HashVersion(new.SandboxHash) && old.SandboxHash != ""
	switch {
	case old.UID() != new.UID():
		return true, nil, "metadata.uid changed"
	case comparable && old.SandboxHash != new.SandboxHash, !comparable && len(d.pod) > 0:
		return true, nil, changed(d.pod)
	}
	var reasons []string
	for _, name := range slices.Sorted(maps.Keys(d.containers)) {
		fields := d.containers[name]
		differs := len(fields) > 0
		if comparable {
			differs = old.ContainerHash(name) != new.ContainerHash(name)
		}
		if differs {
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
		return "written differently"
	}
	return strings.Join(fields, ", ") + " changed"
}

type podDifference struct {
	pod        []string            // names of fields that replace the pod
	containers map[string][]string // by name of each container both pods have
}

// difference returns the names of the fields by which two pods differ, those
// that restart something.
func difference(a, b *v1.Pod) podDifference {
	spec := fieldTree().kid("spec")
	canon := func(p *v1.Pod) map[string]any {
		m, _ := spec.canon(reflect.ValueOf(&p.Spec), replacesPod).(map[string]any)
		return m
	}
	d := podDifference{containers: map[string][]string{}}
	for _, name := range differing(canon(a), canon(b)) {
		switch name {
		case "containers":
			name = "host ports"
		case "initContainers":
			name = "init containers"
		}
		d.pod = append(d.pod, name)
	}
	node := spec.kid("containers")
	for i := range a.Spec.Containers {
		for j := range b.Spec.Containers {
			if name := a.Spec.Containers[i].Name; name == b.Spec.Containers[j].Name {
				d.containers[name] = differing(
					node.canonStruct(reflect.ValueOf(a.Spec.Containers[i]), replacesContainer),
					node.canonStruct(reflect.ValueOf(b.Spec.Containers[j]), replacesContainer))
			}
		}
	}
	return d
}

// differing returns the keys, sorted, whose values differ.
func differing(a, b map[string]any) []string {
	var out []string
	for k, v := range a {
		if !bytes.Equal(mustJSON(v), mustJSON(b[k])) {
			out = append(out, k)
		}
	}
	for k := range b {
		if _, both := a[k]; !both {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, cmp.Compare[string])
	return out
}
